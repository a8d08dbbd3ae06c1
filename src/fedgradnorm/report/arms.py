"""The arms of a comparison: a method, or a variant or point of it, with its seeds; contests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from fedgradnorm.experiments.statistics import (
    HIGHER_IS_BETTER,
    delta_m,
    factor,
    first_reach,
    gain,
    holm,
    jain,
    paired_p,
)
from fedgradnorm.report.samples import Sample, TaskSample


@dataclass(frozen=True)
class Arm:
    """Runs that differ in nothing but their seed; ``whole`` if all of them came to their end.

    ``point`` is where a sweep put them, ``own`` the settings that make them a variant.
    """

    method: str
    point: Mapping[str, Any]
    samples: Mapping[int, Sample]
    whole: bool = True
    own: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What the arm is called, with a word about unfinished runs."""
        return self.name if self.whole else f"{self.name} (unfinished)"

    @property
    def name(self) -> str:
        """What its runs are called."""
        return next(iter(self.samples.values())).label

    def tasks(self, task: str) -> dict[int, TaskSample]:
        """One task's numbers by seed."""
        return {seed: s.tasks[task] for seed, s in self.samples.items() if task in s.tasks}


def arms_of(samples: Sequence[Sample]) -> list[Arm]:
    """Arms in the order of their first runs; unfinished runs count only where there are no others.

    A run that stopped half way would drag the mean of the finished ones toward its own half.
    """
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        if sample.tasks:
            found.setdefault(sample.label, []).append(sample)
    arms = []
    for mine in found.values():
        whole = [sample for sample in mine if sample.finished]
        by_seed = {sample.seed: sample for sample in whole or mine}
        arms.append(Arm(mine[0].method, mine[0].point, by_seed, bool(whole), mine[0].own))
    return arms


def partner(arm: Arm, method: str, arms: Sequence[Arm]) -> Arm | None:
    """The arm of ``method`` at the same point, or at as much of it as that method feels.

    As it is, if it took part; else its first variant, the same for all.
    """
    fitting = [
        other
        for other in arms
        if other.method == method and other.point.items() <= dict(arm.point).items()
    ]
    return next((other for other in fitting if not other.own), fitting[0] if fitting else None)


@dataclass(frozen=True)
class Measure:
    """What methods are judged by: the training loss at the end, or the held-out metric."""

    name: str

    def of(self, task: TaskSample) -> float:
        """Its value."""
        return task.loss if self.name == "loss" else task.score

    def higher(self, task: TaskSample) -> bool:
        """Whether more of it is better."""
        return self.name != "loss" and task.metric in HIGHER_IS_BETTER


LOSS, SCORE = Measure("loss"), Measure("score")


class Contest:
    """An arm against a baseline, seed by seed, over the tasks that both have."""

    def __init__(self, arm: Arm, base: Arm, tasks: Sequence[str]) -> None:
        self.seeds = [seed for seed in arm.samples if seed in base.samples]
        self.pairs: dict[str, list[tuple[TaskSample, TaskSample]]] = {}
        for task in tasks:
            ours, theirs = arm.tasks(task), base.tasks(task)
            both = [(ours[s], theirs[s]) for s in self.seeds if s in ours and s in theirs]
            if both:
                self.pairs[task] = both

    def p_values(self, measure: Measure) -> dict[str, float]:
        """p of the paired t-test by task, corrected after Holm for the number of tasks."""
        raw = [
            paired_p([measure.of(a) for a, _ in both], [measure.of(b) for _, b in both])
            for both in self.pairs.values()
        ]
        return dict(zip(self.pairs, holm(raw), strict=True))

    def gains(self, measure: Measure) -> dict[str, list[float]]:
        """Relative gains in percent by task, one per seed."""
        return {task: [_gain(measure, a, b) for a, b in both] for task, both in self.pairs.items()}

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
            for both in self.pairs.values()
        ]
        return [jain(list(one)) for one in zip(*factors, strict=False)]

    def epochs_to_reach(self, task: str) -> list[float]:
        """Per seed, the first epoch with a training loss no higher than the baseline's last."""
        return [first_reach(a.epochs, a.losses, b.loss) for a, b in self.pairs.get(task, [])]


def _gain(measure: Measure, ours: TaskSample, theirs: TaskSample) -> float:
    return gain(measure.of(ours), measure.of(theirs), higher=measure.higher(ours))
