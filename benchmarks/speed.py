"""Rounds on a CPU against the plain loop, pfl and Flower: losses are compared first, then times.

    python benchmarks/speed.py                      # all rows; rivals where they are installed
    python benchmarks/speed.py --only "1 head" --rivals pfl

Contestants run in turn, in this process and with the same threads (Flower in Ray's processes,
afterwards); a ratio is the median over the repeats of neighbors in time. FedGradNorm's price over
equal weights is measured apart, in many more pairs. Rivals have no FedGradNorm; they are given the
FedRep rows. They come with ``pip install -c constraints.txt -e ".[rivals]"``.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
from typing import Any

import record
import torch
from timing import alternate, quartiles, ratio
from work import Work, loss_gap, make_clients, make_ours, make_plain, tiny

import fedgradnorm as fgn

WORKS = [
    Work("3 clients, batch 64, 1 + 1 steps", 3, 64, rounds=10),
    Work("30 clients, batch 32, 1 + 1 steps", 30, 32, 256, rounds=10),
    Work("100 clients, batch 16, 1 + 1 steps", 100, 16, 128, rounds=5),
    Work("FedRep, 12 x 256 rows, 10 head + 1 body epochs", 12, 64, 256, 40, 4, weigh=False),
    Work("FedRep, 12 x 256 rows, 1 head + 1 body epochs", 12, 64, 256, 4, 4, weigh=False),
    Work("Network 1, 5 clients, batch 64", 5, 64, 3000, network="network1", rounds=10),
]
RIVALS = {"pfl": ("pfl",), "flower": ("flwr", "ray")}  # and the modules each needs
COMPARED = 3  # rounds after which losses are compared
TOLERANCE = 2e-3  # beyond this it is not the same training, and times mean nothing
COLUMNS = {
    "work": "work",
    "executor": "executor",
    "ours_s": "ours, s",
    "plain_s": "plain loop, s",
    "pfl_s": "pfl, s",
    "flower_s": "Flower, s",
    "plain_over_ours": "plain / ours",
    "pfl_over_ours": "pfl / ours",
    "flower_over_ours": "Flower / ours",
    "gradnorm_over_equal": "FedGradNorm / equal weights",
}


def measure(work: Work, given: argparse.Namespace) -> record.Row:
    clients = make_clients(work)
    contestants: dict[str, Any] = {
        "ours": make_ours(work, clients),
        "plain": make_plain(work, clients),
    }
    rivals = [] if work.weigh else given.rivals
    if "pfl" in rivals:
        from rival_pfl import PflRounds

        contestants["pfl"] = PflRounds(work, clients)
    for one in contestants.values():
        one.rounds(0, COMPARED)
    ours = contestants["ours"]
    row = {"work": work.name, "executor": ours.engine, "losses": dict(ours.loss)}
    for name, one in contestants.items():
        row |= {} if one is ours else compare(name, ours.loss, one.loss)
    runs = {name: one.rounds for name, one in contestants.items()}
    times = alternate(runs, work.rounds, given.repeats, COMPARED)
    for name, values in times.items():
        row[f"{name}_s"] = statistics.median(values)
        if name != "ours":
            row[f"{name}_over_ours"] = ratio(values, times["ours"])
    if "flower" in rivals:
        row |= flower(work, row, given)
    return row


def compare(name: str, ours: dict[str, float], theirs: dict[str, float]) -> record.Row:
    """How far a contestant's losses are from ours; it ends here if that is too far."""
    gap = loss_gap(ours, theirs)
    if not gap <= TOLERANCE:
        raise SystemExit(f"{name}: losses differ by {gap:.1e}: not the same work, so not timed")
    return {f"{name}_loss_gap": gap}


def flower(work: Work, row: record.Row, given: argparse.Namespace) -> record.Row:
    """Flower's simulation, both ways to share out the threads; the faster one counts."""
    import rival_flower

    threads, best = torch.get_num_threads(), None
    for cpus in sorted({1, threads}):
        found = rival_flower.measure(work, COMPARED + given.repeats, threads, cpus)
        gap = compare("flower", row["losses"], found["losses"][COMPARED - 1])
        seconds = statistics.median(found["seconds"][COMPARED - 1 :])
        print(f"  Flower, {cpus} threads a client: {seconds:.3f} s", file=sys.stderr, flush=True)
        if best is None or seconds < best["flower_s"]:
            best = {"flower_s": seconds, "flower_threads_a_client": cpus, **gap}
    assert best is not None
    return {**best, "flower_over_ours": best["flower_s"] / row["ours_s"]}


def price(work: Work, pairs: int) -> record.Row:
    """A round of FedGradNorm over one with equal weights, in the same engine."""
    clients = make_clients(work)
    both = {"equal": fgn.Equal(), "gradnorm": fgn.GradNorm()}
    made = {name: make_ours(work, clients, weighting) for name, weighting in both.items()}
    assert made["equal"].engine == made["gradnorm"].engine
    times = alternate({name: one.rounds for name, one in made.items()}, work.rounds, pairs)
    above, below = times["gradnorm"], times["equal"]
    return {
        "gradnorm_over_equal": ratio(above, below),
        "gradnorm_over_equal_quartiles": quartiles(above, below),
        "gradnorm_over_equal_pairs": pairs,
    }


def choose_rivals(names: list[str] | None) -> list[str]:
    """Those asked for, which must be there; else those that are."""
    here = [
        name
        for name, modules in RIVALS.items()
        if all(importlib.util.find_spec(module) for module in modules)
    ]
    missing = [name for name in RIVALS if name not in here]
    if names is not None and set(names) & set(missing):
        raise SystemExit(f"not installed: {', '.join(missing)}; see benchmarks/speed.py")
    if names is None and missing:
        print(f"left out, not installed: {', '.join(missing)}", file=sys.stderr)
    return here if names is None else names


def main() -> None:
    parser = record.options(__doc__)
    parser.add_argument("--rivals", nargs="*", choices=list(RIVALS), help="none, or these")
    parser.add_argument("--pairs", type=int, default=15, help="for the price of the weights")
    given = parser.parse_args()
    record.begin(given)
    given.rivals = choose_rivals(given.rivals)
    target, here, rows = given.out / "speed.json", record.about(), []
    before = record.earlier(target, here, given)
    for work in WORKS:
        if record.wanted(work.name, given):
            print(f"{work.name} ...", file=sys.stderr, flush=True)
            size = tiny(work) if given.quick else work
            rows.append(measure(size, given) | price(size, given.pairs))
            print(rows[-1], file=sys.stderr, flush=True)
    rows = record.merge(before, rows, "work", [work.name for work in WORKS])
    record.write(target, here, rows, COLUMNS)


if __name__ == "__main__":
    main()
