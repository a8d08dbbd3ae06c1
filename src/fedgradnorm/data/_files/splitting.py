"""Which rows of a client's files train, validate and test: at random, by column, time or group."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedgradnorm._checks import number, shown, whole
from fedgradnorm._client import SPLITS
from fedgradnorm._errors import ConfigError, DataError, choose
from fedgradnorm.data._arrays import held_out, random_generator
from fedgradnorm.data._files.encoding import seconds
from fedgradnorm.data._files.tables import FileRows, each, is_missing, text_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Index = NDArray[np.int64]
    Part = tuple[FileRows, Index]

WAYS = ("column", "time", "group", "stratified")
HELD = SPLITS[1:]


@dataclass(frozen=True)
class Split:
    """Which examples of the training file to hold out; by default at random.

    ``Split(test=0.2, time="date")`` holds out the last fifth in time. With ``group="patient"``, all
    examples of a patient are in the same split.

    Args:
        test: the share of test examples, the time from which on examples are for testing, or the
            values of ``column``.
        validation: the same for validation.
        column: the column that assigns examples to splits.
        time: the column or columns with the time; the last examples are for testing.
        group: the column whose values must not be divided among splits.
        stratified: the column whose values have the same share of every split.
        rows: how many examples to draw; all by default.
    """

    test: float | str | Sequence[Any] | None = None
    validation: float | str | Sequence[Any] | None = None
    column: str | None = None
    time: str | Sequence[str] | None = None
    group: str | None = None
    stratified: str | None = None
    rows: int | None = None

    @classmethod
    def from_dict(cls, table: Any, given: dict[str, Any]) -> Split:
        """``split``, or the shares of a random one among the keys of a client's table."""
        shares = {split: given.pop(f"{split}_share", None) for split in HELD}
        shares = {split: share for split, share in shares.items() if share is not None}
        rows = given.pop("rows", None)
        if table is None:
            return cls(**shares, rows=rows)
        if not isinstance(table, Mapping):
            raise ConfigError(f"split must be a table, {_EXAMPLE}, not {shown(table)}")
        for key in table:
            choose(str(key), (*WAYS, *HELD), "key of split")
        for split, share in shares.items():
            if share:
                raise ConfigError(
                    f"split and {split} data or {split}_share are both given; choose one"
                )
        return cls(**table, rows=rows)

    @property
    def way(self) -> str | None:
        """What decides the split; None where it is drawn. Checked."""
        ways = [way for way in WAYS if getattr(self, way) is not None]
        if not ways:
            return None
        if len(ways) > 1:
            raise ConfigError(f"split needs one of column, time, group and stratified, {_EXAMPLE}")
        (way,), held = ways, self._held
        if not self.columns or not all(isinstance(name, str) for name in self.columns):
            raise ConfigError(f"split: {way} must name a column, not {shown(getattr(self, way))}")
        if way == "column":
            for split, values in held.items():
                if not isinstance(values, list | tuple) or not values:
                    raise ConfigError(
                        f"split: {split} must list the values of column {self.column!r} that are "
                        f"its rows, not {shown(values)}"
                    )
            return way
        if not held:
            raise ConfigError(f"split by {way} needs test or validation, such as test = 0.2")
        moments = [split for split, value in held.items() if isinstance(value, str)]
        if moments and (way != "time" or len(self.columns) > 1):
            raise ConfigError(f"split: {moments[0]} must be a share, not {held[moments[0]]!r}")
        shares = [self._share(split) for split in held if split not in moments]
        if sum(shares) >= 1:
            raise ConfigError(f"split: shares of {sum(shares):g} in all leave no rows to train on")
        return way

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that decide the split."""
        if isinstance(self.time, list | tuple):
            return tuple(self.time)
        given = [getattr(self, way) for way in WAYS]
        return tuple(one for one in given if one is not None)

    @property
    def _held(self) -> dict[str, Any]:
        return {split: v for split in HELD if (v := getattr(self, split)) is not None}

    def _share(self, split: str) -> float:
        share = number(f"split: {split}", getattr(self, split))
        if not 0 < share < 1:
            raise ConfigError(f"split: {split} must be above 0 and below 1, not {share!r}")
        return share

    def parts(self, name: str, files: Mapping[str, FileRows], seed: int) -> dict[str, Part]:
        """Which rows of which file each split has; bad rows are in none."""
        for rows in files.values():
            if not len(rows.good()):
                total = len(rows.places.numbers)
                why = f"all {total} were dropped" if total else "it has none"
                raise DataError(
                    f"{rows.places.bad.source}: no rows left to use, {why}; check the file"
                )
        parts = self._all(name, files, seed)
        total = sum(len(at) for _, at in parts.values())
        if self.rows is None or whole(f"client {name!r}: rows", self.rows, 1) >= total:
            return parts
        # So many in all, drawn by the seed; each split keeps its share of them.
        rng = np.random.default_rng([seed, *name.encode()])
        for split, (file, at) in parts.items():
            count = round(int(self.rows) * len(at) / total)
            if count < 1:
                raise DataError(
                    f"client {name!r}: rows = {self.rows} leaves none for {split}; raise it"
                )
            parts[split] = file, np.sort(rng.choice(at, count, replace=False))
        return parts

    def _all(self, name: str, files: Mapping[str, FileRows], seed: int) -> dict[str, Part]:
        train, way = files["train"], self.way
        if way is None:
            shares = {**dict.fromkeys(HELD, 0.0), **self._held}
            good = train.good()
            drawn = held_out(name, len(good), shares, list(files), seed)
            found = {part: (train, good[at]) for part, at in drawn.items()}
            return {**{part: (rows, rows.good()) for part, rows in files.items()}, **found}
        doubled = [split for split in HELD if split in files]
        if doubled:
            raise ConfigError(
                f"client {name!r}: split and {doubled[0]} data or {doubled[0]}_share are both "
                "given; choose one"
            )
        # Bad rows count where the time is cut: so clients with other gaps are cut at the same time.
        marks, good = getattr(self, f"_by_{way}")(train, seed), train.good()
        at = {split: good[marks[good] == i] for i, split in enumerate(SPLITS)}
        asked = [s for s in SPLITS if s == "train" or s in self._held or len(at[s])]
        for split in asked:
            if not len(at[split]):
                raise DataError(
                    f"{train.places.bad.source}: split by {way} {', '.join(self.columns)} leaves "
                    f"no usable rows for {split}; change the split"
                )
        return {split: (train, at[split]) for split in asked}

    def _by_column(self, rows: FileRows, _: int) -> Index:
        (name,) = self.columns
        cells = [str(cell).strip() for cell in rows.marks[name]]
        if self._held:
            sides = {str(v): SPLITS.index(s) for s, values in self._held.items() for v in values}
            return np.array([sides.get(cell, 0) for cell in cells], dtype=np.int64)
        marks = np.zeros(len(cells), dtype=np.int64)
        for i in rows.good().tolist():
            if cells[i].lower() not in SPLITS:
                raise DataError(
                    f"{rows.places.where(i)}: column {name!r} is {shown(cells[i])}, not train, "
                    "validation or test; say which values are which: split = {column = "
                    f"{name!r}, test = [{cells[i]!r}]}}"
                )
            marks[i] = SPLITS.index(cells[i].lower())
        return marks

    def _by_time(self, rows: FileRows, _: int) -> Index:
        clocks, moments = zip(*(_clock(rows, name) for name in self.columns), strict=True)
        times = np.stack(moments, axis=1)
        known = np.flatnonzero(~np.isnan(times).any(axis=1))
        marks = np.zeros(len(times), dtype=np.int64)
        rank = np.unique(times[known], axis=0, return_inverse=True)[1].reshape(-1)
        end = float(len(known))
        for split in ("test", "validation"):
            begin = self._held.get(split)
            if begin is None:
                continue
            if isinstance(begin, str):
                try:
                    held = times[known, 0] >= clocks[0](begin)
                except ValueError:
                    raise ConfigError(
                        f"split: {split} must be a share of the rows or a time like those in "
                        f"column {self.columns[0]!r}, not {shown(begin)}"
                    ) from None
                end = float(len(known) - held.sum())
            else:
                end -= self._share(split) * len(known)
                held = rank >= np.sort(rank)[min(max(round(end), 0), len(known) - 1)]
            marks[known[held & (marks[known] == 0)]] = SPLITS.index(split)
        return marks

    def _by_group(self, rows: FileRows, seed: int) -> Index:
        cells = np.array(each(text_of, rows.marks[self.columns[0]]), dtype=object)
        known = np.flatnonzero(cells != "")
        place, groups = pd.factorize(cells[known], sort=True)
        counts = np.bincount(place, minlength=len(groups))
        order = random_generator(seed).permutation(len(groups))
        middle = np.cumsum(counts[order]) - counts[order] / 2
        side, begin = np.zeros(len(groups), dtype=np.int64), 0.0
        for split in self._held:
            end = begin + self._share(split) * len(known)
            side[order[(middle >= begin) & (middle < end)]] = SPLITS.index(split)
            begin = end
        marks = np.zeros(len(cells), dtype=np.int64)
        marks[known] = side[place]
        return marks

    def _by_stratified(self, rows: FileRows, seed: int) -> Index:
        """Each value's rows are spread evenly over one line, of which splits are stretches."""
        (name,), good = self.columns, rows.good()
        cells = np.array(each(text_of, rows.marks[name]), dtype=object)[good]
        place, values = pd.factorize(cells, sort=True)
        if len(values) > max(2, len(good) // 2):
            raise DataError(
                f"{rows.places.bad.source}: split: column {name!r} has {len(values)} values in "
                f"{len(good)} rows, too many to have each in every split; leave split out and use "
                "test_share"
            )
        order = random_generator(seed).permutation(len(good))
        at = np.empty(len(good))
        for value in range(len(values)):
            own = order[place[order] == value]
            at[own] = (np.arange(len(own)) + 0.5) / len(own)
        line = order[np.argsort(at[order], kind="stable")]
        marks, begin = np.zeros(len(rows.places.numbers), dtype=np.int64), 0
        for split in self._held:
            end = begin + max(1, round(self._share(split) * len(good)))
            marks[good[line[begin:end]]] = SPLITS.index(split)
            begin = end
        return marks


_EXAMPLE = "such as split = {time = 'date', test = 0.2}"


def _clock(rows: FileRows, name: str) -> tuple[Callable[[Any], float], NDArray[np.float64]]:
    """How a column says when, by numbers if all cells are, else by dates; and when each row was.

    NaN where that cannot be told, which is a bad row.
    """
    cells = rows.marks[name]
    empty = np.array(each(is_missing, cells), dtype=bool)
    for clock in (_finite, seconds):

        def when(cell: Any, clock: Callable[[Any], float] = clock) -> float:
            try:
                return clock(cell)
            except (TypeError, ValueError, OverflowError, AttributeError):
                return math.nan

        times = np.array(each(when, cells), dtype=np.float64)
        wrong = np.flatnonzero(np.isnan(times) & ~empty)
        if not len(wrong):
            break
    for i in wrong.tolist():
        rows.places.report(i, f"column {name!r} is {shown(cells[i])}, not a date like 2016-03-01")
    return clock, times


def _finite(cell: Any) -> float:
    value = float(cell)
    if not math.isfinite(value):
        raise ValueError
    return value
