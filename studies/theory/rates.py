"""Linear rates: measured on a sequence of errors, and predicted from a matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgradnorm._errors import DataError

BLOCKS = 8
STUDENT = 2.365  # two-sided 95% point of Student's t with BLOCKS - 1 degrees of freedom


@dataclass(frozen=True)
class Rate:
    """A factor per round, its 95% interval, and the rounds it was measured over."""

    value: float
    low: float
    high: float
    first: int
    last: int

    def __str__(self) -> str:
        """The rate with half the width of its interval."""
        return f"{self.value:.5f} ± {(self.high - self.low) / 2:.1g}"


def fit_rate(errors: Tensor, top: float = 1e-5, bottom: float = 1e-12) -> Rate:
    """rho of errors_k ~ C rho^k: the slope of log errors between two levels.

    Only rounds with an error between ``top`` and ``bottom`` times the first count: before, faster
    modes are not over; after, it is rounding. The window is cut into eight blocks. Their slopes
    differ where the errors are not a pure exponential, and so give the interval. It is at least the
    difference to the second half of the window, which a slowly vanishing mode makes.
    """
    values = errors / errors[0]
    below = (values < top).nonzero().flatten()
    end = (values < bottom).nonzero().flatten()
    first = int(below[0]) if len(below) else len(values)
    last = int(end[0]) if len(end) else len(values)
    if last - first < 3 * BLOCKS:
        raise DataError(
            f"no rate to be measured: errors lie between {top:g} and {bottom:g} of the first for "
            f"{max(0, last - first)} rounds only; run longer or with smaller steps"
        )
    log = values[first:last].log()
    slope = _slope(log)
    parts = torch.tensor([_slope(part) for part in log.tensor_split(BLOCKS)], dtype=log.dtype)
    drift = abs(_slope(log[len(log) // 2 :]) - slope)
    wide = max(drift, STUDENT * float(parts.std()) / BLOCKS**0.5)
    return Rate(math.exp(slope), math.exp(slope - wide), math.exp(slope + wide), first, last)


def power_law(x: Tensor, y: Tensor) -> float:
    """The exponent a of y ~ C x^a, by least squares of the logarithms."""
    return _slope(y.log(), x.log())


def spectral_radius(matrix: Tensor) -> float:
    """The largest eigenvalue in absolute value."""
    return float(torch.linalg.eigvals(matrix).abs().max())


def _slope(y: Tensor, x: Tensor | None = None) -> float:
    x = torch.arange(len(y), dtype=y.dtype) if x is None else x
    off = x - x.mean()
    return float(off @ (y - y.mean()) / off.square().sum())
