"""Raw columns of a client as the numbers its network takes, by what its training rows taught."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime
from functools import cached_property
from itertools import combinations
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgradnorm._checks import bounded, one_of, shown
from fedgradnorm._columns import is_frame, picked_columns
from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm.data._files.tables import (
    LARGEST,
    cells_of,
    each,
    is_missing,
    number_of,
    numbers_of,
    text_of,
    usable,
)
from fedgradnorm.tasks._labels import LabelMap

Codes = NDArray[np.float64]


Gaps = Literal["error", "mean", "median", "indicator"]
GAPS = ("error", "mean", "median", "indicator")
PARTS = ("hour", "weekday", "year", "elapsed")
"""What can be made of a date: its place in the day, week or year, or years since 2000."""

UNKNOWN = -1.0

DAY = 86400.0
_BEGIN = datetime(1970, 1, 1)
_YEAR_2000 = (datetime(2000, 1, 1) - _BEGIN).total_seconds()
_YEAR = 365.2425  # days


@dataclass(frozen=True)
class Column(ABC):
    """One input column; ``absent`` where this client does not have it: every cell is a gap then."""

    name: str
    gaps: Gaps = "error"
    absent: bool = False

    kind: ClassVar[str]

    @property
    def allows_gaps(self) -> bool:
        """Whether a cell may be empty."""
        return self.absent or self.gaps != "error"

    @abstractmethod
    def code(self, cell: Any) -> float:
        """The code of a cell that is not empty; a ValueError says what is wrong with it."""

    @abstractmethod
    def values(self, code: Tensor, gap: Tensor) -> Tensor:
        """What the network sees of each code, [rows, numbers]; ``gap`` says where there is none."""

    def parts(self) -> list[str]:
        """What the numbers of ``values`` are called."""
        return [self.name]

    def read(self, cells: Any) -> NDArray[Any]:
        """The code of each cell, or its text where codes are still to be learned.

        NaN where a cell is empty or cannot be read.
        """

        def code(cell: Any) -> float:
            try:
                return math.nan if is_missing(cell) else self.code(cell)
            except ValueError:
                return math.nan

        return np.array(each(code, cells_of(cells)), dtype=np.float64)

    def coded(self, read: NDArray[Any]) -> Codes:
        """What was read, as codes."""
        return read.astype(np.float64)

    def learned(self, read: NDArray[Any]) -> Self:
        """The column with what it learns on the training rows: here what fills a gap."""
        if not hasattr(self, "fill") or not self.allows_gaps or self.absent:
            return self
        codes = self.coded(read)
        known = codes[~np.isnan(codes)]
        middle = np.median if self.gaps == "median" else np.mean
        fill: dict[str, Any] = {"fill": float(middle(known)) if len(known) else 0.0}
        return replace(self, **fill)

    def features(self, code: Tensor) -> Tensor:
        """The values, and with an indicator a number more that is 1 where there is a gap."""
        code = torch.full_like(code, math.nan) if self.absent else code
        gap = torch.isnan(code)
        found = self.values(code, gap)
        if self.gaps != "indicator":
            return found
        return torch.cat([found, gap.to(found.dtype)[:, None]], dim=1)

    def names(self) -> list[str]:
        """What the features are called."""
        return [*self.parts(), *([f"{self.name} missing"] if self.gaps == "indicator" else [])]

    def wrong(self, cell: object) -> str:
        """What is wrong with a cell that was read as NaN; empty where it is a gap."""
        if is_missing(cell):
            return ""
        try:
            self.code(cell)
        except ValueError as error:
            plain = cell.item() if isinstance(cell, np.generic) else cell
            return f"is {shown(plain)}, {error}"
        return f"is {shown(cell)}"

    def plain(self) -> dict[str, Any]:
        """The column as texts and numbers, for run.json."""
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True)
class NumberColumn(Column):
    """A number, as it is, or with a ``period`` as sine and cosine of its place on a circle."""

    period: float | None = None
    fill: float = 0.0

    kind: ClassVar[str] = "number"

    def code(self, cell: Any) -> float:
        value = number_of(cell)
        if abs(value) <= LARGEST:
            return value
        raise ValueError("not a number" if math.isnan(value) else "too large")

    def read(self, cells: Any) -> NDArray[Any]:
        values = numbers_of(cells)
        return np.where(usable(values), values, np.nan)

    def values(self, code: Tensor, gap: Tensor) -> Tensor:
        """One number, or two; a gap is the fill, or the middle of the circle."""
        filled = torch.where(gap, torch.tensor(self.fill, dtype=code.dtype), code)
        if self.period is None:
            return filled[:, None]
        return torch.where(gap[:, None], 0.0, circle(filled, self.period))

    def parts(self) -> list[str]:
        return [self.name] if self.period is None else [f"{self.name} sin", f"{self.name} cos"]


@dataclass(frozen=True)
class CategoryColumn(Column):
    """One of several ``categories``: a number for each, 1 for the cell's own and 0 for the others.

    A gap and a category that is not in the list are zeros.
    """

    categories: tuple[str, ...] = ()

    kind: ClassVar[str] = "category"

    @cached_property
    def _map(self) -> LabelMap:
        return LabelMap.listed(self.categories, f"categories of {self.name!r}", least=1)

    def code(self, cell: Any) -> float:
        found = self._map.codes([str(cell).strip()])[0]
        return UNKNOWN if found is None else float(found)

    def read(self, cells: Any) -> NDArray[Any]:
        """The texts, empty where there is none."""
        return np.array(each(text_of, cells_of(cells)), dtype=object)

    def learned(self, read: NDArray[Any]) -> Self:
        """The column with the categories that occur, unless they are listed."""
        seen = {text for text in read.tolist() if text} if not self.categories else set()
        return replace(self, categories=LabelMap.seen(seen).names) if seen else self

    def coded(self, read: NDArray[Any]) -> Codes:
        places = {text: self.code(text) if text else math.nan for text in set(read.tolist())}
        return np.array([places[text] for text in read.tolist()], dtype=np.float64)

    def values(self, code: Tensor, gap: Tensor) -> Tensor:  # noqa: ARG002
        places = torch.arange(len(self.categories), device=code.device, dtype=code.dtype)
        return (code[:, None] == places).to(code.dtype)

    def parts(self) -> list[str]:
        return [f"{self.name}={category}" for category in self.categories]


@dataclass(frozen=True)
class DateColumn(Column):
    """A date or time: each of ``shown_parts`` is a place on a circle, or the years since 2000."""

    shown_parts: tuple[str, ...] = ()
    form: str | None = None
    fill: float = 0.0

    kind: ClassVar[str] = "date"

    def code(self, cell: Any) -> float:
        try:
            return seconds(cell, self.form)
        except (ValueError, TypeError, OverflowError, AttributeError):
            wanted = "like 2016-03-01 or 2016-03-01T14:30" if self.form is None else self.form
            raise ValueError(f"not a date ({wanted})") from None

    def values(self, code: Tensor, gap: Tensor) -> Tensor:
        """A gap is the middle of each circle, and in ``elapsed`` the fill."""
        filled = torch.where(gap, torch.tensor(self.fill, dtype=code.dtype), code)
        found = []
        for name in self.shown_parts:
            value = part(name, filled)
            found.append(value if name == "elapsed" else torch.where(gap[:, None], 0.0, value))
        return torch.cat(found, dim=1)

    def parts(self) -> list[str]:
        return [
            f"{self.name} {name}{end}"
            for name in self.shown_parts
            for end in ([""] if name == "elapsed" else [" sin", " cos"])
        ]


_KINDS: dict[str, type[Column]] = {
    kind.kind: kind for kind in (NumberColumn, CategoryColumn, DateColumn)
}


def column_from(table: Mapping[str, Any]) -> Column:
    """The inverse of ``plain``; a KeyError, TypeError or ValueError where it is none."""
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
    made: Column = _KINDS[given.pop("kind")](**given)
    texts = [made.name, *getattr(made, "categories", ()), *getattr(made, "shown_parts", ())]
    if not all(isinstance(text, str) for text in texts) or made.gaps not in GAPS:
        raise ValueError(f"column {shown(made.name)}")
    numbers = [getattr(made, "fill", 0.0), getattr(made, "period", None) or 1.0]
    if not all(isinstance(n, int | float) and math.isfinite(n) for n in numbers):
        raise ValueError(f"a number of column {made.name!r}")
    trial = made.features(torch.tensor([0.0, math.nan], dtype=torch.float64))
    if trial.shape != (2, len(made.names())):
        raise ValueError(f"column {made.name!r}")
    return made


def seconds(cell: Any, form: str | None = None) -> float:
    """Seconds since 1970 of a date, a time or a text (ISO 8601, or as ``form`` says).

    A time with an offset is taken to UTC; one without is taken as it is written. A ValueError where
    it is none.

    >>> seconds("1970-01-02T00:00:01")
    86401.0
    >>> seconds("2.1.1970", "%d.%m.%Y")
    86400.0
    """
    if isinstance(cell, datetime):
        when = cell
    elif isinstance(cell, date):
        when = datetime(cell.year, cell.month, cell.day)
    else:
        text = str(cell).strip()
        when = datetime.fromisoformat(text) if form is None else datetime.strptime(text, form)
    if when.tzinfo is not None:
        when = when.astimezone(UTC).replace(tzinfo=None)
    return (when - _BEGIN).total_seconds()


def part(name: str, time: Tensor) -> Tensor:
    """A part of each time: sine and cosine of its place, or years since 2000 ("elapsed").

    In float64 and without a calendar's tables, so that an exported program can hold it. A year is
    the mean one, so a date's place in it moves by up to a day.
    """
    if name == "elapsed":
        return ((time - _YEAR_2000) / (DAY * _YEAR))[:, None]
    days = torch.floor(time / DAY)
    if name == "hour":
        return circle(time - days * DAY, DAY)
    if name == "weekday":
        return circle(days + 3, 7.0)  # 1970 began on a Thursday; Monday is 0
    return circle(time - _YEAR_2000, DAY * _YEAR)


def circle(value: Tensor, period: float) -> Tensor:
    """A value as a point on a circle that it goes round in a ``period``: sine and cosine."""
    # As tensors, because ONNX has plain numbers in single precision only.
    length = torch.tensor(period, dtype=value.dtype, device=value.device)
    turns = value / length
    turn = (turns - torch.floor(turns)) * torch.tensor(2 * math.pi, dtype=value.dtype)
    return torch.stack([turn.sin(), turn.cos()], dim=1)


log = logging.getLogger(__name__)

SHOWN = 5  # unknown categories that a line of the log names


@dataclass(frozen=True)
class Encoding:
    """What is done to each input column before the scaling."""

    columns: tuple[Column, ...]
    learned: bool = True  # whether the client's own data decided categories or fillings

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(name for column in self.columns for name in column.names())

    def in_order(self, features: Sequence[str]) -> Encoding:
        place = {name: k for k, name in enumerate(features)}
        columns = sorted(self.columns, key=lambda c: place[c.names()[0]])
        found = Encoding(tuple(columns), self.learned)
        if found.features != tuple(features):
            raise DataError(f"columns {', '.join(self.features)} cannot be put in another order")
        return found

    def categories(self) -> dict[str, tuple[str, ...]]:
        return {c.name: c.categories for c in self.columns if isinstance(c, CategoryColumn)}

    def encode(self, codes: Tensor) -> Tensor:
        """Codes [rows, columns] as the numbers of each row, in float64."""
        wide = codes.to(torch.float64)
        return torch.cat([c.features(wide[:, i]) for i, c in enumerate(self.columns)], dim=1)

    def coded(self, read: Mapping[str, Any], where: str) -> Tensor:
        """The codes of what was read of each column; unknown categories are told in the log."""
        found = []
        for column in self.columns:
            own = np.asarray(read[column.name])
            codes = np.full(len(own), np.nan) if column.absent else column.coded(own)
            unknown = codes == UNKNOWN
            if isinstance(column, CategoryColumn) and unknown.any():
                names = sorted(Counter(own[unknown].tolist()))
                some = ", ".join(map(shown, names[:SHOWN])) + ", ..." * (len(names) > SHOWN)
                log.warning(
                    "%s: column %r is %s in %d of %d rows, which is none of its categories; there "
                    "all numbers of the column are 0",
                    *(where, column.name, some, int(unknown.sum()), len(unknown)),
                )
            found.append(codes)
        return torch.from_numpy(np.stack(found, axis=1))

    def codes(self, x: Any, where: str) -> Tensor:
        """The codes of raw rows; a DataError names the row and the column that cannot be read.

        ``x`` is a DataFrame, read by column name, or an array with a column for each input. A
        tensor holds no texts, so it is taken for codes.
        """
        names = [column.name for column in self.columns]
        if is_frame(x):
            there = [column.name for column in self.columns if not column.absent]
            cells: Mapping[str, Any] = picked_columns(x, there, where)
        else:
            array = x if isinstance(x, Tensor) else np.asarray(x, dtype=object)
            if array.ndim != 2 or array.shape[1] != len(names):
                raise DataError(
                    f"{where}: x has shape {tuple(array.shape)}; give a DataFrame, or a column for "
                    f"each of the {len(names)} inputs: {', '.join(names)[:200]}"
                )
            cells = dict(zip(names, array.T, strict=True))
        if not isinstance(x, Tensor):
            read = {
                column.name: _read(column, cells.get(column.name, [None] * len(x)), where)
                for column in self.columns
            }
            return self.coded(read, where)
        for column in self.columns:
            gap = torch.isnan(cells[column.name])
            if not column.allows_gaps and bool(gap.any()):
                raise _no_value(f"{where}: row {int(gap.nonzero()[0])} of x", column.name)
        return x

    def plain(self) -> list[dict[str, Any]]:
        """The encoding as texts and numbers, for run.json."""
        return [column.plain() for column in self.columns]

    @classmethod
    def from_plain(cls, tables: Sequence[Mapping[str, Any]]) -> Encoding:
        """The inverse of :meth:`plain`; a DataError where it is damaged."""
        try:
            return cls(tuple(column_from(table) for table in tables))
        except Exception as error:  # a damaged table may fail anywhere
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:100]
            raise DataError(f"its encoding cannot be read ({reason})") from error


def _read(column: Column, given: Any, where: str) -> NDArray[Any]:
    """A column's cells as read; a DataError for the first that cannot be."""
    cells = pd.Series(given)
    if column.absent:
        return np.full(len(cells), np.nan)
    read = column.read(cells)
    gaps = np.flatnonzero(gap_in(read)).tolist()
    plain = cells_of(cells) if gaps else []
    for row in gaps:
        place = f"{where}: row {row} of x"
        if why := column.wrong(plain[row]):
            raise DataError(f"{place}, column {column.name!r} {why}")
        if not column.allows_gaps:
            raise _no_value(place, column.name)
    return read


def gap_in(read: NDArray[Any]) -> NDArray[np.bool_]:
    """Where nothing was read: an empty text, or NaN."""
    found: NDArray[np.bool_] = read == "" if read.dtype == object else np.isnan(read)
    return found


def _no_value(place: str, column: str) -> DataError:
    return DataError(
        f"{place}, column {column!r} is empty or NaN; fill it, or train the client with "
        "missing='mean', 'median' or 'indicator'"
    )


Columns = str | Sequence[str]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Inputs:
    """Which columns a client learns from, and how they are encoded.

    Columns are numbers unless one of the options lists them. Categories and the values that fill
    gaps are learned from training examples and saved with the run, so ``predict`` takes raw values.

    Args:
        inputs: the input columns (by default all others); with images, the column of paths (by
            default "path").
        categories: categorical input columns: a list, or a table with the values of each.
        dates: input columns with dates: a table with the parts that each becomes.
        date_format: the format of dates, as in ``datetime.strptime``.
        cyclic: input columns that are periodic: a table with the period of each.
        missing: how to treat missing inputs: "error", "mean", "median" or "indicator", for all
            columns or by column.
        without: input columns that this client does not have.
    """

    inputs: Columns | None = None
    categories: Columns | Mapping[str, Sequence[str]] | None = None
    dates: Columns | Mapping[str, Columns] | None = None
    date_format: str | None = None
    cyclic: Mapping[str, float] | None = None
    missing: str | Mapping[str, str] = "error"
    without: Columns | None = None

    def checked(self) -> ColumnPlan:
        """The options in one form; a ConfigError where they cannot be meant."""
        if isinstance(self.inputs, Mapping):
            raise ConfigError(
                "inputs must be a list of columns; give a network several named inputs in Python, "
                "as a dict of arrays: fgn.Client(..., train=({'a': ..., 'b': ...}, y))"
            )
        categories = {
            name: LabelMap.listed(values, f"categories of {name!r}", least=1).names
            if values
            else ()
            for name, values in _table(self.categories, (), "categories").items()
        }
        dates = {
            name: tuple(one_of(f"a part of date {name!r}", part, PARTS) for part in names(value))
            for name, value in _table(self.dates, ("hour", "year"), "dates").items()
        }
        cyclic = {
            name: bounded(f"the period of {name!r} in cyclic", value, above=True)
            for name, value in _table(self.cyclic or {}, None, "cyclic").items()
        }
        if self.date_format is not None and not isinstance(self.date_format, str):
            raise ConfigError(f"date_format must be a text, not {shown(self.date_format)}")
        kinds: dict[str, Mapping[str, Any]] = {"categories": categories, "dates": dates}
        kinds["cyclic"] = cyclic
        for one, other in combinations(kinds, 2):
            for name in sorted(set(kinds[one]) & set(kinds[other])):
                raise ConfigError(f"column {name!r} is in {one} and in {other}; choose one")
        missing = self.missing if isinstance(self.missing, Mapping) else {"": self.missing}
        for name, how in missing.items():
            one_of(f"missing of {name!r}" if name else "missing", how, GAPS)
        without = names(self.without or ())
        if without and self.inputs is None:
            raise ConfigError(
                f"without = [{without[0]!r}] needs inputs: a file cannot say where a column that "
                "it does not have belongs among the others; list the input columns of all clients "
                f"in one order: inputs = [..., {without[0]!r}, ...]"
            )
        listed = None if self.inputs is None else names(self.inputs)
        return ColumnPlan(listed, categories, dates, self.date_format, cyclic, missing, without)


@dataclass(frozen=True)
class ColumnPlan:
    """The options of :class:`Inputs`, checked; ``missing`` of all other columns is that of ""."""

    inputs: tuple[str, ...] | None
    categories: Mapping[str, tuple[str, ...]]
    dates: Mapping[str, tuple[str, ...]]
    date_format: str | None
    cyclic: Mapping[str, float]
    missing: Mapping[str, Any]
    without: tuple[str, ...]

    @property
    def plain(self) -> bool:
        """Whether all columns are numbers without gaps, and there is nothing to do."""
        return replace(self, inputs=None) == Inputs().checked()

    def named(self) -> set[str]:
        """The columns of which more is said."""
        gaps = {name for name in self.missing if name}
        return {*self.categories, *self.dates, *self.cyclic, *self.without} | gaps

    def columns(self, inputs: Sequence[str], source: str) -> list[Column]:
        """What is to be made of the input columns."""
        for name in sorted(self.named() - set(inputs)):
            raise ConfigError(
                f"{source}: {name!r} is named among categories, dates, cyclic, missing or without, "
                f"but is no input; the inputs are {', '.join(map(repr, inputs[:10]))}"
            )
        return [self._column(name) for name in inputs]

    def _column(self, name: str) -> Column:
        gaps = self.missing.get(name, self.missing.get("", "error"))
        if name in self.categories:
            return CategoryColumn(name, gaps, name in self.without, self.categories[name])
        if name in self.dates:
            days = self.dates[name], self.date_format
            return DateColumn(name, gaps, name in self.without, *days)
        return NumberColumn(name, gaps, name in self.without, self.cyclic.get(name))

    def learned(self, rows: pd.DataFrame, source: str) -> Encoding:
        """The encoding that training rows teach."""
        found, own = [], False
        for name in rows:
            column, read = self._column(name), rows[name].to_numpy()
            if not column.absent and gap_in(read).all():
                column = _empty(column, source)
            unlisted = isinstance(column, CategoryColumn) and not column.categories
            if unlisted and column.absent:
                raise ConfigError(
                    f"{source}: column {name!r} is not there (without), so its categories "
                    f"cannot be learned; list them: categories = {{{name} = [...]}}"
                )
            own = own or unlisted or column.allows_gaps
            found.append(column.learned(read))
        return Encoding(tuple(found), learned=own)


def _empty(column: Column, source: str) -> Column:
    """A column of which no training row has a value: one that the client does not have."""
    listed = not isinstance(column, CategoryColumn) or column.categories
    if column.allows_gaps and listed:
        log.warning(
            "%s: input column %r is empty in all training rows; the client is trained as without "
            "it, and what other rows have in it is not used",
            *(source, column.name),
        )
        return replace(column, absent=True)
    values = "" if listed else f", with its values listed: categories = {{{column.name} = [...]}}"
    raise DataError(
        f"{source}: input column {column.name!r} is empty in all training rows; leave it out of "
        f"inputs, or fill it with missing = 'mean'{values}"
    )


def names(value: Any) -> tuple[str, ...]:
    """Column names, of which a single one may be given as it is."""
    given = (value,) if isinstance(value, str) else value
    if not isinstance(given, Iterable) or isinstance(given, Mapping):
        raise ConfigError(f"expected a name or a list of names, not {shown(value)}")
    listed = tuple(given)
    for name in listed:
        if not isinstance(name, str):
            raise ConfigError(f"a column's name must be a text, not {shown(name)}")
    return listed


def _table(value: Any, default: Any, what: str) -> dict[str, Any]:
    """A table by column, from a table or from a list of columns."""
    if value is None:
        return {}
    try:
        listed = names(list(value) if isinstance(value, Mapping) else value)
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from None
    return dict(value) if isinstance(value, Mapping) else dict.fromkeys(listed, default)
