"""A training whose ranks can be killed: ``torchrun ... distributed_killed.py FOLDER ROUNDS``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

import fedgradnorm as fgn
import toys


def train(folder: Path, rounds: int) -> fgn.Run:
    """Start the run in ``folder``, or go on with it."""
    return fgn.train(
        toys.network(),
        toys.clients(),
        weighting=fgn.GradNorm(lr=0.02),
        rounds=rounds,
        batch_size=8,
        lr=0.01,
        participation=0.7,
        checkpoint_every=5,
        folder=folder,
        resume=(folder / "run.json").exists(),
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    (place.parent / f"pid{os.environ['RANK']}").write_text(str(os.getpid()))
    train(place, int(sys.argv[2]))
