"""Many registered clients on several ranks: what each rank holds, and how evenly rounds fall.

    python benchmarks/ranks.py          # ranks.json and a table

10,000 clients of 500 rows with 16 inputs (0.32 GB), 100 of them in a round, layers of 64 and 32,
the direct rule, batch 16, ranks on loopback. Memory is what a process has at the end beyond the
library, the largest of all ranks; a round is the median of the last 40. The share of a rank is
from the draws of 1,000 rounds: the largest number of a round's clients on one rank, over the mean.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import record
from registered import resident

REGISTERED, ACTIVE, ROWS, ROUNDS = 10_000, 100, 500, 80
POINTS = {"one process": 1, "2 ranks": 2}
COLUMNS = {
    "name": "run", "memory_gb": "memory of a rank, GB", "round_ms": "round, ms",
    "share": "share of the busiest rank", "worst": "in 5% of rounds above",
}  # fmt: skip


def shares(ranks: int, registered: int, active: int, rounds: int = 1000) -> list[float]:
    """The most clients of a round on one rank over the mean number, for each round."""
    from fedgradnorm._round.participation import participants

    names = [str(k) for k in range(registered)]
    found = []
    for number in range(rounds):
        drawn = participants(active / registered, 0, names, number)
        counts = np.bincount([int(name) % ranks for name in drawn], minlength=ranks)
        found.append(float(counts.max() / counts.mean()))
    return found


def train(registered: int, active: int, rounds: int) -> dict[str, float]:
    """One federation on this rank; its memory, and seconds of its rounds."""
    import torch
    from torch import nn

    import fedgradnorm as fgn

    tasks = fgn.classification(2), fgn.regression(1)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())

    def client(k: int) -> fgn.Client:
        chance = torch.Generator().manual_seed(k)
        x = torch.randn(ROWS, 16, generator=chance)
        y = x[:, :1] if k % 2 else (x[:, 0] > 0).long()
        return fgn.Client(f"c{k}", tasks[k % 2], train=(x, y))

    def clients(count: int) -> list[fgn.Client]:
        return [client(k) for k in range(count)]

    options: dict[str, Any] = {
        "weighting": fgn.GradNorm(rule="direct"),
        "local": fgn.Local(batch_size=16),
    }
    fgn.train(network, clients(4), rounds=2, **options)  # the library is loaded by it
    before, times, held = resident(), list[float](), list[int]()

    def note(event: Any) -> None:
        times.append(time.perf_counter())
        if event.round == rounds:
            held.append(resident())

    fgn.train(
        network, clients(registered),
        **options,
        rounds=rounds,
        server=fgn.Server(participation=active / registered),
        callbacks=[fgn.Evaluation(every=0), note],
    )  # fmt: skip
    each = [after - earlier for earlier, after in itertools.pairwise(times)][-40:]
    held = held or [resident()]  # only rank 0 is told of rounds
    return {"memory": held[0] - before, "round": statistics.median(each) if each else 0.0}


def apart(name: str, given: argparse.Namespace) -> record.Row:
    """A point in processes of its own."""
    ranks = POINTS[name]
    sizes = ["600", "12", "6"] if given.quick else [str(n) for n in (REGISTERED, ACTIVE, ROUNDS)]
    launch = [sys.executable]
    if ranks > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            place = ["--master-addr", "127.0.0.1", "--master-port", str(free.getsockname()[1])]
        launch += ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), *place]
    with tempfile.TemporaryDirectory() as out:
        words = [__file__, "--point", *sizes, "--out", out, "--threads", "1"]
        loopback = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        subprocess.run([*launch, *words], env=loopback, check=True)
        found = [json.loads(path.read_text()) for path in sorted(Path(out).glob("*.json"))]
    drawn = shares(ranks, *map(int, sizes[:2]))
    return {
        "name": name,
        "memory_gb": max(each["memory"] for each in found) / 1e9,
        "round_ms": 1e3 * max(each["round"] for each in found),
        "share": statistics.mean(drawn),
        "worst": float(np.quantile(drawn, 0.95)),
    }


def main() -> None:
    parser = record.options(__doc__)
    parser.add_argument("--point", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    record.begin(given)
    if given.point:
        found = train(*map(int, given.point))
        (given.out / f"{os.environ.get('RANK', '0')}.json").write_text(json.dumps(found))
        return
    here, target, rows = record.about(), given.out / "ranks.json", []
    before = record.earlier(target, here, given)
    for name in POINTS:
        if record.wanted(name, given):
            rows.append(apart(name, given))
            print(rows[-1], file=sys.stderr, flush=True)
    eight = shares(8, REGISTERED, ACTIVE)
    rows.append({"name": "8 ranks", "share": statistics.mean(eight),
                 "worst": float(np.quantile(eight, 0.95))})  # fmt: skip
    rows = record.merge(before, rows, "name", [*POINTS, "8 ranks"])
    record.write(target, here, rows, COLUMNS)


if __name__ == "__main__":
    main()
