"""Raw columns of a client as the numbers that its network sees; learned on training rows."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedgradnorm._checks import shown
from fedgradnorm._columns import is_frame, picked_columns
from fedgradnorm._errors import DataError
from fedgradnorm.data._encoding.arranging import arranged, divided, is_flat
from fedgradnorm.data._encoding.column_kinds import (
    UNKNOWN,
    CategoryColumn,
    Column,
    IdColumn,
    NumberColumn,
    StepColumn,
    column_from,
)
from fedgradnorm.data._files.read_rows import LARGEST, is_missing
from fedgradnorm.models._input_rows import Fields, Inputs

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
        return is_flat(self.columns)

    @property
    def has_steps(self) -> bool:
        """Whether a row is a step of a sequence."""
        return any(isinstance(column, StepColumn) for column in self.columns)

    @property
    def scalable(self) -> list[bool]:
        """Of each number of an encoded row, whether it may be scaled: ids may not."""
        return [not isinstance(c, IdColumn) for c in self.columns for _ in c.names()]

    def arranged(self, numbers: Tensor, codes: Tensor) -> Inputs:
        """Scaled numbers as what the network takes: see :mod:`arranging`."""
        return numbers if self.flat else arranged(self.columns, numbers, codes)

    def without_steps(self) -> Encoding:
        """The encoding of the inputs alone, for rows whose steps are known otherwise."""
        return Encoding(tuple(c for c in self.columns if not isinstance(c, StepColumn)))

    def divided(self, numbers: Tensor) -> dict[str | None, Tensor]:
        """Numbers [..., features] by the names of the inputs; None is that of one without."""
        plain = self.without_steps().columns
        return divided(plain, numbers, steps=self.has_steps)

    def fields(self, numbers: Tensor) -> Tensor | Fields:
        """Numbers [rows, features] as what the network takes."""
        parts = self.divided(numbers)
        return parts[None] if None in parts else Fields({str(k): v for k, v in parts.items()})

    def codes(self, x: Any, where: str) -> Tensor:
        """The codes of raw rows; a DataError names the row and the column that cannot be read.

        ``x`` is a DataFrame, read by column name, or an array with a column for each input. A
        tensor holds no texts, so it is taken for codes.
        """
        if isinstance(x, Tensor):
            return self._checked(x, where)
        cells = self._cells(x, where)
        found = [coded(column, cells[column.name], where) for column in self.columns]
        return torch.from_numpy(np.stack(found, axis=1))

    def _checked(self, codes: Tensor, where: str) -> Tensor:
        if codes.ndim != 2 or codes.shape[1] != len(self.columns):
            raise DataError(
                f"{where}: x has shape {tuple(codes.shape)}; give a column for each of the "
                f"{len(self.columns)} inputs: {', '.join(c.name for c in self.columns)[:200]}"
            )
        for i, column in enumerate(self.columns):
            gap = torch.isnan(codes[:, i])
            if not column.allows_gaps and bool(gap.any()):
                raise no_value(f"{where}: row {int(gap.nonzero()[0])} of x", column.name)
        return codes

    def _cells(self, x: Any, where: str) -> dict[str, Sequence[Any]]:
        """The cells of each column."""
        if is_frame(x):
            there = [column.name for column in self.columns if not column.absent]
            absent = {column.name: [None] * len(x) for column in self.columns if column.absent}
            return {**picked_columns(x, there, where), **absent}
        array = np.asarray(x, dtype=object)
        if array.ndim != 2 or array.shape[1] != len(self.columns):
            raise DataError(
                f"{where}: x has shape {array.shape}; give a DataFrame, or a column for each of "
                f"the {len(self.columns)} inputs: {', '.join(c.name for c in self.columns)[:200]}"
            )
        return {c.name: array[:, i].tolist() for i, c in enumerate(self.columns)}

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


def coded(column: Column, cells: Sequence[Any], where: str) -> NDArray[np.float64]:
    """The codes of a column's cells; a DataError for the first that cannot be read."""
    if column.absent:
        return np.full(len(cells), np.nan)
    if isinstance(column, StepColumn) and column.role == "sequence":
        return numbered_sequences(column, cells, where)
    array = np.asarray(cells)
    if isinstance(column, NumberColumn) and array.dtype.kind in "fiub":
        codes = array.astype(np.float64)
        wrong = ~(np.abs(codes) <= LARGEST) & ~np.isnan(codes)
    elif array.dtype.kind == "M" and column.kind == "date":
        codes = array.astype("M8[us]").astype(np.int64) / 1e6
        codes = np.where(np.isnat(array), np.nan, codes)
        wrong = np.zeros(len(codes), dtype=bool)
    else:
        codes, wrong = _one_by_one(column, cells, where)
    bad = np.isnan(codes) & (not column.allows_gaps)
    if bad.any():
        raise no_value(f"{where}: row {int(bad.argmax())} of x", column.name)
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(
            f"{where}: row {row} of x, column {column.name!r} is {cells[row]}, too large"
        )
    tell_unknown(column, cells, codes, where)
    return codes


def numbered_sequences(column: Column, cells: Sequence[Any], where: str) -> NDArray[np.float64]:
    """The sequence of each row, numbered as they appear."""
    names = [None if is_gap(cell) else str(cell).strip() for cell in cells]
    if None in names:
        raise DataError(
            f"{where}: row {names.index(None)} of x, column {column.name!r} is empty; it says "
            "which sequence a row belongs to"
        )
    first = {name: place for place, name in enumerate(dict.fromkeys(names))}
    return np.array([first[name] for name in names], dtype=np.float64)


def _one_by_one(
    column: Column, cells: Sequence[Any], where: str
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    codes = np.full(len(cells), np.nan)
    for i, cell in enumerate(cells):
        if not is_gap(cell):
            try:
                codes[i] = column.code(cell)
            except ValueError as error:
                plain = cell.item() if isinstance(cell, np.generic) else cell
                raise DataError(
                    f"{where}: row {i} of x, column {column.name!r} is {shown(plain)}, {error}"
                ) from error
    return codes, np.zeros(len(cells), dtype=bool)


def is_gap(cell: Any) -> bool:
    """Whether a cell holds no value, also in pandas' own words for it."""
    return is_missing(cell) or (not isinstance(cell, str) and str(cell) in ("<NA>", "NaT"))


def no_value(place: str, column: str) -> DataError:
    """The error for a gap in a column that must not have any."""
    return DataError(
        f"{place}, column {column!r} is empty or NaN; fill it, or train the client with "
        "missing='mean', 'median' or 'indicator'"
    )


def tell_unknown(
    column: Column, cells: Sequence[Any], codes: NDArray[np.float64], where: str
) -> None:
    """Say in the log which categories were not known, and what becomes of them."""
    if not isinstance(column, CategoryColumn):
        return
    rows = np.flatnonzero(codes == UNKNOWN).tolist()
    if rows:
        found = Counter(str(cells[i]).strip() for i in rows)
        some = ", ".join(shown(name) for name in sorted(found)[:SHOWN])
        log.warning(
            "%s: column %r is %s%s in %d of %d rows, which is none of its categories; there all "
            "numbers of the column are 0",
            *(where, column.name, some, ", ..." if len(found) > SHOWN else ""),
            *(len(rows), len(cells)),
        )
