"""Histories as curves: the mean over seeds and the range they span, a few hundred points each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgradnorm._report.page.conflict_map import cosine_series
from fedgradnorm._round.reports import KEYS
from fedgradnorm._runs.csv_table import Row
from fedgradnorm._stored.groups import Group
from fedgradnorm._stored.summary import Judged
from fedgradnorm._stored.task_lines import around

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

POINTS = 150  # a curve longer than this is drawn through averages of neighbouring rounds
DIGITS = 4
LENGTH, TARGET, AGAINST = "weighted_norm", "target", "norm_over_target"
"""Columns that are not recorded but follow from those that are."""

Series = dict[tuple[str, str, str], "dict[int, tuple[float, float]]"]
"""(client, split, column) -> round -> (epoch, value)."""


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
        """Plain numbers, rounded as far as an eye can see; the band only where there is one."""
        points = {"x": numbers(self.epoch, DIGITS + 2), "y": numbers(self.mean)}
        if self.seeds > 1 or self.spans:
            points |= {"lo": numbers(self.low), "hi": numbers(self.high)}
        return points


def numbers(values: Iterable[float], digits: int = DIGITS) -> list[float | None]:
    """Rounded numbers; what is not finite becomes a gap, since JSON has no name for it.

    >>> numbers([0.123456, float("nan"), 1234567.0])
    [0.1235, None, 1235000]
    """
    rounded = (float(f"{v:.{digits}g}") if math.isfinite(v) else None for v in values)
    return [int(v) if v is not None and v.is_integer() else v for v in rounded]


def series_of(rows: Sequence[Row], gamma: float | None, pairs: Sequence[Row] = ()) -> Series:
    """Every number of a history by what it is; with norms against targets where ``gamma`` is.

    ``pairs`` is the recorded conflict between clients.
    """
    found: Series = {}
    by_round: dict[int, list[Row]] = {}
    for row in rows:
        for column, value in row.items():
            if column not in KEYS:
                key = (row["client"], row["split"], column)
                found.setdefault(key, {})[row["round"]] = (row["epoch"], value)
        if row["split"] == "batch" and "grad_norm" in row and row.get("active", 1):
            by_round.setdefault(row["round"], []).append(row)
    for number, together in by_round.items():
        for client, derived in _against_targets(together, gamma).items():
            for column, value in derived.items():
                points = found.setdefault((client, "batch", column), {})
                points[number] = (together[0]["epoch"], value)
    return found | cosine_series(pairs)


def _against_targets(rows: Sequence[Row], gamma: float | None) -> dict[str, dict[str, float]]:
    """p_i G_i of one round and, with gamma, target_i = mean_j(p_j G_j) r_i^gamma.

    The means run over the clients that took part and were not frozen; p is the weight that the
    server used in that round's average.
    """
    lengths = {row["client"]: row.get("weight", 1.0) * row["grad_norm"] for row in rows}
    answer = {client: {LENGTH: value} for client, value in lengths.items()}
    live = [row for row in rows if not row.get("weight_frozen") and row.get("loss_ratio", 0) > 0]
    if gamma is None or not live:
        return answer
    common = math.fsum(lengths[row["client"]] for row in live) / len(live)
    pace = math.fsum(row["loss_ratio"] for row in live) / len(live)
    for row in live:
        target = common * (row["loss_ratio"] / pace) ** gamma
        answer[row["client"]][TARGET] = target
        if target > 0:
            answer[row["client"]][AGAINST] = lengths[row["client"]] / target
    return answer


@dataclass(frozen=True)
class Curves:
    """The curves of one group: those of its seeds together, and of runs that stopped early."""

    whole: list[Series]
    partial: list[Series]
    judged: Mapping[str, Judged] = field(default_factory=dict)
    around: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def band(self, key: tuple[str, str, str]) -> Band | None:
        """The mean over the seeds that have this column; None where none has.

        Of many clients there is one curve for each task: the median, with the tenths ``around`` it.
        """
        if self.around and key[0] not in self.around:
            return None
        middle = self._mean(key)
        if middle is None or not self.around:
            return middle
        ends = [self._mean((name, *key[1:])) for name in self.around[key[0]]]
        values = [end.mean for end in ends if end is not None]
        low, high = np.fmin.reduce(values), np.fmax.reduce(values)
        return replace(middle, low=low, high=high, spans=True)

    def _mean(self, key: tuple[str, str, str]) -> Band | None:
        return band([series[key] for series in self.whole if key in series])

    def stopped(self, key: tuple[str, str, str]) -> list[Band]:
        """A curve for each run that stopped early."""
        if self.around and key[0] not in self.around:
            return []
        found = (band([series[key]]) for series in self.partial if key in series)
        return [one for one in found if one is not None]


def curves_of(group: Group, gamma: float | None) -> Curves:
    """The curves of a group; ``gamma`` is the one to measure it by."""
    measured_by = gamma if group.shared else None
    return Curves(
        [series_of(run.rows, measured_by, run.pairs) for run in group.whole],
        [series_of(run.rows, measured_by, run.pairs) for run in group.partial],
        {name: by for run in (*group.partial, *group.whole) for name, by in run.judged.items()},
        {name: ends for run in group.whole for name, ends in around(run).items()},
    )


def band(runs: Sequence[dict[int, tuple[float, float]]]) -> Band | None:
    """Mean, lowest and highest over runs, round by round, thinned to :data:`POINTS`.

    A thinned point averages neighbouring rounds; the first and the last are kept as they are.
    """
    rounds = sorted({number for run in runs for number in run})
    if not rounds:
        return None
    epochs = {number: epoch for run in runs for number, (epoch, _) in run.items()}
    values = np.full((len(runs), len(rounds)), np.nan)
    for line, run in zip(values, runs, strict=True):
        line[:] = [run.get(number, (0, math.nan))[1] for number in rounds]
    values[~np.isfinite(values)] = np.nan
    bins = _bins(len(rounds))
    thin = np.stack([_mean(values[:, part], axis=1) for part in bins], axis=1)
    epoch = np.array([np.mean([epochs[rounds[i]] for i in part]) for part in bins])
    if np.isnan(thin).all():
        return None
    low, high = (_over_seeds(pick, thin) for pick in (np.fmin, np.fmax))
    return Band(epoch, _mean(thin, axis=0), low, high, len(runs))


def _bins(count: int) -> list[NDArray[np.int64]]:
    inside = np.arange(1, count - 1)
    parts = np.array_split(inside, min(len(inside), POINTS - 2)) if len(inside) else []
    ends = [np.array([0]), np.array([count - 1])][: min(count, 2)]
    return [ends[0], *parts, *ends[1:]]


def _mean(values: Floats, axis: int) -> Floats:
    """The mean of what is there; NaN where nothing is."""
    there = np.isfinite(values)
    total, count = np.where(there, values, 0.0).sum(axis=axis), there.sum(axis=axis)
    answer: Floats = np.full(count.shape, np.nan)
    np.divide(total, count, out=answer, where=count > 0)
    return answer


def _over_seeds(pick: np.ufunc, values: Floats) -> Floats:
    result: Floats = pick.reduce(values, axis=0)
    return result
