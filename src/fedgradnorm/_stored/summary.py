"""A run in a few numbers per task, and their mean and interval over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from fedgradnorm._benefit.bootstrap import t_quantile

Row = dict[str, Any]

MAIN_METRICS = ("accuracy", "nme", "mae")
"""The metric shown for a task: the first of these that it has."""


@dataclass(frozen=True)
class TaskResult:
    """How one client did in one run; the metric is of the split that ``split`` names."""

    client: str
    first_loss: float
    last_loss: float
    metric: str
    value: float
    split: str
    weight: float


def results(rows: Iterable[Row]) -> list[TaskResult]:
    """One result per client from a run's history, in the order of the clients."""
    evaluated: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        if row["split"] != "batch":
            evaluated.setdefault(row["client"], {}).setdefault(row["split"], []).append(row)
    return [_result(client, splits) for client, splits in evaluated.items() if "train" in splits]


def _result(client: str, splits: dict[str, list[Row]]) -> TaskResult:
    split = next(name for name in ("test", "validation", "train") if name in splits)
    first, last, shown = splits["train"][0], splits["train"][-1], splits[split][-1]
    metric = next((name for name in MAIN_METRICS if name in shown), "loss")
    return TaskResult(
        client, first["loss"], last["loss"], metric, shown[metric], split, last["weight"]
    )


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and the half width of its 95% interval (NaN from a single seed)."""

    mean: float
    half: float
    count: int


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and 95% interval by Student's t.

    >>> e = estimate([1.0, 2.0, 3.0])
    >>> round(e.mean, 3), round(e.half, 3)
    (2.0, 2.484)
    """
    count = len(values)
    if count < 2 or not all(map(math.isfinite, values)):  # a diverged seed has no spread
        return Estimate(sum(values) / count, math.nan, count)
    half = t_quantile(count - 1) * stdev(values) / math.sqrt(count)
    return Estimate(fmean(values), half, count)
