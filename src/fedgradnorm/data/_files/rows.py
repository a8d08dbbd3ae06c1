"""Rows read from a user's file: where each of them is, and which of them can be used."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd

from fedgradnorm._errors import DataError
from fedgradnorm.data._bad_rows import BadRows
from fedgradnorm.models._streamed.rows import Streamed

if TYPE_CHECKING:
    from numpy.typing import NDArray

Value = TypeVar("Value")

LARGEST = float(np.finfo(np.float32).max)
"""Training is in single precision, so a larger number is as bad as an infinite one."""

MISSING = ("", "na", "n/a", "nan", "null", "none")
"""Texts that stand for no value, in labels as in numbers, in small or capital letters."""


@dataclass(frozen=True)
class Places:
    """The number of each row, from 1 without the header, and the line where that is known."""

    numbers: Sequence[int]
    lines: Sequence[int] | None
    bad: BadRows[int]

    def report(self, index: int, why: str, way_out: str = "") -> None:
        """Report the row at position ``index`` as one that cannot be used."""
        self.bad.add(self.numbers[index], why, self.name(index), way_out)

    def name(self, index: int) -> str:
        """The row at position ``index``, for a message."""
        row = f"data row {self.numbers[index]}"
        return row if self.lines is None else f"{row} (line {self.lines[index]})"

    def where(self, index: int) -> str:
        """The same, with the file."""
        return f"{self.bad.source}, {self.name(index)}"

    def good(self) -> NDArray[np.int64]:
        """Positions of the rows that can be used."""
        kept = ~np.isin(np.asarray(self.numbers), list(self.bad.reasons))
        return np.flatnonzero(kept).astype(np.int64)

    def at(self, index: Sequence[int]) -> Places:
        """Some of the rows."""
        lines = None if self.lines is None else [self.lines[i] for i in index]
        return Places([self.numbers[i] for i in index], lines, self.bad)


@dataclass(frozen=True)
class FileRows:
    """What a reader returns: one entry per data row, the bad ones still among them.

    ``x`` is an array, rows that are read batch by batch, or of a table a frame: of each input
    column the numbers or, for categories, the texts. ``y`` has the targets of each task: a table of
    numbers, or label texts; what nobody labelled is NaN or an empty text. ``marks`` are the cells
    of columns that decide the split. Where a row is a sequence, ``steps`` says which rows of ``x``
    are its steps. ``label_texts`` are what the numbers in ``y`` of a task stand for, where every
    position of a row has a label.
    """

    x: Any
    y: Mapping[str, Any]
    places: Places
    marks: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    steps: Sequence[NDArray[np.int64]] | None = None
    label_texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    inputs: tuple[str, ...] | None = None

    def inputs_at(self, index: NDArray[np.int64]) -> Any:
        """The inputs of some rows, or all their steps, one after the other."""
        if isinstance(self.x, Streamed):  # of which none is read here
            return Streamed(self.x.feed.subset(index))
        at = index if self.steps is None else np.concatenate([self.steps[i] for i in index])
        return self.x.iloc[at] if isinstance(self.x, pd.DataFrame) else self.x[at]

    def good(self) -> NDArray[np.int64]:
        """Positions of the rows that can be used."""
        return self.places.good()


def array_places(size: int, bad: BadRows[int]) -> Places:
    """The rows of an array."""
    return Places(range(1, size + 1), None, bad)


def is_missing(cell: object) -> bool:
    """Whether a cell holds no value: the one rule for labels, inputs and numbers."""
    return cell is None or str(cell).strip().lower() in MISSING


def each(function: Callable[[Any], Value], cells: Sequence[Any]) -> list[Value]:
    """The function of every cell; a text that occurs again is not looked at again."""
    if not all(type(cell) is str for cell in cells):
        return [function(cell) for cell in cells]
    found = {cell: function(cell) for cell in set(cells)}
    return [found[cell] for cell in cells]


def cells_of(column: Any) -> list[Any]:
    """The cells of a column as Python's own, None where there is none."""
    series = pd.Series(column)
    found: list[Any] = series.astype(object).where(series.notna(), None).tolist()
    return found


def text_of(cell: object) -> str:
    """A label or category as a text, empty where there is none."""
    return "" if is_missing(cell) else str(cell).strip()


def number_of(cell: Any) -> float:
    """A cell as a number; NaN where it is none."""
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def numbers_of(column: Any) -> NDArray[np.float64]:
    """A column as numbers; NaN where a cell is none."""
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "fiub":
        return np.array(column, dtype=np.float64)
    try:
        return np.asarray(column.to_numpy(object, na_value=np.nan).astype(np.float64))
    except (TypeError, ValueError, OverflowError):
        return np.array(each(number_of, cells_of(column)), dtype=np.float64)


def usable(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Which numbers are finite and fit single precision."""
    with np.errstate(invalid="ignore"):
        result: NDArray[np.bool_] = np.abs(values) <= LARGEST
    return result


def missing_name(source: str, what: str, name: str, names: Iterable[str]) -> DataError:
    """The error for a column or key that a file does not have, with the nearest that it has."""
    known = list(names)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    listed = ", ".join(map(repr, known[:10])) + (", ..." if len(known) > 10 else "")
    return DataError(f"{source}: no {what} {name!r}{hint} (it has: {listed or 'none'})")


def reason_of(error: Exception) -> str:
    """The first line of what a reader says of a damaged file, or the kind of its error."""
    return " ".join(str(error).splitlines()[:1])[:200] or type(error).__name__
