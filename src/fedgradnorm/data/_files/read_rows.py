"""Rows read from a user's file, and what happens to those that cannot be used."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

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
class FileRows:
    """What a reader returns: one entry per data row, the bad ones still among them.

    ``x`` is an array, or rows that are read batch by batch.
    ``y`` is a table of numbers, or a list of label texts for a classification; what nobody labelled
    is NaN or an empty text. ``inputs`` names the columns of ``x`` where they have names. ``texts``
    are the categories that the numbers of a column of ``x`` stand for. ``marks`` are the cells of
    columns that decide the split.
    Where a row is a sequence, ``steps`` says which rows of ``x`` are its steps. ``label_texts`` are
    what the numbers in ``y`` stand for, where every position of a row has a label.
    """

    x: Any
    y: NDArray[np.float64] | list[str]
    rows: Sequence[int]
    lines: Sequence[int] | None
    bad: BadRows[int]
    inputs: tuple[str, ...] | None = None
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    marks: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    steps: Sequence[NDArray[np.int64]] | None = None
    label_texts: tuple[str, ...] | None = None

    def inputs_at(self, index: NDArray[np.int64]) -> Any:
        """The inputs of some rows, or all their steps, one after the other."""
        if self.steps is not None:
            return self.x[np.concatenate([self.steps[i] for i in index])]
        if isinstance(self.x, Streamed):  # of which none is read here
            return Streamed(self.x.feed.subset(index))
        return self.x[index]

    def report(self, index: int, why: str) -> None:
        """Report the row at position ``index``."""
        row = self.rows[index]
        self.bad.add(row, why, row_place(row, self._line(index)))

    def where(self, index: int) -> str:
        """The file and row at position ``index``, for a message."""
        return f"{self.bad.source}, {row_place(self.rows[index], self._line(index))}"

    def _line(self, index: int) -> int | None:
        return None if self.lines is None else self.lines[index]

    def good(self) -> NDArray[np.int64]:
        """Positions of the rows that can be used."""
        bad = self.bad.reasons
        if not bad:
            return np.arange(len(self.rows), dtype=np.int64)
        return np.array([i for i, row in enumerate(self.rows) if row not in bad], dtype=np.int64)


def is_missing(cell: object) -> bool:
    """Whether a cell holds no value: the one rule for labels and for numbers."""
    return cell is None or str(cell).strip().lower() in MISSING


def each(function: Callable[[Any], Value], cells: Sequence[Any]) -> list[Value]:
    """The function of every cell; a text that occurs again is not looked at again."""
    if not all(type(cell) is str for cell in cells):
        return [function(cell) for cell in cells]
    found = {cell: function(cell) for cell in set(cells)}
    return [found[cell] for cell in cells]


def usable(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Which numbers are finite and fit single precision."""
    with np.errstate(invalid="ignore"):
        result: NDArray[np.bool_] = np.abs(values) <= LARGEST
    return result


def label_text(cell: object) -> str:
    """A label as a text, empty where there is none."""
    return "" if is_missing(cell) else str(cell).strip()


def missing_name(source: str, what: str, name: str, names: Sequence[str]) -> DataError:
    """The error for a column or key that a file does not have, with the nearest that it has."""
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    listed = ", ".join(repr(each) for each in names[:10]) + (", ..." if len(names) > 10 else "")
    return DataError(f"{source}: no {what} {name!r}{hint} (it has: {listed or 'none'})")


def row_place(row: int, line: int | None = None) -> str:
    """Where a data row is: its number from 1, header not counted, and its line if that is known."""
    return f"data row {row}" if line is None else f"data row {row} (line {line})"
