"""Every client's gain over training alone, seed by seed, from the run folders of a comparison.

A client may end with one of three things: the network that it shared, a copy of it that it tuned,
or what does best on its own validation rows: one of these two, or what it trained alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal, get_args

from fedgradnorm._methods import LOCAL
from fedgradnorm._report.arms import Arm, partner
from fedgradnorm._report.comparison import Comparison
from fedgradnorm._report.samples import TaskSample
from fedgradnorm._runs.history import UNTUNED
from fedgradnorm._stored.summary import Estimate, estimate
from fedgradnorm.experiments._statistics import gain, paired_p
from fedgradnorm.tasks._named_metrics import MAIN_METRICS, higher_is_better

End = Literal["shared", "tuned", "chosen"]
ENDS: tuple[End, ...] = get_args(End)

PREFERRED = ("auc", *MAIN_METRICS)
"""The metric by which a client's gain is taken: the first of these that it has."""


@dataclass(frozen=True)
class Gains:
    """One arm, ended in one way, against training alone.

    ``clients`` holds each client's relative gain in percent, a number per seed, more being better.
    """

    data: str
    arm: Arm
    end: End
    clients: Mapping[str, Sequence[float]]

    @property
    def seeds(self) -> list[float]:
        """The mean over clients, by seed."""
        return [fmean(column) for column in zip(*self.clients.values(), strict=True)]

    @property
    def mean(self) -> Estimate:
        """The mean over clients and seeds, with its interval over seeds."""
        return estimate(self.seeds)

    @property
    def p(self) -> float:
        """The p of the t-test over seeds that the mean gain is zero."""
        return paired_p(self.seeds, [0.0] * len(self.seeds))

    def share(self, sign: int) -> float:
        """The share of clients whose interval over seeds lies above (+1) or below (-1) zero."""
        found = [estimate(values) for values in self.clients.values()]
        return fmean(one.half < sign * one.mean for one in found)

    @property
    def worst(self) -> tuple[str, float]:
        """The client with the smallest mean gain, and that gain."""
        means = {name: fmean(values) for name, values in self.clients.items()}
        return min(means.items(), key=lambda item: item[1])

    def by_task(self) -> dict[str, Estimate]:
        """The mean gain of each task's clients, with its interval over seeds."""
        members: dict[str, list[Sequence[float]]] = {}
        for name, values in self.clients.items():
            members.setdefault(self._about(name).get("task", name), []).append(values)
        return {
            task: estimate([fmean(column) for column in zip(*rows, strict=True)])
            for task, rows in members.items()
        }

    def size(self, client: str) -> int:
        """How many rows a client trained on."""
        return int(self._about(client).get("size", 0))

    def _about(self, client: str) -> Mapping[str, Any]:
        known = self.arm.group.whole[0].part("clients").get(client)
        return known if isinstance(known, dict) else {}


def all_gains(comparisons: Mapping[str, Comparison]) -> list[Gains]:
    """The gains of every arm of every comparison that has runs of training alone beside it."""
    return [
        found
        for data, comparison in comparisons.items()
        for arm in comparison.arms
        for found in _of_arm(data, arm, comparison)
    ]


def _of_arm(data: str, arm: Arm, comparison: Comparison) -> Iterator[Gains]:
    base = partner(arm, LOCAL, comparison.arms)
    if base is None or base is arm:
        return
    for end in ENDS:
        clients = {
            task: values
            for task in comparison.tasks
            if (values := _client(arm.tasks(task), base.tasks(task), end))
        }
        if clients and len({len(values) for values in clients.values()}) == 1:
            yield Gains(data, arm, end, clients)


def _client(
    ours: Mapping[int, TaskSample], alone: Mapping[int, TaskSample], end: End
) -> list[float]:
    """A client's gains by seed; empty where it does not end in this way in all of them."""
    both = [(ours[seed], alone[seed]) for seed in ours if seed in alone]
    found = [_gain(one, other, end) for one, other in both]
    return [] if any(map(math.isnan, found)) else found


def _gain(ours: TaskSample, alone: TaskSample, end: End) -> float:
    metric = next((m for m in PREFERRED if ("test", m) in alone.values), "loss")
    base = alone.values.get(("test", metric), math.nan)
    value = _value(ours, alone, metric, end)
    return gain(value, base, higher=higher_is_better(metric)) if value != base else 0.0


def _value(ours: TaskSample, alone: TaskSample, metric: str, end: End) -> float:
    """The metric on held-out rows of what the client ends with; NaN where there is no such end."""
    tuned = (f"{UNTUNED}test", metric) in ours.values
    shared = f"{UNTUNED}" if tuned else ""
    if end == "shared":
        return ours.values.get((f"{shared}test", metric), math.nan)
    if end == "tuned":
        return ours.values.get(("test", metric), math.nan) if tuned else math.nan
    candidates = [(ours, shared), (ours, ""), (alone, "")]
    losses = [
        one.values.get((f"{before}validation", "loss"), math.nan) for one, before in candidates
    ]
    usable = [k for k, loss in enumerate(losses) if math.isfinite(loss)]
    if not usable:
        return math.nan
    one, before = candidates[min(usable, key=losses.__getitem__)]
    return one.values.get((f"{before}test", metric), math.nan)
