"""What clients cost that do not take part: 100 in every round, of ever more that are registered.

    python benchmarks/registered.py             # registered.json, a table and registered.png
    python benchmarks/registered.py --draw      # the figure again, from registered.json

16 inputs, layers of 64 and 32, 20 training rows a client, half of them with classes and half with
numbers, the direct rule, batch 16, one process per point. A first round is one in which nearly
all clients are new: their heads are drawn and their first losses measured. A later round comes when
19 of 20 have taken part before. Both are medians of 60. Memory is what the process takes at most
beyond what it had with library and data in place. Ready is from the first client that is made to
the end of the first round.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import record

REGISTERED = [100, 1_000, 10_000, 100_000]
ACTIVE, MEASURED = 100, 60
COLUMNS = {
    "registered": "registered", "engine": "engine", "first_ms": "first rounds, ms",
    "first_ratio": "to 100 registered", "round_ms": "later rounds, ms",
    "ratio": "to 100 registered", "ready": "ready, s", "beyond_gb": "memory, GB",
    "heads_gb": "heads in it, GB", "checkpoint_mb": "checkpoint, MB", "rows_mb": "its rows, MB",
    "table_mb": "metrics.csv, MB", "about_mb": "run.json, MB",
}  # fmt: skip


def resident() -> int:
    """Bytes of this process that are in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def splits(count: int) -> tuple[list[Any], list[Any]]:
    """Training and test rows of so many clients, as views of a few tensors."""
    import torch

    torch.manual_seed(0)
    x = torch.randn(count, 25, 16)
    y = x @ torch.randn(16)
    kinds = (y > 0).long()
    train, test = [], []
    for i in range(count):
        own = y[i][:, None] if i % 2 else kinds[i]
        train.append((x[i, :20], own[:20]))
        test.append((x[i, 20:], own[20:]))
    return train, test


def point(registered: int, rounds: int) -> record.Row:
    """One federation, trained in a folder of its own."""
    import torch
    from torch import nn

    import fedgradnorm as fgn

    tasks = fgn.classification(2), fgn.regression(1)
    network = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())

    def clients(train: Sequence[Any], test: Sequence[Any]) -> list[fgn.Client]:
        pairs = enumerate(zip(train, test, strict=True))
        return [fgn.Client(f"c{i}", tasks[i % 2], train=a, test=b) for i, (a, b) in pairs]

    options: dict[str, Any] = {"weighting": fgn.GradNorm(rule="direct"), "batch_size": 16}
    fgn.train(network, clients(*splits(4)), rounds=2, **options)  # the library is loaded by it
    data = splits(registered)
    before, times, began = resident(), list[float](), time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        checkpoints = list[int]()

        def note(event: Any) -> None:
            times.append(time.perf_counter())
            if not checkpoints and event.round > rounds // 2:
                checkpoints.append(sum(f.stat().st_size for f in (folder / "rows").glob("*")))

        run = fgn.train(
            network,
            clients(*data),
            **options,
            rounds=rounds,
            participation=ACTIVE / registered,
            eval_clients=ACTIVE,
            eval_every=rounds // 2,
            checkpoint_every=rounds // 2,
            folder=folder,
            progress=note,
        )
        sizes = {f.name: f.stat().st_size / 1e6 for f in folder.iterdir() if f.is_file()}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    heads = sum(p.numel() for p in run.clients["c0"].head.parameters()) * registered
    each = [after - earlier for earlier, after in itertools.pairwise(times)]
    return {
        "registered": registered,
        "engine": "roster" if "heads.safetensors" in sizes else "joint",
        "first_ms": 1e3 * statistics.median(each[:MEASURED]),
        "round_ms": 1e3 * statistics.median(each[-MEASURED:]),
        "ready": times[0] - began,
        "beyond_gb": (peak - before) / 1e9,
        "heads_gb": 4 * heads * 3 / 1e9,  # with Adam's two moments
        "checkpoint_mb": sizes["checkpoint.safetensors"],
        "rows_mb": checkpoints[0] / 1e6 if checkpoints else 0.0,
        "table_mb": sizes["metrics.csv"],
        "about_mb": sizes["run.json"],
        "torch": torch.__version__,
    }


def apart(registered: int, given: argparse.Namespace) -> record.Row:
    """The same in a process of its own."""
    rounds = 8 if given.quick else 2 * MEASURED + 3 * registered // ACTIVE
    words = [sys.executable, __file__, "--point", str(registered), "--rounds", str(rounds)]
    words += ["--threads", str(given.threads)] if given.threads else []
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def draw(rows: Sequence[record.Row], path: Path) -> None:
    """Two panels over the number of registered clients: a round, and memory."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from scale import dress

    from fedgradnorm._report.colours import COLOURS
    from fedgradnorm._report.figures.curves import save

    drawing = Figure(figsize=(9.2, 3.7), layout="constrained")
    FigureCanvasAgg(drawing)
    left, right = drawing.subplots(1, 2)
    count = [row["registered"] for row in rows]
    for colour, key, label in ((0, "round_ms", "later"), (6, "first_ms", "first")):
        values = [row[key] for row in rows]
        left.plot(count, values, color=COLOURS[colour], marker="o", linewidth=2, label=label)
    left.legend(fontsize=9, frameon=False)
    right.plot(count, [row["beyond_gb"] for row in rows], color=COLOURS[1], marker="o", linewidth=2)
    dress(left, f"Time of a round with {ACTIVE} clients", "milliseconds")
    dress(right, "Memory beyond library and data", "GB")
    for axes in (left, right):
        axes.set_xlabel("registered clients")
        axes.set_ylim(bottom=0)
    save(drawing, path)


def page_table(rows: Sequence[record.Row]) -> str:
    """The table of docs/performance.md."""
    lines = [
        "| registered | first rounds, ms | later rounds, ms | to 100 registered | ready, s | "
        "memory, GB | checkpoint, MB | run.json, MB |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        values = [f"{row['registered']:,}"]
        keys = ("first_ms", "round_ms", "ratio", "ready", "beyond_gb", "checkpoint_mb", "about_mb")
        values += [f"{row[key]:.3g}" for key in keys]
        lines.append("| " + " | ".join(values) + " |")
    return "\n".join(lines) + "\n"


def million(rows: Sequence[record.Row]) -> str:
    """What a million registered clients would take in one process, by the last two points."""
    before, last = rows[-2:]
    lines = ["| of a million clients | by calculation |", "|---|---:|"]
    words = {
        "ready": "ready, s", "beyond_gb": "memory, GB", "checkpoint_mb": "last checkpoint, MB",
        "about_mb": "run.json, MB", "round_ms": "later rounds, ms",
    }  # fmt: skip
    for key, what in words.items():
        slope = (last[key] - before[key]) / (last["registered"] - before["registered"])
        value = last[key] + slope * (1e6 - last["registered"])
        lines.append(f"| {what} | {value:.2g} |" if value < 1 else f"| {what} | {value:,.0f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = record.options(__doc__)
    parser.add_argument("--draw", action="store_true", help="measure nothing, draw what is there")
    parser.add_argument("--point", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=MEASURED, help=argparse.SUPPRESS)
    given = parser.parse_args()
    record.begin(given)
    if given.point:
        print(json.dumps(point(given.point, given.rounds)))
        return
    target, picture = given.out / "registered.json", given.out / "registered.png"
    if given.draw:
        draw(json.loads(target.read_text())["rows"], picture)
        return
    rows = []
    for registered in [100, 600] if given.quick else REGISTERED:
        rows.append(apart(registered, given))
        for ratio, key in (("first_ratio", "first_ms"), ("ratio", "round_ms")):
            rows[-1][ratio] = rows[-1][key] / rows[0][key]
        print(rows[-1], file=sys.stderr, flush=True)
    record.write(target, record.about(), rows, COLUMNS)
    draw(rows, picture)


if __name__ == "__main__":
    main()
