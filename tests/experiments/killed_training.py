"""A training to be killed: ``python killed_training.py FOLDER [WHERE AT]``.

It starts or resumes the run in FOLDER, prints a line after every round, and with WHERE kills
itself (SIGKILL, nothing is cleaned up) at the AT-th time it comes to that place of a write.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import torch

import fedgradnorm as fgn
import flat
import toys
from fedgradnorm._runs import checkpoint

ROUNDS = 24


def options() -> dict[str, Any]:
    """Everything that has a memory: Adam everywhere, batch norm, dropout, absent clients."""
    return {
        "weighting": fgn.GradNorm(lr=0.02),
        "rounds": ROUNDS,
        "batch_size": 8,
        "lr": 0.01,
        "head_steps": 2,
        "local_optimizer": {"name": "adam", "betas": (0.8, 0.9)},
        "shared_steps": 2,
        "participation": 0.7,
        "eval_every": 5,
        "checkpoint_every": 1,
    }


def go(folder: Path, **more: Any) -> fgn.Run:
    """Start or resume."""
    resume = (folder / "run.json").exists()
    given = more.pop("clients", None) or toys.clients()
    more = {**options(), **more}
    return flat.train(toys.noisy_network(), given, folder=folder, resume=resume, **more)


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def die_in_a_write(where: str, at: int) -> None:
    """Let the AT-th atomic write of a file end half way, before its new name, or right after.

    "between" is when the old file has been set aside and the new one has not got its name yet.
    """
    calls = 0

    def write(path: Path, given: Any, previous: Path | None = None) -> None:
        nonlocal calls
        calls += 1
        data = given if isinstance(given, bytes) else b"".join(given)
        if calls < at:
            return plain(path, data, previous)
        if where == "after":
            plain(path, data, previous)
            die()
        if where == "between":
            assert previous is not None
            path.replace(previous)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        temporary.write_bytes(data[: len(data) // 2] if where == "half" else data)
        die()

    plain, checkpoint.write_atomically = checkpoint.write_atomically, write


def show(event: Any) -> None:
    print(event.round, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) > 2:
        die_in_a_write(sys.argv[2], int(sys.argv[3]))
    try:
        go(Path(sys.argv[1]), progress=show)
    except fgn.Interrupted as stop:
        heads = ",".join(stop.run.heads)
        print(f"{stop} | {heads} | finished {stop.run.finished}", flush=True)
        sys.exit(130)
