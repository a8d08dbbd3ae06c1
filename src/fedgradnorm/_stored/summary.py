"""A run in a few numbers per task, and their mean and interval over seeds."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from fedgradnorm._benefit.bootstrap import t_quantile
from fedgradnorm.tasks._named_metrics import MAIN_METRICS

Row = dict[str, Any]


@dataclass(frozen=True)
class Judged:
    """How a client is judged: by the metric that its task named, beside the trivial answer."""

    metric: str | None = None
    trivial: Mapping[str, float] = field(default_factory=dict)

    def choose(self, have: Container[str]) -> str:
        """The metric to show, of those that there are."""
        named = (self.metric,) if self.metric else ()
        return next((name for name in (*named, *MAIN_METRICS) if name in have), "loss")


NOT_JUDGED = Judged()


def judged(clients: Mapping[str, Any]) -> dict[str, Judged]:
    """The same of all clients, from what run.json says of them."""
    found = {}
    for name, info in clients.items():
        if isinstance(info, Mapping):
            metric, scores = info.get("metric"), info.get("trivial")
            table = scores if isinstance(scores, Mapping) else {}
            known = {k: float(v) for k, v in table.items() if isinstance(v, (int, float))}
            found[name] = Judged(metric if isinstance(metric, str) else None, known)
    return found


@dataclass(frozen=True)
class TaskResult:
    """How one client did in one run; the metric is of the split that ``split`` names.

    ``trivial`` is what the most frequent class, or the mean, scores there; NaN if unknown.
    """

    client: str
    first_loss: float
    last_loss: float
    metric: str
    value: float
    split: str
    weight: float
    trivial: float = math.nan


def results(rows: Iterable[Row], about: Mapping[str, Judged] | None = None) -> list[TaskResult]:
    """One result per client from a run's history, in the order of the clients."""
    evaluated: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        if row["split"] != "batch":
            evaluated.setdefault(row["client"], {}).setdefault(row["split"], []).append(row)
    return [
        _result(client, splits, (about or {}).get(client, NOT_JUDGED))
        for client, splits in evaluated.items()
        if "train" in splits
    ]


def _result(client: str, splits: dict[str, list[Row]], by: Judged) -> TaskResult:
    split = next(name for name in ("test", "validation", "train") if name in splits)
    first, last, shown = splits["train"][0], splits["train"][-1], splits[split][-1]
    metric = by.choose(shown)
    losses, trivial = (first["loss"], last["loss"]), by.trivial.get(metric, math.nan)
    return TaskResult(client, *losses, metric, shown[metric], split, last["weight"], trivial)


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
