"""Time and memory against the number of clients: one process per point, so that peaks are its own.

    python benchmarks/scale.py                  # scale.json, a table and scale.png
    python benchmarks/scale.py --draw           # the figure again, from scale.json

Network 2, batch 16, 64 rows a client, one head and one shared step.
"""

from __future__ import annotations

import resource
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import points
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


def draw(rows: Sequence[record.Row], path: Path) -> None:
    """Two panels over the number of clients: seconds of a round, and peak memory."""
    from fedgradnorm._report.colours import COLOURS
    from fedgradnorm._report.figures import save

    drawing, left, right = points.panels()
    clients = [row["clients"] for row in rows]
    seconds, memory = ([row[key] for row in rows] for key in ("seconds", "peak_gb"))
    left.plot(clients, seconds, color=COLOURS[0], marker="o", linewidth=2, label="measured")
    line = [seconds[-1] * count / clients[-1] for count in clients]
    left.plot(clients, line, color=COLOURS[6], linestyle="--", linewidth=1.4,
              label="proportional to clients")  # fmt: skip
    left.legend(fontsize=9, frameon=False)
    right.plot(clients, memory, color=COLOURS[1], marker="o", linewidth=2)
    points.dress(left, "Time of a round", "seconds")
    points.dress(right, "Peak memory of the process", "GB")
    left.set_yscale("log")
    right.set_ylim(bottom=0)
    save(drawing, path)


def main() -> None:
    given = points.options(__doc__).parse_args()
    target = given.out / "scale.json"
    if points.begin(given, target, lambda: point(given.point, given.repeats), draw):
        return
    here, rows = record.about(), []
    before = record.earlier(target, here, given)
    for clients in CLIENTS[:2] if given.quick else CLIENTS:
        if not given.only or str(clients) in given.only:
            rows.append(points.apart(__file__, given, clients, "--repeats", str(given.repeats)))
            print(rows[-1], file=sys.stderr, flush=True)
    rows = record.merge(before, rows, "clients", CLIENTS)
    record.write(target, here, rows, COLUMNS)
    draw(rows, target.with_suffix(".png"))


if __name__ == "__main__":
    main()
