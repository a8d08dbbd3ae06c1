"""A round of clients whose rows are read from a disk: one pass for all, and one after another.

    python benchmarks/streamed.py       # streamed.json and a table

Memory maps of 400 rows with 256 inputs a client, layers of 64 and 32, batch 16, the direct rule,
everybody in each round. The files are in the system's cache. Engines take turns in one process.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import numpy as np
import record
import torch
from timing import alternate, quartiles, ratio
from torch import nn

import fedgradnorm as fgn
from fedgradnorm._round.settings import Settings
from fedgradnorm._training.trainer import Trainer

CLIENTS = [3, 30, 100]
ROWS, WIDTH = 400, 256
COLUMNS = {
    "clients": "clients", "loop_ms": "loop, ms", "auto_ms": "auto, ms", "executor": "auto takes",
    "ratio": "loop over auto", "quartiles": "quartiles", "held_ms": "in memory, joint, ms",
}  # fmt: skip


def trainer(x: np.ndarray, engine: str) -> Trainer:
    """A federation of clients that hold neighbouring rows of ``x``."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
    tasks = fgn.classification(2), fgn.regression(1)
    clients = []
    for k in range(len(x) // ROWS):
        own = x[k * ROWS : (k + 1) * ROWS]
        y = np.array(own[:, :1])
        pair = own, y if k % 2 else (y[:, 0] > 0).astype(np.int64)
        clients.append(fgn.Client(f"c{k}", tasks[k % 2], train=pair))
    settings = Settings(executor=engine, rounds=1 << 20, batch_size=16)
    return Trainer(network, clients, fgn.GradNorm(rule="direct"), settings, torch.device("cpu"))


def point(count: int, folder: Path, repeats: int, rounds: int) -> record.Row:
    """Milliseconds of a round of so many clients."""
    path = folder / f"{count}.npy"
    np.save(path, np.random.default_rng(0).normal(size=(count * ROWS, WIDTH)).astype(np.float32))
    mapped = np.load(path, mmap_mode="r")
    found = {
        "loop": trainer(mapped, "loop"),
        "auto": trainer(mapped, "auto"),
        "held": trainer(np.array(mapped), "auto"),
    }

    def advancing(one: Trainer) -> object:
        return lambda _, number: [one.advance() for _ in range(number)]

    contestants = {name: advancing(one) for name, one in found.items()}
    times = alternate(contestants, rounds, repeats)  # type: ignore[arg-type]
    low, high = quartiles(times["loop"], times["auto"])
    return {
        "clients": count,
        **{f"{name}_ms": 1e3 * statistics.median(each) for name, each in times.items()},
        "executor": found["auto"].federation.engine.name,
        "ratio": ratio(times["loop"], times["auto"]),
        "quartiles": f"{low:.2f} to {high:.2f}",
    }


def main() -> None:
    given = record.options(__doc__).parse_args()
    record.begin(given)
    rounds = 2 if given.quick else 20
    with tempfile.TemporaryDirectory() as place:
        counts = CLIENTS[:1] if given.quick else CLIENTS
        rows = [point(count, Path(place), given.repeats, rounds) for count in counts]
    record.write(given.out / "streamed.json", record.about(), rows, COLUMNS)


if __name__ == "__main__":
    main()
