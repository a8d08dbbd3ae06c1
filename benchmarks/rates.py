"""Which learning rate does best on validation rows, by method: from finished runs, as TOML.

    fedgradnorm compare configs/benefit-school.toml seed=100 --seeds 1 --out runs/rates \
        --methods "fedrep lr=0.001,fedrep lr=0.003,fedrep lr=0.01"
    python benchmarks/rates.py runs/rates

A run is judged by the mean over clients of (first - last) / max(first, last) of their validation
losses, the state that was kept being the last, before anybody tunes a copy.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from fedgradnorm._runs.history import UNTUNED
from fedgradnorm._runs.reader import StoredRun, collect


def validation_gain(run: StoredRun) -> float:
    """How much better the kept state is than the start, on validation rows."""
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    for row in run.rows:
        if row["split"] == "validation":
            first.setdefault(row["client"], row["loss"])
        if row["split"] == f"{UNTUNED}validation":
            last[row["client"]] = row["loss"]
    return fmean((first[name] - last[name]) / max(first[name], last[name]) for name in last)


def rates(runs: Sequence[StoredRun]) -> dict[str, dict[float, float]]:
    """The mean gain by method and rate."""
    found: dict[str, dict[float, list[float]]] = {}
    for run in runs:
        rate = run.part("settings")["lr"]
        found.setdefault(run.method, {}).setdefault(rate, []).append(validation_gain(run))
    return {m: {r: fmean(v) for r, v in sorted(of.items())} for m, of in found.items()}


def main(folders: Sequence[str]) -> None:
    runs, _ = collect([Path(folder) for folder in folders])
    for method, gains in rates([run for run in runs if run.finished]).items():
        best = max(gains, key=gains.__getitem__)
        tried = ", ".join(f"{rate:g}: {gain:.4f}" for rate, gain in gains.items())
        print(f"[compare.own.{method}]\ntraining.lr = {best:g}  # {tried}")


if __name__ == "__main__":
    main(sys.argv[1:])
