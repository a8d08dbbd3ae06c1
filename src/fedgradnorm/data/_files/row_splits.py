"""Which rows of one file train, validate and test: at random, by a column, by time, by group."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgradnorm._checks import number, shown, whole
from fedgradnorm._client import SPLITS
from fedgradnorm._errors import ConfigError, DataError, choose
from fedgradnorm.data._arrays import random_generator
from fedgradnorm.data._encoding.clock_parts import seconds
from fedgradnorm.data._files.read_rows import FileRows, each, is_missing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.int64]
    Part = tuple[FileRows, Rows]

WAYS = ("column", "time", "group", "stratified")
HELD = SPLITS[1:]


@dataclass(frozen=True)
class SplitPlan:
    """``split = {column = ...}``, ``{time = ...}``, ``{group = ...}``, ``{stratified = ...}``.

    ``held`` says what ``validation`` and ``test`` are: a share of the rows, the time at which they
    begin (a text), or the values of the column that are theirs (a list).
    """

    way: str
    columns: tuple[str, ...]
    held: Mapping[str, Any]

    @classmethod
    def of(cls, given: Any) -> SplitPlan:
        """From the option of a client; a ConfigError says what is wrong with it."""
        example = "such as split = {time = 'date', test = 0.2}"
        if not isinstance(given, Mapping):
            raise ConfigError(f"split must be a table, {example}, not {shown(given)}")
        for key in given:
            choose(str(key), (*WAYS, *HELD), "key of split")
        ways = [way for way in WAYS if way in given]
        if len(ways) != 1:
            raise ConfigError(f"split needs one of column, time, group and stratified, {example}")
        way, named = ways[0], given[ways[0]]
        columns = tuple(named) if way == "time" and isinstance(named, list | tuple) else (named,)
        if not columns or not all(isinstance(name, str) for name in columns):
            raise ConfigError(f"split: {way} must name a column, not {shown(named)}")
        held = {split: given[split] for split in HELD if split in given}
        plan = cls(way, columns, held)
        plan._check()
        return plan

    def _check(self) -> None:
        if self.way == "column":
            for split, values in self.held.items():
                if not isinstance(values, list | tuple) or not values:
                    raise ConfigError(
                        f"split: {split} must list the values of column {self.columns[0]!r} that "
                        f"are its rows, not {shown(values)}"
                    )
            return
        if not self.held:
            raise ConfigError(f"split by {self.way} needs test or validation, such as test = 0.2")
        moments = [s for s, value in self.held.items() if isinstance(value, str)]
        if moments and (self.way != "time" or len(self.columns) > 1):
            raise ConfigError(f"split: {moments[0]} must be a share, not {self.held[moments[0]]!r}")
        shares = [self._share(split) for split in self.held if split not in moments]
        if sum(shares) >= 1:
            raise ConfigError(f"split: shares of {sum(shares):g} in all leave no rows to train on")

    def _share(self, split: str) -> float:
        share = number(f"split: {split}", self.held[split])
        if not 0 < share < 1:
            raise ConfigError(f"split: {split} must be above 0 and below 1, not {share!r}")
        return share

    def parts(self, rows: FileRows, seed: int) -> dict[str, Rows]:
        """The rows of each split, in the order of the file, the bad ones left out.

        Bad rows count where the time is cut: so clients with other gaps are cut at the same times.
        """
        part = {"column": self._by_column, "time": self._by_time, "group": self._by_group}
        part["stratified"] = self._stratified
        marks = part[self.way](rows, seed)
        good = rows.good()
        found = {split: good[marks[good] == i] for i, split in enumerate(SPLITS)}
        asked = [s for s in SPLITS if s == "train" or s in self.held or len(found[s])]
        for split in asked:
            if not len(found[split]):
                raise DataError(
                    f"{rows.bad.source}: split by {self.way} {', '.join(self.columns)} leaves no "
                    f"usable rows for {split}; change the split"
                )
        return {split: found[split] for split in asked}

    def _by_column(self, rows: FileRows, _: int) -> Rows:
        (name,) = self.columns
        cells = [str(cell).strip() for cell in rows.marks[name]]
        marks = np.zeros(len(cells), dtype=np.int64)
        if self.held:
            sides = {str(v): SPLITS.index(s) for s, values in self.held.items() for v in values}
            return np.array([sides.get(cell, 0) for cell in cells], dtype=np.int64)
        for i in rows.good():
            if cells[i].lower() not in SPLITS:
                raise DataError(
                    f"{rows.where(int(i))}: column {name!r} is {shown(cells[i])}, not train, "
                    "validation or test; say which values are which: split = {column = "
                    f"{name!r}, test = [{cells[i]!r}]}}"
                )
            marks[i] = SPLITS.index(cells[i].lower())
        return marks

    def _by_time(self, rows: FileRows, _: int) -> Rows:
        clocks = [clock(rows, name) for name in self.columns]
        times = np.stack(
            [_moments(rows, *one) for one in zip(self.columns, clocks, strict=True)], axis=1
        )
        known = np.flatnonzero(~np.isnan(times).any(axis=1))
        marks = np.zeros(len(times), dtype=np.int64)
        rank = np.unique(times[known], axis=0, return_inverse=True)[1].reshape(-1)
        end = float(len(known))
        for split in ("test", "validation"):
            if split not in self.held:
                continue
            if isinstance(self.held[split], str):
                begins = times[known, 0] >= self._begin(split, clocks[0])
                end = float(len(known) - begins.sum())
            else:
                end -= self._share(split) * len(known)
                first = np.sort(rank)[min(max(round(end), 0), len(known) - 1)]
                begins = rank >= first
            marks[known[begins & (marks[known] == 0)]] = SPLITS.index(split)
        return marks

    def _by_group(self, rows: FileRows, seed: int) -> Rows:
        (name,) = self.columns
        known = np.flatnonzero([not is_missing(cell) for cell in rows.marks[name]])
        cells = np.array([str(rows.marks[name][i]).strip() for i in known.tolist()])
        groups, place, counts = np.unique(cells, return_inverse=True, return_counts=True)
        order = random_generator(seed).permutation(len(groups))
        middle = np.cumsum(counts[order]) - counts[order] / 2
        side, begin = np.zeros(len(groups), dtype=np.int64), 0.0
        for split in self.held:
            end = begin + self._share(split) * len(cells)
            inside = (middle >= begin) & (middle < end)
            side[order[inside]] = SPLITS.index(split)
            begin = end
        marks = np.zeros(len(rows.rows), dtype=np.int64)
        marks[known] = side[place.reshape(-1)]
        return marks

    def _stratified(self, rows: FileRows, seed: int) -> Rows:
        """Each value's rows are spread evenly over one line, of which splits are stretches."""
        (name,), good = self.columns, rows.good()
        cells = ["" if is_missing(rows.marks[name][i]) else str(rows.marks[name][i]).strip()
                 for i in good.tolist()]  # fmt: skip
        values, place, counts = np.unique(cells, return_inverse=True, return_counts=True)
        if len(values) > max(2, len(good) // 2):
            raise DataError(
                f"{rows.bad.source}: split: column {name!r} has {len(values)} values in "
                f"{len(good)} rows, too many to have each in every split; leave split out and use "
                "test_share"
            )
        order = random_generator(seed).permutation(len(good))
        at = np.empty(len(good))
        for value, count in enumerate(counts.tolist()):
            own = order[place.reshape(-1)[order] == value]
            at[own] = (np.arange(count) + 0.5) / count
        line = order[np.argsort(at[order], kind="stable")]
        marks, begin = np.zeros(len(rows.rows), dtype=np.int64), 0
        for split in self.held:
            end = begin + max(1, round(self._share(split) * len(good)))
            marks[good[line[begin:end]]] = SPLITS.index(split)
            begin = end
        return marks

    def _begin(self, split: str, when: Callable[[Any], float]) -> float:
        try:
            return when(self.held[split])
        except ValueError:
            raise ConfigError(
                f"split: {split} must be a share of the rows or a time like those in column "
                f"{self.columns[0]!r}, not {shown(self.held[split])}"
            ) from None


def clock(rows: FileRows, name: str) -> Callable[[Any], float]:
    """How a column says when: by numbers, if all its cells are numbers, else by dates."""
    plain = each(
        lambda cell: is_missing(cell) or not math.isnan(_when(_finite, cell)), rows.marks[name]
    )
    return _finite if all(plain) else seconds


def _finite(cell: Any) -> float:
    value = float(cell)
    if not math.isfinite(value):
        raise ValueError
    return value


def _moments(rows: FileRows, name: str, when: Callable[[Any], float]) -> NDArray[np.float64]:
    """When each row was; NaN where that cannot be told, which is a bad row."""
    cells = rows.marks[name]
    found = np.array(each(lambda cell: _when(when, cell), cells), dtype=np.float64)
    for i in np.flatnonzero(np.isnan(found)).tolist():
        if not is_missing(cells[i]):
            rows.report(i, f"column {name!r} is {shown(cells[i])}, not a date like 2016-03-01")
    return found


def _when(when: Callable[[Any], float], cell: Any) -> float:
    """When; NaN where that cannot be told."""
    try:
        return when(cell)
    except (TypeError, ValueError, OverflowError, AttributeError):
        return math.nan


def fewer(parts: dict[str, Part], rows: Any, seed: int, name: str) -> dict[str, Part]:
    """At most so many rows in all, drawn by the seed; each split keeps its share of them."""
    if rows is None:
        return parts
    wanted, total = (
        whole(f"client {name!r}: rows", rows, 1),
        sum(len(at) for _, at in parts.values()),
    )
    if wanted >= total:
        return parts
    rng, found = np.random.default_rng([seed, *name.encode()]), {}
    for split, (file, at) in parts.items():
        count = round(wanted * len(at) / total)
        if count < 1:
            raise DataError(f"client {name!r}: rows = {wanted} leaves none for {split}; raise it")
        found[split] = file, np.sort(rng.choice(at, count, replace=False))
    return found
