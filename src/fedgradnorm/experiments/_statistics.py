"""What sums up a comparison over seeds and tasks: intervals, tests, gains and fairness.

Gains are signed so that positive is better. With v the variant's value and b the baseline's, a loss
or error has g = (b - v) / |b| and a score g = (v - b) / |b|, in percent.

Seeds that split one data set again and again share most of their training examples, so their
results vary less than those of new data would. ``overlap`` is the size of the test split relative
to the training split, and widens the standard error from sqrt(s^2 / n) to
sqrt(s^2 (1 / n + overlap)).
Source: Nadeau and Bengio, "Inference for the generalization error" (2003), section 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Any

import numpy as np

from fedgradnorm._extras import needed

LEVEL = 0.05
"""A difference is significant if its corrected p-value is below this."""


def _scipy_stats() -> Any:
    with needed("report", "an interval or a test over seeds"):
        from scipy import stats
    return stats


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and the half width of its 95% interval (NaN from a single seed)."""

    mean: float
    half: float
    count: int

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half


UNKNOWN = Estimate(math.nan, math.nan, 0)


def estimate(values: Sequence[float], overlap: float = 0.0) -> Estimate:
    """The mean of ``values`` and its 95% interval by Student's t.

    >>> e = estimate([1.0, 2.0, 3.0])
    >>> round(e.mean, 3), round(e.half, 3)
    (2.0, 2.484)
    >>> round(estimate([1.0, 2.0, 3.0], overlap=1 / 3).half, 3)
    3.513
    """
    count = len(values)
    if count == 0:
        return UNKNOWN
    if count < 2 or not np.isfinite(values).all():  # a diverged seed has no spread
        return Estimate(sum(values) / count, math.nan, count)
    error = float(np.std(values, ddof=1)) * math.sqrt(1 / count + overlap)
    half = _t_quantile(count - 1) * error
    return Estimate(fmean(values), half, count)


@cache
def _t_quantile(freedom: int) -> float:
    return float(_scipy_stats().t.ppf(0.975, freedom))


def paired_p(ours: Sequence[float], theirs: Sequence[float], overlap: float = 0.0) -> float:
    """Two-sided p of the paired t-test; NaN for fewer than two pairs or a value that is not finite.

    Equal differences, as accuracies on few examples have, give t nothing to divide by and say
    little about other seeds. They get the p of the sign test, 2^(1 - n).

    >>> round(paired_p([1.0, 2.0, 4.0], [2.0, 4.0, 5.0]), 4)
    0.0572
    """
    with np.errstate(invalid="ignore"):  # both may be infinite
        differences = np.subtract(ours, theirs)
    if len(differences) < 2 or not np.isfinite(differences).all():
        return math.nan
    count, noise = len(differences), 1e-12 * np.abs([ours, theirs]).max()
    if np.ptp(differences) <= noise:
        return 1.0 if abs(differences[0]) <= noise else 2.0 ** (1 - count)
    t = differences.mean() / (differences.std(ddof=1) * math.sqrt(1 / count + overlap))
    return float(2 * _scipy_stats().t.sf(abs(t), count - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction for testing all of these at once; NaN stays out of it.

    The i-th smallest of m is multiplied by m - i + 1, and none becomes smaller than the one before.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    given = np.asarray(p_values, dtype=float)
    order = np.argsort(given)[: np.isfinite(given).sum()]
    corrected = np.full(len(given), np.nan)
    steps = np.arange(len(order), 0, -1)
    corrected[order] = np.maximum.accumulate(given[order] * steps).clip(max=1)
    return [float(p) for p in corrected]


def gain(value: float, base: float, *, higher: bool = False) -> float:
    """The relative gain over ``base`` in percent; NaN where ``base`` is zero."""
    if base == 0:
        return math.nan
    return 100 * (value - base if higher else base - value) / abs(base)


def first_reach(epochs: Sequence[float], losses: Sequence[float], level: float) -> float:
    """The first epoch at which the loss was at ``level`` or below; NaN if it never was."""
    pairs = zip(epochs, losses, strict=True)
    return next((epoch for epoch, loss in pairs if loss <= level), math.nan)
