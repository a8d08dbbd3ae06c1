"""Which columns a client learns from, and what becomes of them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
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
    NumberColumn,
    gap_in,
)
from fedgradnorm.tasks._labels.label_map import LabelMap

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
