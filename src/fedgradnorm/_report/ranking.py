"""Arms in order of their Delta_m, what their servers see, and which of many to draw in colour."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from fedgradnorm._methods import METHODS
from fedgradnorm._report.arms import LOSS, Arm, Measure
from fedgradnorm._report.comparison import Comparison
from fedgradnorm._stored.summary import Estimate, estimate
from fedgradnorm.weighting import Needs

MANY = 8
"""More arms than this are ranked in tables and figures, and no longer a colour each."""

SIGHTS = ("nothing", "sizes", "losses", "losses, norms", "Gram matrix", "gradients")
"""What a server may see of the clients beside the sum of their updates, from little to much."""

_FAMILY = ("fedgradnorm", "fedgradnorm-direct")


@dataclass(frozen=True)
class Rank:
    """An arm with its Delta_m and its mean gain on each task, both in percent."""

    arm: Arm
    delta: Estimate
    gains: Mapping[str, float]
    base: bool = False


def ranking(comparison: Comparison, measure: Measure = LOSS) -> list[Rank]:
    """The best Delta_m first; the baseline where zero is, arms without a number at the end."""
    ranks = [_rank(comparison, arm, measure) for arm in comparison.arms]
    return sorted(ranks, key=lambda rank: -rank.delta.mean if _known(rank) else math.inf)


def standouts(comparison: Comparison, count: int = MANY) -> list[str]:
    """Labels to draw in colour: the baseline, FedGradNorm and the best, in the arms' order."""
    best = [rank for rank in ranking(comparison) if _known(rank)]
    first = [rank for rank in best if rank.base]
    ours = [rank for name in _FAMILY for rank in best if rank.arm.method == name]
    chosen = list(dict.fromkeys(rank.arm.label for rank in (*first, *ours, *best)))[:count]
    return [arm.label for arm in comparison.arms if arm.label in chosen]


def sight(method: str) -> str:
    """Which of :data:`SIGHTS` the method's server needs; empty for a method of somebody's own.

    >>> sight("fedrep"), sight("fedgradnorm"), sight("mgda"), sight("my own")
    ('nothing', 'losses, norms', 'Gram matrix', '')
    """
    known = METHODS.get(method)
    if known is None:
        return ""
    if Needs.GRADIENT in known.needs:
        return "gradients"
    if Needs.GRAM in known.needs:
        return "Gram matrix"
    if Needs.NORM in known.needs:
        return "losses, norms"
    if Needs.LOSS in known.needs:
        return "losses"
    sizes = Needs.SIZE in known.needs or known.settings.get("aggregate") == "by_size"
    return "sizes" if sizes else "nothing"


def uneven(comparison: Comparison) -> bool:
    """Whether arms differ in their number of seeds."""
    return len({len(arm.samples) for arm in comparison.arms}) > 1


def _rank(comparison: Comparison, arm: Arm, measure: Measure) -> Rank:
    contest = comparison.against(arm, comparison.baseline)
    if contest is None and arm.method == comparison.baseline:
        return Rank(arm, Estimate(0.0, math.nan, len(arm.samples)), {}, base=True)
    gains = contest.gains(measure) if contest is not None else {}
    values = contest.delta_m(measure) if contest is not None else []
    delta = estimate(values) if values else Estimate(math.nan, math.nan, 0)
    return Rank(arm, delta, {task: fmean(each) for task, each in gains.items()})


def _known(rank: Rank) -> bool:
    return not math.isnan(rank.delta.mean)
