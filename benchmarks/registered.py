"""What clients cost that do not participate: 100 in every round, of ever more that are registered.

    python benchmarks/registered.py             # registered.json, a table and registered.png
    python benchmarks/registered.py --draw      # the figure again, from registered.json

16 inputs, layers of 64 and 32, 20 training rows a client, half of them with classes and half with
numbers, the direct rule, batch 16, one process per point. A first round is one in which nearly
all clients are new: their heads are drawn and their first losses measured. A later round comes when
19 of 20 have participated before. Both are medians of 60. All points are measured in turn, several
times. Medians of these are kept, and with them each repeat's ratios and the machine's load.
Times are the processor's: with --threads 1 they are those of a quiet machine, also where others
use it. What a clock on the wall says is kept with them.
Memory is what the process takes at most beyond what it had with library and data in place. Ready is
from the first client that is made to the end of the first round.
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import record

REGISTERED = [100, 1_000, 10_000, 100_000]
ACTIVE, MEASURED = 100, 60
COLUMNS = {
    "registered": "registered", "journal": "changed rows only", "first_ms": "first rounds, ms",
    "first_ratio": "to 100 registered", "round_ms": "later rounds, ms",
    "ratio": "to 100 registered", "ready": "ready, s", "beyond_gb": "memory, GB",
    "heads_gb": "heads in it, GB", "checkpoint_mb": "checkpoint, MB", "rows_mb": "its rows, MB",
    "table_mb": "metrics.csv, MB", "manifest_mb": "run.json, MB",
}  # fmt: skip

RATIOS = {
    "first_ratio": "first_ms", "ratio": "round_ms",
    "wall_first_ratio": "wall_first_ms", "wall_ratio": "wall_round_ms",
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


class Seen:
    """What is noted of a run in the making: when each round ended, and its first rows on disk."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self.folder, self._half, self._rows = folder, rounds // 2, 0
        self._ends = [clocks()]

    def note(self, event: Any) -> None:
        """A round has ended."""
        self._ends.append(clocks())
        if event.round == self._half + 1:
            self._rows = sum(f.stat().st_size for f in (self.folder / "rows").glob("*"))

    def figures(self) -> record.Row:
        """Times of rounds and until the first of them ended, and sizes of files."""
        found: record.Row = {}
        for clock, ends in zip(("", "wall_"), zip(*self._ends, strict=True), strict=True):
            ready, *each = [after - before for before, after in itertools.pairwise(ends)]
            found[f"{clock}ready"] = ready
            found[f"{clock}first_ms"] = 1e3 * statistics.median(each[:MEASURED])
            found[f"{clock}round_ms"] = 1e3 * statistics.median(each[-MEASURED:])
        sizes = {f.name: f.stat().st_size / 1e6 for f in self.folder.iterdir() if f.is_file()}
        return {
            "journal": "yes" if self._rows else "no",
            **found,
            "checkpoint_mb": sizes["checkpoint.safetensors"],
            "rows_mb": self._rows / 1e6,
            "table_mb": sizes["metrics.csv"],
            "manifest_mb": sizes["run.json"],
        }


def clocks() -> tuple[float, float]:
    """Seconds of the processor that this process has had, and seconds on the wall."""
    return time.process_time(), time.perf_counter()


def clients(train: Sequence[Any], test: Sequence[Any]) -> list[Any]:
    """Every second one has classes, the others have numbers."""
    import fedgradnorm as fgn

    tasks = fgn.classification(2), fgn.regression(1)
    pairs = enumerate(zip(train, test, strict=True))
    return [fgn.Client(f"c{i}", tasks[i % 2], train=a, test=b) for i, (a, b) in pairs]


def point(registered: int, rounds: int) -> record.Row:
    """One federation, trained in a folder of its own."""
    import torch
    from torch import nn

    import fedgradnorm as fgn

    network = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
    options: dict[str, Any] = {
        "weighting": fgn.GradNorm(rule="direct"),
        "local": fgn.Local(batch_size=16),
    }
    fgn.train(network, clients(*splits(4)), rounds=2, **options)  # the library is loaded by it
    options["server"] = fgn.Server(participation=ACTIVE / registered)
    evaluation = fgn.Evaluation(every=rounds // 2, clients=ACTIVE)
    data, before = splits(registered), resident()
    with tempfile.TemporaryDirectory() as place:
        seen = Seen(Path(place) / "run", rounds)
        run = fgn.train(
            network,
            clients(*data),
            **options,
            rounds=rounds,
            folder=seen.folder,
            callbacks=[evaluation, fgn.Checkpoints(every=rounds // 2), seen.note],
        )
        figures = seen.figures()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    heads = sum(p.numel() for p in run.clients["c0"].head.parameters()) * registered
    return {
        "registered": registered,
        **figures,
        "beyond_gb": (peak - before) / 1e9,
        "heads_gb": 4 * heads * 3 / 1e9,  # with Adam's two moments
        "load": os.getloadavg()[0],
        "torch": torch.__version__,
    }


def measured(given: argparse.Namespace) -> Iterator[list[record.Row]]:
    """All points, one after the other, as often as asked for."""
    for _ in range(1 if given.quick else given.repeats):
        rows = list[record.Row]()
        for registered in [100, 600] if given.quick else REGISTERED:
            rounds = 8 if given.quick else 2 * MEASURED + 3 * registered // ACTIVE
            rows.append(apart(given, registered, rounds))
            for ratio, key in RATIOS.items():
                rows[-1][ratio] = rows[-1][key] / rows[0][key]
            print(rows[-1], file=sys.stderr, flush=True)
        yield rows


def apart(given: argparse.Namespace, registered: int, rounds: int) -> record.Row:
    """A point that is measured in a process of its own, so that its peak is its own."""
    words = [sys.executable, __file__, "--point", str(registered), "--rounds", str(rounds)]
    words += ["--threads", str(given.threads)] if given.threads else []
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def medians(repeats: Sequence[list[record.Row]]) -> list[record.Row]:
    """Each point's medians over the repeats; of ratios too, which are to the same repeat's 100."""
    found = []
    for rows in zip(*repeats, strict=True):
        row = dict(rows[0])
        for key, value in row.items():
            if isinstance(value, float):
                row[key] = statistics.median(own[key] for own in rows)
        ratios = [{key: own[key] for key in (*RATIOS, "load")} for own in rows]
        found.append({**row, "repeats": ratios})
    return found


def draw(rows: Sequence[record.Row], path: Path) -> None:
    """Two panels over the number of registered clients: a round, and memory."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from fedgradnorm._report.colours import COLOURS
    from fedgradnorm._report.figures import save

    drawing = Figure(figsize=(9.2, 3.7), layout="constrained")
    FigureCanvasAgg(drawing)
    left, right = drawing.subplots(1, 2)
    count = [row["registered"] for row in rows]
    for colour, key, label in ((0, "round_ms", "later"), (6, "first_ms", "first")):
        values = [row[key] for row in rows]
        left.plot(count, values, color=COLOURS[colour], marker="o", linewidth=2, label=label)
    left.legend(fontsize=9, frameon=False)
    right.plot(count, [row["beyond_gb"] for row in rows], color=COLOURS[1], marker="o", linewidth=2)
    left.set(title=f"Time of a round with {ACTIVE} clients", ylabel="milliseconds")
    right.set(title="Memory beyond library and data", ylabel="GB")
    for axes in (left, right):
        axes.title.set(size=12, weight="bold")
        axes.set(xscale="log", xlabel="registered clients")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylim(bottom=0)
    save(drawing, path)


def main() -> None:
    parser = record.options(__doc__)
    parser.add_argument("--draw", action="store_true", help="measure nothing, draw what is there")
    parser.add_argument("--point", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=MEASURED, help=argparse.SUPPRESS)
    given = parser.parse_args()
    target = given.out / "registered.json"
    record.begin(given)
    if given.point:
        print(json.dumps(point(given.point, given.rounds)))
    elif given.draw:
        draw(json.loads(target.read_text())["rows"], target.with_suffix(".png"))
    else:
        rows = medians(list(measured(given)))
        record.write(target, record.about(), rows, COLUMNS)
        draw(rows, target.with_suffix(".png"))


if __name__ == "__main__":
    main()
