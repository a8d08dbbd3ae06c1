"""Trainings whose ranks can be killed: ``torchrun ... distributed_killed.py FOLDER ROUNDS``.

FOLDER/few is stopped (SIGINT) on the way at first. FOLDER/many, of clients in rows, comes then.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

import fedgradnorm as fgn
import flat
import toys

STOP = 12


def train(folder: Path, rounds: int, **more: Any) -> fgn.Run:
    """Start the run of a few clients in ``folder``, or continue it."""
    options = {"clients": toys.clients(), "participation": 0.7, "checkpoint_every": 5}
    return flat.train(
        toys.network(),
        weighting=fgn.GradNorm(lr=0.02),
        rounds=rounds,
        batch_size=8,
        lr=0.01,
        folder=folder,
        resume=(folder / "run.json").exists(),
        **{**options, **more},
    )


def train_many(folder: Path, rounds: int) -> fgn.Run:
    """The same for clients of whom each checkpoint writes those that changed."""
    kinds = toys.NAMES * 70
    clients = [toys.client(f"{kind}{i}", 10, kind) for i, kind in enumerate(kinds)]
    seldom = {"checkpoint_every": 1, "eval_every": 50, "eval_clients": 20, "log_every": 10}
    return train(folder, rounds, clients=clients, participation=0.1, **seldom)


def stop(event: Any) -> None:
    """Ctrl-C, on one rank alone."""
    if event.round == STOP:
        os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    torch.set_num_threads(1)
    place, count = Path(sys.argv[1]), int(sys.argv[2])
    (place / f"pid{os.environ['RANK']}").write_text(str(os.getpid()))
    begun = (place / "few").exists()
    try:
        train(place / "few", count, progress=False if begun else stop)
    except fgn.Interrupted:
        assert not begun
    train_many(place / "many", count)
