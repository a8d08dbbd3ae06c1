"""Time and memory against the number of clients: one process per point, so that peaks are its own.

    python benchmarks/scale.py                  # scale.json, a table and scale.png
    python benchmarks/scale.py --draw           # the figure again, from scale.json

Network 2, batch 16, 64 rows a client, one head and one shared step.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import record

CLIENTS = [1, 3, 10, 30, 100, 300, 1000]
COLUMNS = {"clients": "clients", "seconds": "round, s", "peak_gb": "peak memory, GB"}
ENOUGH = 0.5  # seconds that a repeat should take


def point(clients: int, repeats: int) -> record.Row:
    """Seconds of a round and this process's peak memory."""
    from timing import alternate
    from work import Work, make_clients, make_ours

    work = Work(f"{clients} clients", clients, 16, size=64)
    ours = make_ours(work, make_clients(work))
    (once,) = alternate({"ours": ours.rounds}, 1, 1)["ours"]
    count = max(1, round(ENOUGH / once)) if repeats > 1 else 1
    times = alternate({"ours": ours.rounds}, count, repeats, first=2)["ours"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak_gb = peak / (1e9 if sys.platform == "darwin" else 1e6)
    return {"clients": clients, "seconds": statistics.median(times), "peak_gb": peak_gb}


def apart(clients: int, given: argparse.Namespace) -> record.Row:
    """The same in a process of its own."""
    words = [sys.executable, __file__, "--point", str(clients), "--repeats", str(given.repeats)]
    words += ["--threads", str(given.threads)] if given.threads else []
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def draw(rows: Sequence[record.Row], path: Path) -> None:
    """Two panels over the number of clients: seconds of a round, and peak memory."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from fedgradnorm._report.colours import COLOURS
    from fedgradnorm._report.figures.curves import log_scale, save

    drawing = Figure(figsize=(9.2, 3.7), layout="constrained")
    FigureCanvasAgg(drawing)
    left, right = drawing.subplots(1, 2)
    clients = [row["clients"] for row in rows]
    seconds, memory = ([row[key] for row in rows] for key in ("seconds", "peak_gb"))
    left.plot(clients, seconds, color=COLOURS[0], marker="o", linewidth=2, label="measured")
    line = [seconds[-1] * count / clients[-1] for count in clients]
    left.plot(clients, line, color=COLOURS[6], linestyle="--", linewidth=1.4,
              label="proportional to clients")  # fmt: skip
    left.legend(fontsize=9, frameon=False)
    right.plot(clients, memory, color=COLOURS[1], marker="o", linewidth=2)
    dress(left, "Time of a round", "seconds")
    dress(right, "Peak memory of the process", "GB")
    log_scale(left)
    right.set_ylim(bottom=0)
    save(drawing, path)


def dress(axes: Any, title: str, unit: str) -> None:
    axes.set_xscale("log")
    axes.set_title(title, fontsize=12, weight="bold")
    axes.set_xlabel("clients")
    axes.set_ylabel(unit)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    parser = record.options(__doc__)
    parser.add_argument("--draw", action="store_true", help="measure nothing, draw what is there")
    parser.add_argument("--point", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    record.begin(given)
    if given.point:
        print(json.dumps(point(given.point, given.repeats)))
        return
    target, picture = given.out / "scale.json", given.out / "scale.png"
    if given.draw:
        draw(json.loads(target.read_text())["rows"], picture)
        return
    here, rows = record.about(), []
    before = record.earlier(target, here, given)
    for clients in CLIENTS[:2] if given.quick else CLIENTS:
        if not given.only or str(clients) in given.only:
            rows.append(apart(clients, given))
            print(rows[-1], file=sys.stderr, flush=True)
    rows = record.merge(before, rows, "clients", CLIENTS)
    record.write(target, here, rows, COLUMNS)
    draw(rows, picture)


if __name__ == "__main__":
    main()
