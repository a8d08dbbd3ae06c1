"""Which columns a client learns from, and what becomes of them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from fedgradnorm._checks import bounded, one_of, shown
from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm.data._files.encoding import (
    GAPS,
    PARTS,
    CategoryColumn,
    Column,
    DateColumn,
    Encoding,
    Gaps,
    IdColumn,
    NumberColumn,
    check_ids,
)
from fedgradnorm.tasks._labels.label_map import LabelMap

Columns = str | Sequence[str]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Inputs:
    """Which columns a client learns from, and what becomes of them.

    Columns are numbers unless an option names them. All that is learned (categories, what fills a
    gap) is learned on training rows and kept with the run, so ``predict`` takes raw rows.

    Args:
        inputs: input columns (by default all others), or a table of such by the names of the
            network's arguments; with images, the column of paths (by default "path").
        categories: input columns of texts: a list, or a table with the values of each.
        dates: input columns of dates, a table with the parts that each becomes.
        date_format: how dates are written, as in ``datetime.strptime``.
        cyclic: input columns that repeat, a table with the period of each.
        missing: what an empty input becomes: "error", "mean", "median" or "indicator", for all or
            by column.
        without: input columns that this client does not have.
        ids: inputs that are whole numbers to look up, such as tokens: columns, arrays or names.
    """

    inputs: Columns | Mapping[str, Columns] | None = None
    categories: Columns | Mapping[str, Sequence[str]] | None = None
    dates: Columns | Mapping[str, Columns] | None = None
    date_format: str | None = None
    cyclic: Mapping[str, float] | None = None
    missing: str | Mapping[str, str] = "error"
    without: Columns | None = None
    ids: Columns | None = None

    def named(self) -> dict[str, tuple[str, ...]]:
        """The columns or arrays of inputs that have names; empty where they have none."""
        if not isinstance(self.inputs, Mapping):
            return {}
        if not self.inputs or not all(isinstance(n, str) and n.isidentifier() for n in self.inputs):
            raise ConfigError(
                "inputs: the names must be those of a network's keyword arguments, not "
                f"{list(self.inputs)}"
            )
        found = {name: names(columns) for name, columns in self.inputs.items()}
        empty = next((name for name, columns in found.items() if not columns), None)
        if empty is not None:
            raise ConfigError(f"inputs: {empty} has no columns; list some, or leave it out")
        return found

    def listed(self) -> tuple[str, ...] | None:
        """The input columns, whether or not they are in groups; None where none are given."""
        if self.inputs is None:
            return None
        if isinstance(self.inputs, Mapping):
            return tuple(column for group in self.named().values() for column in group)
        return names(self.inputs)

    def plan(self) -> ColumnPlan:
        """The options, checked."""
        listed = {
            name: LabelMap.listed(values, f"categories of {name!r}", least=1).names
            if values
            else ()
            for name, values in _table(self.categories, (), "categories").items()
        }
        parts = {
            name: tuple(one_of(f"a part of date {name!r}", part, PARTS) for part in _names(value))
            for name, value in _table(self.dates, ("hour", "month"), "dates").items()
        }
        turns = {
            name: bounded(f"the period of {name!r} in cyclic", value, above=True)
            for name, value in _table(self.cyclic or {}, None, "cyclic").items()
        }
        if self.date_format is not None and not isinstance(self.date_format, str):
            raise ConfigError(f"date_format must be a text, not {shown(self.date_format)}")
        groups = self.named()
        plan = ColumnPlan(
            listed,
            parts,
            self.date_format,
            turns,
            _gaps(self.missing),
            _names(self.without or ()),
            tuple(c for name in _names(self.ids or ()) for c in groups.get(name, (name,))),
            {column: name for name, columns in groups.items() for column in columns},
        )
        if plan.without and self.inputs is None:
            gone = plan.without[0]
            raise ConfigError(
                f"without = [{gone!r}] needs inputs: a file cannot say where a column that it does "
                "not have belongs among the others; list the input columns of all clients in one "
                f"order: inputs = [..., {gone!r}, ...]"
            )
        return plan


@dataclass(frozen=True)
class ColumnPlan:
    """The options of :class:`Inputs`, checked: what is known of columns before rows are read."""

    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dates: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    date_format: str | None = None
    cyclic: Mapping[str, float] = field(default_factory=dict)
    missing: Mapping[str, Gaps] | Gaps = "error"
    without: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    groups: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kinds: dict[str, Iterable[str]] = {"categories": self.categories, "dates": self.dates}
        kinds |= {"cyclic": self.cyclic, "ids": self.ids}
        for one, columns in kinds.items():
            for other, others in kinds.items():
                both = sorted(set(columns) & set(others)) if one < other else []
                if both:
                    raise ConfigError(f"column {both[0]!r} is in {one} and in {other}; choose one")

    @property
    def plain(self) -> bool:
        """Whether all columns are numbers without gaps, and there is nothing to do."""
        return self == ColumnPlan()

    def named(self) -> set[str]:
        gaps = set() if isinstance(self.missing, str) else set(self.missing)
        return {*self.categories, *self.dates, *self.cyclic, *self.without, *self.ids} | gaps

    def columns(self, inputs: Sequence[str], source: str) -> list[Column]:
        """What is to be made of the input columns.

        A ConfigError where an option names a column that is no input, or ids are mixed.
        """
        for name in sorted(self.named() - set(inputs)):
            raise ConfigError(
                f"{source}: {name!r} is named among categories, dates, cyclic, missing, without or "
                f"ids, but is no input; the inputs are {', '.join(map(repr, inputs[:10]))}"
            )
        found = [self._column(name) for name in inputs]
        check_ids(found)
        return found

    def _column(self, name: str) -> Column:
        gaps = self.missing if isinstance(self.missing, str) else self.missing.get(name, "error")
        absent, group = name in self.without, self.groups.get(name)
        if name in self.ids:
            return IdColumn(name, group=group)
        if name in self.categories:
            return CategoryColumn(name, gaps, absent, self.categories[name], group=group)
        if name in self.dates:
            days = self.dates[name], self.date_format
            return DateColumn(name, gaps, absent, *days, group=group)
        return NumberColumn(name, gaps, absent, self.cyclic.get(name), group=group)

    def learned(self, rows: pd.DataFrame, source: str) -> Encoding:
        found = []
        for name in rows:
            column, read = self._column(name), rows[name].to_numpy()
            seen = {text for text in read.tolist() if text} if read.dtype == object else set()
            empty = not seen if read.dtype == object else pd.isna(read).all()
            if not column.absent and empty:
                column = _empty(column, source)
            if isinstance(column, CategoryColumn) and not column.categories:
                if column.absent:
                    raise ConfigError(
                        f"{source}: column {name!r} is not there (without), so its categories "
                        f"cannot be learned; list them: categories = {{{name} = [...]}}"
                    )
                column = replace(column, categories=LabelMap.seen(seen).names)
            found.append(column if column.absent else column.learned(column.coded(read)))
        seen_here = (isinstance(c, CategoryColumn) and not self.categories[c.name] for c in found)
        filled = (c.allows_gaps and c.fillable for c in found)
        return Encoding(tuple(found), learned=any(seen_here) or any(filled))


def names(columns: str | Sequence[str]) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)


def _empty(column: Column, source: str) -> Column:
    """A column of which no training row has a value: one that the client does not have."""
    listed = not isinstance(column, CategoryColumn) or column.categories
    if column.allows_gaps and column.fillable and listed:
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


def _names(value: Any) -> tuple[str, ...]:
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
    if isinstance(value, Mapping):
        _names(value.keys())
        return dict(value)
    try:
        return dict.fromkeys(_names(value), default)
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from None


def _gaps(missing: Any) -> Mapping[str, Gaps] | Gaps:
    if isinstance(missing, Mapping):
        return {name: _gap(f"missing of {name!r}", how) for name, how in missing.items()}
    return _gap("missing", missing)


def _gap(what: str, how: Any) -> Gaps:
    one_of(what, how, GAPS)
    gap: Gaps = how
    return gap
