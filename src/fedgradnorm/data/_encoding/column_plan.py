"""What a user wants done with input columns, before any file is read."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgradnorm._checks import bounded, one_of, shown
from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm.data._encoding.arranging import check_ids
from fedgradnorm.data._encoding.clock_parts import PARTS
from fedgradnorm.data._encoding.column_kinds import (
    GAPS,
    CategoryColumn,
    Column,
    DateColumn,
    Gaps,
    IdColumn,
    NumberColumn,
    StepColumn,
)
from fedgradnorm.data._encoding.encoding import Encoding
from fedgradnorm.tasks._labels.label_map import LabelMap

if TYPE_CHECKING:
    from numpy.typing import NDArray

Names = str | Sequence[str]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ColumnPlan:
    """Which input columns are categories, dates or places on a circle, and what a gap becomes."""

    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dates: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    date_format: str | None = None
    cyclic: Mapping[str, float] = field(default_factory=dict)
    missing: Mapping[str, Gaps] | Gaps = "error"
    without: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    groups: Mapping[str, str] = field(default_factory=dict)
    sequence: str | None = None
    order: str | None = None

    @classmethod
    def of(
        cls,
        categories: Names | Mapping[str, Sequence[Any]] | None,
        dates: Names | Mapping[str, Names] | None,
        date_format: str | None,
        cyclic: Mapping[str, float] | None,
        missing: Any,
        without: Names | None,
        ids: Names | None = None,
        groups: Mapping[str, Sequence[str]] | None = None,
        sequence: str | None = None,
        order: str | None = None,
    ) -> ColumnPlan:
        """The options of ``Inputs``, checked.

        ``groups`` are the columns of each named input; ``ids`` are columns or such names.
        """
        listed = {
            name: LabelMap.listed(values, f"categories of {name!r}", least=1).names
            if values
            else ()
            for name, values in _table(categories, (), "categories").items()
        }
        parts = {
            name: tuple(one_of(f"a part of date {name!r}", part, PARTS) for part in _names(value))
            for name, value in _table(dates, ("hour", "month"), "dates").items()
        }
        turns = {
            name: bounded(f"the period of {name!r} in cyclic", value, above=True)
            for name, value in _table(cyclic or {}, None, "cyclic").items()
        }
        if date_format is not None and not isinstance(date_format, str):
            raise ConfigError(f"date_format must be a text, not {shown(date_format)}")
        if order is not None and sequence is None:
            raise ConfigError("order is for sequences; say which column tells them apart: sequence")
        within = {column: name for name, names in (groups or {}).items() for column in names}
        known = [c for n in _names(ids or ()) for c in (groups or {}).get(n, (n,))]
        others = _gaps(missing), _names(without or ()), tuple(known), within, sequence, order
        plan = cls(listed, parts, date_format, turns, *others)
        plan._check_kinds()
        return plan

    @property
    def plain(self) -> bool:
        """Whether all columns are numbers without gaps, and there is nothing to do."""
        return self == ColumnPlan()

    def named(self) -> set[str]:
        """The columns that an option names."""
        gaps = set() if isinstance(self.missing, str) else set(self.missing)
        return {*self.categories, *self.dates, *self.cyclic, *self.without, *self.ids} | gaps

    @property
    def steps(self) -> tuple[str, ...]:
        """Columns that say which sequence a row is a step of, and where it stands in it."""
        return tuple(name for name in (self.sequence, self.order) if name is not None)

    def check(self, inputs: Sequence[str], source: str) -> None:
        """A ConfigError where an option names a column that is no input, or ids are mixed."""
        for name in sorted(self.named() - set(inputs)):
            raise ConfigError(
                f"{source}: {name!r} is named among categories, dates, cyclic, missing, without or "
                f"ids, but is no input; the inputs are {', '.join(map(repr, inputs[:10]))}"
            )
        check_ids([self.column(name) for name in inputs])

    def column(self, name: str) -> Column:
        """What is to be made of a column, as far as it is known before its rows are read."""
        gaps = self.missing if isinstance(self.missing, str) else self.missing.get(name, "error")
        absent, group = name in self.without, self.groups.get(name)
        if name in self.steps:
            return StepColumn(name, role="sequence" if name == self.sequence else "order")
        if name in self.ids:
            return IdColumn(name, group=group)
        if name in self.categories:
            return CategoryColumn(name, gaps, absent, self.categories[name], group=group)
        if name in self.dates:
            days = self.dates[name], self.date_format
            return DateColumn(name, gaps, absent, *days, group=group)
        return NumberColumn(name, gaps, absent, self.cyclic.get(name), group=group)

    def learned(
        self,
        names: Sequence[str],
        codes: NDArray[np.float64],
        texts: Mapping[str, Sequence[str]],
        source: str,
    ) -> Encoding:
        """The encoding, from the codes of training rows.

        ``texts`` are the categories that the codes of a column stand for.
        """
        found = []
        for i, name in enumerate(names):
            column, values = self.column(name), codes[:, i]
            if not column.absent and np.isnan(values).all():
                column = _empty(column, source)
            if isinstance(column, CategoryColumn) and not column.categories:
                column = replace(column, categories=_seen(column, values, texts, source))
            found.append(column.learned(values))
        seen = (isinstance(c, CategoryColumn) and not self.categories[c.name] for c in found)
        filled = (c.allows_gaps and c.fillable for c in found)
        return Encoding(tuple(found), learned=any(seen) or any(filled))

    def _check_kinds(self) -> None:
        kinds: dict[str, Mapping[str, Any]]
        kinds = {"categories": self.categories, "dates": self.dates, "cyclic": self.cyclic}
        kinds["ids"] = dict.fromkeys(self.ids)
        for one, table in kinds.items():
            for other, names in kinds.items():
                both = sorted(set(table) & set(names)) if one < other else []
                if both:
                    raise ConfigError(f"column {both[0]!r} is in {one} and in {other}; choose one")


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


def _seen(
    column: CategoryColumn,
    codes: NDArray[np.float64],
    texts: Mapping[str, Sequence[str]],
    source: str,
) -> tuple[str, ...]:
    if column.absent:
        raise ConfigError(
            f"{source}: column {column.name!r} is not there (without), so its categories cannot be "
            f"learned; list them: categories = {{{column.name} = [...]}}"
        )
    known = texts[column.name]
    return LabelMap.seen(known[int(code)] for code in set(codes[~np.isnan(codes)])).names


def recoded(
    column: Column, codes: NDArray[np.float64], texts: Sequence[str]
) -> NDArray[np.float64]:
    """Codes by a file's own list of categories as codes by the column's list."""
    table = np.array([*(column.code(text) for text in texts), np.nan])
    places = np.where(np.isnan(codes), len(texts), codes).astype(np.int64)
    found: NDArray[np.float64] = table[places]
    return found


def _names(value: Any) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, Iterable) or isinstance(names, Mapping):
        raise ConfigError(f"expected a name or a list of names, not {shown(value)}")
    listed = tuple(names)
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
    if not isinstance(missing, Mapping):
        return _gap("missing", missing)
    return {name: _gap(f"missing of {name!r}", how) for name, how in missing.items()}


def _gap(what: str, how: Any) -> Gaps:
    one_of(what, how, GAPS)
    gap: Gaps = how
    return gap
