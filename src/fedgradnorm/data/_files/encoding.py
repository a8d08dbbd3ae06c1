"""Raw columns of a client as what its network takes: numbers, named inputs, ids, sequences.

What an encoding needs is learned on training rows. Named inputs and sequences are made last, from
scaled numbers, so that scaling knows nothing of them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedgradnorm._checks import shown
from fedgradnorm._columns import is_frame, picked_columns
from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm.data._files.columns import (
    UNKNOWN,
    CategoryColumn,
    Column,
    IdColumn,
    StepColumn,
    column_from,
)
from fedgradnorm.data._files.rows import cells_of
from fedgradnorm.models._input_rows import Fields, Inputs, Sequences

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Groups = dict[str | None, list[Column]]

log = logging.getLogger(__name__)

SHOWN = 5  # unknown categories that a line of the log names


@dataclass(frozen=True)
class Encoding:
    """What is done to each input column before the scaling."""

    columns: tuple[Column, ...]
    learned: bool = True  # whether the client's own data decided categories or fillings

    @property
    def features(self) -> tuple[str, ...]:
        """What the numbers of an encoded row are called."""
        return tuple(name for column in self.columns for name in column.names())

    def in_order(self, features: Sequence[str]) -> Encoding:
        """The encoding whose features are in this order."""
        place = {name: k for k, name in enumerate(features)}
        columns = sorted(self.columns, key=lambda c: place[c.names()[0]])
        found = Encoding(tuple(columns), self.learned)
        if found.features != tuple(features):
            raise DataError(f"columns {', '.join(self.features)} cannot be put in another order")
        return found

    def categories(self) -> dict[str, tuple[str, ...]]:
        """The categories of columns that have some."""
        return {c.name: c.categories for c in self.columns if isinstance(c, CategoryColumn)}

    def encode(self, codes: Tensor) -> Tensor:
        """Codes [rows, columns] as the numbers of each row, in float64."""
        wide = codes.to(torch.float64)
        return torch.cat([c.features(wide[:, i]) for i, c in enumerate(self.columns)], dim=1)

    @property
    def flat(self) -> bool:
        """Whether the scaled numbers are the network's input as they are."""
        return not any(c.group or isinstance(c, IdColumn | StepColumn) for c in self.columns)

    @property
    def has_steps(self) -> bool:
        """Whether a row is a step of a sequence."""
        return any(isinstance(column, StepColumn) for column in self.columns)

    @property
    def scalable(self) -> list[bool]:
        """Of each number of an encoded row, whether it may be scaled: ids may not."""
        return [not isinstance(c, IdColumn) for c in self.columns for _ in c.names()]

    def arranged(self, numbers: Tensor, codes: Tensor) -> Inputs:
        """Scaled numbers of rows, or of steps, as what the network takes."""
        if self.flat:
            return numbers
        parts: dict[str | None, Any] = dict(self.divided(numbers))
        if self.has_steps:
            rows = step_rows(self.columns, codes)
            parts = {name: Sequences([part[at] for at in rows]) for name, part in parts.items()}
        return _inputs(parts)

    def without_steps(self) -> Encoding:
        """The encoding of the inputs alone, for rows whose steps are known otherwise."""
        return Encoding(tuple(c for c in self.columns if not isinstance(c, StepColumn)))

    def divided(self, numbers: Tensor) -> dict[str | None, Tensor]:
        """Numbers [..., features] by the names of the inputs; None is that of one without.

        Ids are whole numbers. A step that is one id has no axis for it, as networks take tokens.
        """
        columns = self.without_steps().columns
        every = numbers.split([len(column.names()) for column in columns], dim=-1)
        parts = {column.name: part for column, part in zip(columns, every, strict=True)}
        found = {}
        for name, members in _groups(columns).items():
            whole = torch.cat([parts[column.name] for column in members], dim=-1)
            if isinstance(members[0], IdColumn):
                whole = whole.to(torch.int64)
                whole = whole[..., 0] if self.has_steps and len(members) == 1 else whole
            found[name] = whole
        return found

    def fields(self, numbers: Tensor) -> Inputs:
        """Numbers [rows, features] as what the network takes."""
        return _inputs(self.divided(numbers))

    def codes(self, x: Any, where: str) -> Tensor:
        """The codes of raw rows; a DataError names the row and the column that cannot be read.

        ``x`` is a DataFrame, read by column name, or an array with a column for each input. A
        tensor holds no texts, so it is taken for codes.
        """
        names = [column.name for column in self.columns]
        if is_frame(x):
            there = [column.name for column in self.columns if not column.absent]
            cells: Mapping[str, Any] = picked_columns(x, there, where)
            found = [_read(c, pd.Series(cells.get(c.name, [None] * len(x))), where)
                     for c in self.columns]  # fmt: skip
            return torch.from_numpy(np.stack(found, axis=1))
        array = x if isinstance(x, Tensor) else np.asarray(x, dtype=object)
        if array.ndim != 2 or array.shape[1] != len(names):
            raise DataError(
                f"{where}: x has shape {tuple(array.shape)}; give a DataFrame, or a column for "
                f"each of the {len(names)} inputs: {', '.join(names)[:200]}"
            )
        if not isinstance(array, Tensor):
            found = [_read(c, pd.Series(array[:, i]), where) for i, c in enumerate(self.columns)]
            return torch.from_numpy(np.stack(found, axis=1))
        for i, column in enumerate(self.columns):
            gap = torch.isnan(array[:, i])
            if not column.allows_gaps and bool(gap.any()):
                raise _no_value(f"{where}: row {int(gap.nonzero()[0])} of x", column.name)
        return array

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


def check_ids(columns: Sequence[Column]) -> None:
    """A ConfigError where ids and other numbers would be one tensor."""
    for name, members in _groups(columns).items():
        ids = [column.name for column in members if isinstance(column, IdColumn)]
        if ids and len(ids) < len(members):
            other = next(column.name for column in members if column.name not in ids)
            inside = "" if name is None else f" of {name!r}"
            raise ConfigError(
                f"inputs{inside}: {ids[0]!r} is an id and {other!r} is none; a network takes them "
                f"as two inputs: inputs = {{ ids = [{ids[0]!r}], rest = [{other!r}] }}"
            )


def step_rows(columns: Sequence[Column], codes: Tensor) -> list[Tensor]:
    """Which rows are each sequence's steps, in their order; sequences as they appear."""
    places = {c.role: i for i, c in enumerate(columns) if isinstance(c, StepColumn)}
    which = codes[:, places["sequence"]].tolist()
    first = {value: place for place, value in enumerate(dict.fromkeys(which))}
    number = torch.tensor([first[value] for value in which])
    order = torch.arange(len(codes))
    if "order" in places:
        order = torch.argsort(codes[:, places["order"]], stable=True)
    order = order[torch.argsort(number[order], stable=True)]
    return list(order.split(torch.bincount(number).tolist()))


def tell_unknown(
    column: Column, texts: NDArray[Any], codes: NDArray[np.float64], where: str
) -> None:
    """Say in the log which categories were not known, and what becomes of them."""
    unknown = codes == UNKNOWN
    if not isinstance(column, CategoryColumn) or not unknown.any():
        return
    found = Counter(texts[unknown].tolist())
    some = ", ".join(shown(name) for name in sorted(found)[:SHOWN])
    log.warning(
        "%s: column %r is %s%s in %d of %d rows, which is none of its categories; there all "
        "numbers of the column are 0",
        *(where, column.name, some, ", ..." if len(found) > SHOWN else ""),
        *(int(unknown.sum()), len(codes)),
    )


def _groups(columns: Sequence[Column]) -> Groups:
    """The input columns of each named input; of None where there is one without a name."""
    found: Groups = {}
    for column in columns:
        if not isinstance(column, StepColumn):
            found.setdefault(column.group, []).append(column)
    return found


def _inputs(parts: Mapping[str | None, Any]) -> Inputs:
    """One input without a name, or several with one."""
    if None in parts:
        one: Inputs = parts[None]
        return one
    return Fields({str(name): part for name, part in parts.items()})


def _read(column: Column, cells: pd.Series, where: str) -> NDArray[np.float64]:
    """The codes of a column's cells; a DataError for the first that cannot be read."""
    if column.absent:
        return np.full(len(cells), np.nan)
    read = column.read(cells)
    codes = column.coded(read)
    sequence = isinstance(column, StepColumn) and column.role == "sequence"
    gaps = np.flatnonzero(np.isnan(codes)).tolist()
    plain = cells_of(cells) if gaps else []
    for row in gaps:
        place = f"{where}: row {row} of x"
        if sequence:
            raise DataError(
                f"{place}, column {column.name!r} is empty; it says which sequence a row belongs to"
            )
        if why := column.wrong(plain[row]):
            raise DataError(f"{place}, column {column.name!r} {why}")
        if not column.allows_gaps:
            raise _no_value(place, column.name)
    if isinstance(column, CategoryColumn):
        tell_unknown(column, read, codes, where)
    return codes


def _no_value(place: str, column: str) -> DataError:
    return DataError(
        f"{place}, column {column!r} is empty or NaN; fill it, or train the client with "
        "missing='mean', 'median' or 'indicator'"
    )
