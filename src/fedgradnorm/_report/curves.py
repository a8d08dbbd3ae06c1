"""Histories as curves: the mean over seeds and the range they span, thinned for drawing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgradnorm._round.reports import KEYS
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


def numbers(values: Iterable[float], digits: int = DIGITS) -> list[float | None]:
    """Rounded numbers; one that is not finite becomes a gap, since JSON has no name for it.

    >>> numbers([0.123456, float("nan"), 1234567.0])
    [0.1235, None, 1235000]
    """
    rounded = (float(f"{v:.{digits}g}") if math.isfinite(v) else None for v in values)
    return [int(v) if v is not None and v.is_integer() else v for v in rounded]


@dataclass(frozen=True)
class Curves:
    """The curves of one variant, of its finished seeds together.

    Of many clients there is a curve per task: the median, with the best and worst tenths ``around``
    it.
    """

    whole: list[Series]
    around: Mapping[str, tuple[str, str]]

    def points(self, key: Key) -> dict[str, Any] | None:
        """The mean over the seeds that have this column, and its range; None if none has."""
        if self.around and key[0] not in self.around:
            return None
        middle, *ends = (
            thinned([series[name, *key[1:]] for series in self.whole if (name, *key[1:]) in series])
            for name in (key[0], *self.around.get(key[0], ()))
        )
        if middle is None:
            return None
        epochs, values = middle
        found = {"x": numbers(epochs, DIGITS + 2), "y": numbers(_mean(values, 0))}
        spread = [_mean(end[1], 0) for end in ends if end] or list(values)
        if len(values) > 1 or any(ends):
            found |= {"lo": numbers(np.fmin.reduce(spread)), "hi": numbers(np.fmax.reduce(spread))}
        return found

    def columns(self, split: str) -> set[str]:
        return {key[2] for series in self.whole for key in series if key[1] == split}


def curves_of(group: Group) -> Curves:
    """Every column of the histories of a variant."""
    whole = list[Series]()
    for run in group.whole:
        whole.append({})
        for row in run.rows:
            for column in row.keys() - KEYS:
                key = (row["client"], row["split"], column)
                whole[-1].setdefault(key, {})[row["round"]] = (row["epoch"], row[column])
    return Curves(whole, {k: v for run in group.whole for k, v in around(run).items()})


def thinned(runs: Sequence[Mapping[int, tuple[float, float]]]) -> tuple[Floats, Floats] | None:
    """Epochs, and each run's values at these, at :data:`POINTS` places at most; gaps are NaN.

    A thinned point averages neighbouring rounds; the first and the last are kept as they are.
    """
    rounds = sorted({number for run in runs for number in run})
    epochs = {number: epoch for run in runs for number, (epoch, _) in run.items()}
    missing = (0, math.nan)
    values = np.array([[run.get(n, missing)[1] for n in rounds] for run in runs], dtype=float)
    if not np.isfinite(values).any():
        return None
    inside = np.arange(1, len(rounds) - 1)
    parts = np.array_split(inside, min(len(inside), POINTS - 2)) if len(inside) else []
    bins: list[Any] = [[0], *parts, *([[len(rounds) - 1]] if len(rounds) > 1 else [])]
    epoch = np.array([np.mean([epochs[rounds[i]] for i in part]) for part in bins])
    return epoch, np.stack([_mean(values[:, part], 1) for part in bins], axis=1)


def _mean(values: Floats, axis: int) -> Floats:
    """The mean of what is finite; NaN where nothing is."""
    there = np.isfinite(values)
    total, count = np.where(there, values, 0.0).sum(axis=axis), there.sum(axis=axis)
    answer: Floats = np.full(count.shape, np.nan)
    np.divide(total, count, out=answer, where=count > 0)
    return answer
