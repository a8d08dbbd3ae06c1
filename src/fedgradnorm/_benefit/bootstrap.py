"""Intervals by the bootstrap: means of rows that are drawn again and again, always the same way.

Quantiles are taken a little further out than 2.5 and 97.5 %, as far as Student's t is wider than
the normal distribution. Without that the intervals of a dozen rows are too short.
Source: Hesterberg, "What teachers should know about the bootstrap" (2015), section 4.4.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

DRAWS = 2000
AT_ONCE = 2**22  # rows drawn in one go


def resampled_means(columns: Floats, seed: int, draws: int = DRAWS) -> Floats:
    """Means of each column [rows, columns] over ``draws`` samples of its rows: [draws, columns].

    All columns have the same rows drawn. Which these are depends on the seed and their number.
    """
    rows = len(columns)
    chance = np.random.default_rng([seed, rows])
    parts, block = [], max(1, AT_ONCE // rows)
    for first in range(0, draws, block):
        count = min(block, draws - first)
        drawn = chance.integers(rows, size=(count, rows))
        places = (drawn + rows * np.arange(count)[:, None]).ravel()
        times = np.bincount(places, minlength=count * rows).reshape(count, rows)
        with np.errstate(invalid="ignore"):  # a training that diverged has infinite losses
            parts.append(times @ columns / rows)
    return np.concatenate(parts)


def interval(values: Floats, rows: int) -> tuple[float, float]:
    """The 95 % interval of a number that was computed from samples of so many rows."""
    if rows < 2:
        return math.nan, math.nan
    level = NormalDist().cdf(-math.sqrt(rows / (rows - 1)) * t_quantile(rows - 1))
    low, high = np.quantile(values, (level, 1 - level), method="nearest")
    return float(low), float(high)


def mean_interval(values: Floats, seed: int) -> tuple[float, float]:
    """The 95 % interval of the mean of these values."""
    return interval(resampled_means(values[:, None], seed)[:, 0], len(values))


_T = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)


def t_quantile(freedom: int) -> float:
    """The 97.5% point of Student's t: a table, then its expansion around the normal one."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = 1.959964
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
