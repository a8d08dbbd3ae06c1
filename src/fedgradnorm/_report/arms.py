"""The arms of a comparison, in the numbers of their seeds, and contests between two of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fedgradnorm._report.samples import Sample, TaskSample, sample_of
from fedgradnorm._stored.groups import Group, unlike
from fedgradnorm.experiments._statistics import (
    delta_m,
    factor,
    first_reach,
    gain,
    holm,
    jain,
    paired_p,
)
from fedgradnorm.tasks._named_metrics import higher_is_better


@dataclass(frozen=True)
class Arm:
    """A group of runs, in the numbers of its seeds."""

    group: Group
    samples: Mapping[int, Sample]

    @property
    def method(self) -> str:
        """The method of all its runs."""
        return self.group.method

    @property
    def point(self) -> Mapping[str, Any]:
        """Where a sweep put them."""
        return self.group.point

    @property
    def own(self) -> Mapping[str, Any]:
        """The settings that make them a variant."""
        return self.group.own

    @property
    def name(self) -> str:
        """What its runs are called."""
        return self.group.label

    @property
    def label(self) -> str:
        """What the arm is called, with a word about unfinished runs."""
        return self.name if self.group.finished else f"{self.name} (unfinished)"

    def tasks(self, task: str) -> dict[int, TaskSample]:
        """One task's numbers by seed."""
        return {seed: s.tasks[task] for seed, s in self.samples.items() if task in s.tasks}


def arms_of(groups: Sequence[Group]) -> list[Arm]:
    """The groups with their numbers, in their order."""
    return [Arm(one, {seed: sample_of(run) for seed, run in one.seeds.items()}) for one in groups]


def partner(arm: Arm, method: str, arms: Sequence[Arm]) -> Arm | None:
    """The arm of ``method`` on the same data, at as much of the same point as that method feels.

    The one made with the same settings, if there is one. Among several, the method as it is, else
    its first variant, the same for all.
    """
    fitting = [
        other
        for other in arms
        if other.method == method
        and other.point.items() <= dict(arm.point).items()
        and (other is arm or arm.group.same_data(other.group))
    ]
    if arm.method != method:
        alike = [other for other in fitting if not unlike([arm.group, other.group])]
        fitting = alike or fitting
    return next((other for other in fitting if not other.own), fitting[0] if fitting else None)


@dataclass(frozen=True)
class Measure:
    """What methods are judged by: the training loss at the end, or the held-out metric."""

    name: str

    def of(self, task: TaskSample) -> float:
        """Its value."""
        return task.loss if self.name == "loss" else task.score

    def known(self, task: TaskSample) -> bool:
        """Whether the client has it: one that held nothing out has no held-out metric."""
        return self.name == "loss" or bool(task.held_out)

    def higher(self, task: TaskSample) -> bool:
        """Whether more of it is better."""
        return self.name != "loss" and higher_is_better(task.metric)


LOSS, SCORE = Measure("loss"), Measure("score")


class Contest:
    """An arm against a baseline, seed by seed, over the tasks that both have."""

    def __init__(self, arm: Arm, base: Arm, tasks: Sequence[str]) -> None:
        self.base = base
        self.seeds = [seed for seed in arm.samples if seed in base.samples]
        self.pairs: dict[str, list[tuple[TaskSample, TaskSample]]] = {}
        for task in tasks:
            ours, theirs = arm.tasks(task), base.tasks(task)
            both = [(ours[s], theirs[s]) for s in self.seeds if s in ours and s in theirs]
            if both:
                self.pairs[task] = both

    def measured(self, measure: Measure) -> dict[str, list[tuple[TaskSample, TaskSample]]]:
        """The pairs of every task that has this measure, and for which it is defined."""
        return {
            task: both
            for task, both in self.pairs.items()
            if all(measure.known(one) for pair in both for one in pair)
            and not all(math.isnan(measure.of(one)) for pair in both for one in pair)
        }

    def p_values(self, measure: Measure) -> dict[str, float]:
        """p of the paired t-test by task, corrected after Holm for the number of tasks."""
        pairs = self.measured(measure)
        raw = [
            paired_p([measure.of(a) for a, _ in both], [measure.of(b) for _, b in both])
            for both in pairs.values()
        ]
        return dict(zip(pairs, holm(raw), strict=True))

    def gains(self, measure: Measure) -> dict[str, list[float]]:
        """Relative gains in percent by task, one per seed."""
        pairs = self.measured(measure)
        return {task: [_gain(measure, a, b) for a, b in both] for task, both in pairs.items()}

    def delta_m(self, measure: Measure) -> list[float]:
        """Delta_m of each seed."""
        return [delta_m(list(gains)) for gains in zip(*self.gains(measure).values(), strict=False)]

    def worst(self, measure: Measure) -> tuple[str, float]:
        """The task with the smallest mean gain, and that gain."""
        means = {task: fmean(gains) for task, gains in self.gains(measure).items()}
        usable = {task: mean for task, mean in means.items() if math.isfinite(mean)}
        if not usable:
            return "-", math.nan
        return min(usable.items(), key=lambda item: item[1])

    def spread(self, measure: Measure) -> list[float]:
        """Jain's index over tasks of how many times better each is, one per seed."""
        factors = [
            [factor(measure.of(a), measure.of(b), higher=measure.higher(a)) for a, b in both]
            for both in self.measured(measure).values()
        ]
        return [jain(list(one)) for one in zip(*factors, strict=False)]

    def epochs_to_reach(self, task: str) -> list[float]:
        """Per seed, the first epoch with a training loss no higher than the baseline's last."""
        return [first_reach(a.epochs, a.losses, b.loss) for a, b in self.pairs.get(task, [])]


def _gain(measure: Measure, ours: TaskSample, theirs: TaskSample) -> float:
    return gain(measure.of(ours), measure.of(theirs), higher=measure.higher(ours))
