"""What a comparison over seeds and tasks is summed up by; all of it from a few plain numbers.

Gains are in percent, and signed so that more is better. With v the method's value and b the
baseline's, a loss or error has g = (b - v) / b, an accuracy g = (v - b) / b.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev


def paired_p(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Two-sided p of the paired t-test; NaN from fewer than two pairs or where one is not finite.

    >>> round(paired_p([1.0, 2.0, 4.0], [2.0, 4.0, 5.0]), 4)
    0.0572
    """
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    if len(differences) < 2 or not all(map(math.isfinite, differences)):
        return math.nan
    mean, spread = fmean(differences), stdev(differences)
    if spread == 0:
        return 0.0 if mean else 1.0
    return student_p(mean / (spread / math.sqrt(len(differences))), len(differences) - 1)


def student_p(t: float, freedom: int) -> float:
    """P(|T| >= |t|) for Student's T: the incomplete beta I_x(v/2, 1/2), x = v / (v + t^2)."""
    if math.isinf(t):
        return 0.0
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction for testing all of these at once; NaN stays out of it.

    The i-th smallest of m is multiplied by m - i + 1, and none gets below one before it.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = sorted((p, i) for i, p in enumerate(p_values) if not math.isnan(p))
    corrected = [math.nan] * len(p_values)
    highest = 0.0
    for rank, (p, i) in enumerate(order):
        highest = max(highest, min(1.0, p * (len(order) - rank)))
        corrected[i] = highest
    return corrected


def gain(value: float, base: float, *, higher: bool = False) -> float:
    """Relative gain over the baseline in percent; NaN where the baseline is zero."""
    if base == 0:
        return math.nan
    return 100 * (value - base if higher else base - value) / abs(base)


def delta_m(gains: Sequence[float]) -> float:
    """Delta_m: the mean over tasks of the relative gains, in percent, more being better.

    Source: Maninis et al., "Attentive single-tasking of multiple tasks" (2019).
    """
    return fmean(gains) if gains else math.nan


def factor(value: float, base: float, *, higher: bool = False) -> float:
    """How many times better than the baseline: b / v for a loss, v / b for an accuracy."""
    top, bottom = (value, base) if higher else (base, value)
    return top / bottom if bottom > 0 else math.nan


def jain(values: Sequence[float]) -> float:
    """Jain's fairness index (sum x)^2 / (n sum x^2) of values >= 0: 1 if all are equal, else less.

    >>> jain([2.0, 2.0]), jain([1.0, 0.0])
    (1.0, 0.5)
    """
    squares = sum(x * x for x in values)
    if not values or not squares > 0 or min(values) < 0:
        return math.nan
    return sum(values) ** 2 / (len(values) * squares)


def first_reach(epochs: Sequence[float], losses: Sequence[float], level: float) -> float:
    """The first epoch at which the loss was at ``level`` or below; NaN if it never was."""
    pairs = zip(epochs, losses, strict=True)
    return next((epoch for epoch, loss in pairs if loss <= level), math.nan)


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b) by its continued fraction."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side
        return 1 - _incomplete_beta(b, a, 1 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(log_front + a * math.log(x) + b * math.log1p(-x)) / a
    return front * _beta_fraction(a, b, x)


def _beta_fraction(a: float, b: float, x: float) -> float:
    """1/(1 + d1/(1 + d2/(1 + ...))) by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1 / ((1 - (a + b) * x / (a + 1)) or tiny)
    value = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        before = value
        for term in (even, odd):
            d = 1 / ((1 + term * d) or tiny)
            c = (1 + term / c) or tiny
            value *= c * d
        if abs(value - before) <= 1e-15 * abs(value):
            break
    return value
