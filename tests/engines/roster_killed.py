"""Many clients, trained twice: ``python roster_killed.py FOLDER``.

FOLDER/whole is left alone. FOLDER/killed is killed (SIGKILL) in its writes, in a process of its own
each time, and resumed; then it is resumed to the end. Prints how often it was killed.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedgradnorm as fgn
import flat
from experiments.killed_training import die_in_a_write

PLACES = [
    *[("half", 3), ("unnamed", 3), ("after", 3), ("half", 4), ("unnamed", 4), ("after", 4)],
    *[("after", 7), ("half", 6), ("unnamed", 3)],
]


def clients(count: int = 220) -> list[fgn.Client]:
    """Half of them with classes, half with numbers."""
    draw = np.random.default_rng(1)
    sort, size = fgn.classification(2), fgn.regression(1)
    found = []
    for k in range(count):
        x = draw.normal(size=(12, 4)).astype(np.float32)
        y = x[:, :1] + 0.1 * k
        data = (x, (y[:, 0] > 0.1 * k).astype(int)) if k % 2 else (x, y)
        found.append(fgn.Client(f"c{k}", sort if k % 2 else size, train=data, test=data))
    return found


def go(folder: Path, **more: Any) -> fgn.Run:
    """Start or resume."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU())
    options: dict[str, Any] = {
        "rounds": 12,
        "batch_size": 5,
        "participation": 0.1,
        "lr": 0.05,
        "eval_every": 5,
        "checkpoint_every": 1,
        "eval_clients": 20,
        "record_clients": 5,
        "weighting": fgn.GradNorm(rule="direct"),
    }
    resume = (folder / "run.json").exists()
    return flat.train(network, clients(), folder=folder, resume=resume, **{**options, **more})


def killed(folder: Path, where: str, at: int) -> bool:
    """Whether a process that continues the run was killed at this place of a write."""
    process = os.fork()
    if process == 0:
        die_in_a_write(where, at)
        go(folder)
        os._exit(0)
    _, status = os.waitpid(process, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


if __name__ == "__main__":
    place = Path(sys.argv[1])
    times = sum(killed(place / "killed", where, at) for where, at in PLACES)
    go(place / "killed")
    go(place / "whole")
    print(f"killed {times} times")
