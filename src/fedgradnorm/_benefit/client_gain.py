"""What one client gains by joining, in a unit that its metric decides, with an interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedgradnorm._benefit.bootstrap import interval, resampled_means

if TYPE_CHECKING:
    from fedgradnorm._benefit.bootstrap import Floats

UNITS = {"accuracy": "points"}
"""A metric's unit: a difference in percentage points, or else percent of what it is alone."""

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
        return verdict(self.low, self.high)


def verdict(low: float, high: float) -> str:
    """The verdict that the interval of a gain allows.

    >>> verdict(1.0, 2.0), verdict(-1.0, 2.0), verdict(-3.0, -2.0)
    ('gains', 'no significant difference', 'loses')
    """
    return GAINS if low > 0 else LOSES if high < 0 else UNCLEAR


def unit_of(metric: str) -> str:
    return UNITS.get(metric, "%")


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
