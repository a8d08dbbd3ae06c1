"""What one client gains by joining, in a unit that its metric decides, with an interval.

Intervals are by the bootstrap: means of rows that are drawn again and again, always the same way.
Quantiles are taken a little further out than 2.5 and 97.5 %, as far as Student's t is wider than
the normal distribution. Without that the intervals of a dozen rows are too short.
Source: Hesterberg, "What teachers should know about the bootstrap" (2015), section 4.4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

GAINS, LOSES, UNCLEAR = VERDICTS = ("gains", "loses", "no significant difference")
"""What a client's interval shows: it lies above 0, below 0, or contains 0."""


@dataclass(frozen=True)
class HeldOut:
    """One client's held-out rows under both trainings: a number a row, of each."""

    client: str
    task: str
    metric: str
    alone: Floats
    joined: Floats


@dataclass(frozen=True)
class ClientGain:
    """A client's metric alone and joined; ``gain`` is positive where joining is better.

    For a loss it is 100 (alone - joined) / |alone| in percent, for an accuracy the difference in
    points. ``low`` and ``high`` are its 95 % interval.
    """

    client: str
    task: str
    metric: str
    unit: str
    rows: int
    alone: float
    joined: float
    gain: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """Whether the client gains or loses significantly, judged by its test examples."""
        return GAINS if self.low > 0 else LOSES if self.high < 0 else UNCLEAR


def unit_of(metric: str) -> str:
    """A difference in percentage points, or else percent of what the metric is alone."""
    return "points" if metric == "accuracy" else "%"


def gains(alone: Floats, joined: Floats, unit: str) -> Floats:
    """The gains between means; of a loss that is 0 alone it is 0 if it stays so, else -inf."""
    if unit == "points":
        return 100 * (joined - alone)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = 100 * (alone - joined) / np.abs(alone)
    return np.where(alone == joined, 0.0, found)


def client_gains(held: Sequence[HeldOut], seed: int) -> list[ClientGain]:
    """A gain with its interval for each; rows are drawn in pairs, the same for both trainings."""
    drawn: dict[str, Floats] = {}
    pairs = {one.client: _drawn_from(one) for one in held}
    for size in {len(pair) for pair in pairs.values()}:
        # In the order of names: that of the clients decides nothing, not even the last digit.
        alike = sorted(name for name, pair in pairs.items() if len(pair) == size)
        means = resampled_means(np.concatenate([pairs[name] for name in alike], axis=1), seed)
        drawn |= {name: means[:, 2 * i : 2 * i + 2] for i, name in enumerate(alike)}
    return [_gain(one, drawn) for one in held]


def _drawn_from(held: HeldOut) -> Floats:
    """The rows that are drawn from: [rows, alone and joined].

    Few rows may all be right or wrong in both trainings, and then say that nothing can differ. So
    of accuracies two rows are added, one that each training has right where the other is wrong.
    Source: Bonett and Price, "Adjusted Wald confidence interval for a difference of binomial
    proportions based on paired data" (2012).
    """
    rows = np.stack([held.alone, held.joined], axis=1)
    added = np.eye(2) if unit_of(held.metric) == "points" else np.empty((0, 2))
    return np.concatenate([rows, added])


def _gain(held: HeldOut, drawn: Mapping[str, Floats]) -> ClientGain:
    unit, rows = unit_of(held.metric), len(held.alone)
    alone, joined = float(held.alone.mean()), float(held.joined.mean())
    if math.isfinite(alone) and math.isfinite(joined):
        value = float(gains(np.array([alone]), np.array([joined]), unit)[0])
        resampled = drawn[held.client]
        low, high = interval(gains(resampled[:, 0], resampled[:, 1], unit), rows)
    else:  # a training that diverged has lost
        value = math.inf if math.isfinite(joined) else -math.inf
        value = value if math.isfinite(alone) or math.isfinite(joined) else math.nan
        low = high = value
    what = (held.client, held.task, held.metric, unit, rows)
    return ClientGain(*what, alone, joined, value, low, high)


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
