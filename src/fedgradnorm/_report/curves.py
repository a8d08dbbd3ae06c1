"""Histories as curves: the mean over seeds and the range they span, thinned for drawing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgradnorm._round.reports import KEYS
from fedgradnorm._runs.csv_table import Row
from fedgradnorm._runs.reader import around
from fedgradnorm.experiments._groups import Group

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

POINTS = 150  # a curve longer than this is drawn through averages of neighbouring rounds
DIGITS = 4
Key = tuple[str, str, str]
"""Client, split and column."""

Series = dict[Key, dict[int, tuple[float, float]]]
"""Epoch and value by round, of every column."""


@dataclass(frozen=True)
class Band:
    """A curve over epochs with the lowest and highest seed around it; gaps are NaN."""

    epoch: Floats
    mean: Floats
    low: Floats
    high: Floats
    seeds: int
    spans: bool = False

    def json(self) -> dict[str, Any]:
        """Plain rounded numbers, and the band if there is one."""
        points = {"x": numbers(self.epoch, DIGITS + 2), "y": numbers(self.mean)}
        if self.seeds > 1 or self.spans:
            points |= {"lo": numbers(self.low), "hi": numbers(self.high)}
        return points


def numbers(values: Iterable[float], digits: int = DIGITS) -> list[float | None]:
    """Rounded numbers; one that is not finite becomes a gap, since JSON has no name for it.

    >>> numbers([0.123456, float("nan"), 1234567.0])
    [0.1235, None, 1235000]
    """
    rounded = (float(f"{v:.{digits}g}") if math.isfinite(v) else None for v in values)
    return [int(v) if v is not None and v.is_integer() else v for v in rounded]


@dataclass(frozen=True)
class Curves:
    """The curves of one variant, of its finished seeds together."""

    whole: list[Series]
    around: Mapping[str, tuple[str, str]]

    def band(self, key: Key) -> Band | None:
        """The mean over the seeds that have this column; None if none has.

        Of many clients there is a curve per task: the median, with the best and worst tenths
        ``around`` it.
        """
        if not self.around:
            return band([series[key] for series in self.whole if key in series])
        if key[0] not in self.around:
            return None
        middle, *ends = (
            band([series[name, *key[1:]] for series in self.whole if (name, *key[1:]) in series])
            for name in (key[0], *self.around[key[0]])
        )
        known = [end.mean for end in ends if end is not None]
        if middle is None or not known:
            return middle
        low, high = np.fmin.reduce(known), np.fmax.reduce(known)
        return replace(middle, low=low, high=high, spans=True)

    def columns(self, split: str) -> set[str]:
        return {key[2] for series in self.whole for key in series if key[1] == split}


def curves_of(group: Group) -> Curves:
    whole = [series_of(run.rows) for run in group.whole]
    return Curves(whole, {k: v for run in group.whole for k, v in around(run).items()})


def series_of(rows: Sequence[Row]) -> Series:
    """Every column of a history."""
    found: Series = {}
    for row in rows:
        for column, value in row.items():
            if column not in KEYS:
                key = (row["client"], row["split"], column)
                found.setdefault(key, {})[row["round"]] = (row["epoch"], value)
    return found


def band(runs: Sequence[Mapping[int, tuple[float, float]]]) -> Band | None:
    """Mean, lowest and highest over runs, round by round, thinned to :data:`POINTS`.

    A thinned point averages neighbouring rounds; the first and the last are kept as they are.
    """
    rounds = sorted({number for run in runs for number in run})
    epochs = {number: epoch for run in runs for number, (epoch, _) in run.items()}
    missing = (0, math.nan)
    values = np.array([[run.get(n, missing)[1] for n in rounds] for run in runs], dtype=float)
    if not np.isfinite(values).any():
        return None
    values[~np.isfinite(values)] = np.nan
    inside = np.arange(1, len(rounds) - 1)
    parts = np.array_split(inside, min(len(inside), POINTS - 2)) if len(inside) else []
    bins: list[Any] = [[0], *parts, *([[len(rounds) - 1]] if len(rounds) > 1 else [])]
    thin = np.stack([_mean(values[:, part], 1) for part in bins], axis=1)
    epoch = np.array([np.mean([epochs[rounds[i]] for i in part]) for part in bins])
    low, high = np.fmin.reduce(thin, axis=0), np.fmax.reduce(thin, axis=0)
    return Band(epoch, _mean(thin, 0), low, high, len(runs))


def _mean(values: Floats, axis: int) -> Floats:
    """The mean of what is there; NaN where nothing is."""
    there = np.isfinite(values)
    total, count = np.where(there, values, 0.0).sum(axis=axis), there.sum(axis=axis)
    answer: Floats = np.full(count.shape, np.nan)
    np.divide(total, count, out=answer, where=count > 0)
    return answer
