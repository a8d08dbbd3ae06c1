"""How a client's files are read, whatever their format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from fedgradnorm._checks import shown
from fedgradnorm._columns import is_frame
from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm.data._bad_rows import BadRows
from fedgradnorm.data._files.archives import Arrays, rows_from_npz
from fedgradnorm.data._files.columns import Column
from fedgradnorm.data._files.encoding import step_rows
from fedgradnorm.data._files.images import Images
from fedgradnorm.data._files.inputs import ColumnPlan, Inputs, names
from fedgradnorm.data._files.rows import (
    FileRows,
    each,
    is_missing,
    missing_name,
    number_of,
    numbers_of,
    text_of,
    usable,
)
from fedgradnorm.data._files.tables import TABLE_SUFFIXES, Cells, Form, is_there, read_table
from fedgradnorm.data._files.target import Target

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedgradnorm.data._bad_rows import OnBad


@dataclass(frozen=True)
class Reader:
    """How a client's files are read: the options of its table, checked.

    ``targets`` are those of each task; of a client with one task by the name "". ``marks`` are the
    columns that decide the split, ``folder`` holds the images.
    """

    targets: Mapping[str, Target]
    given: Inputs
    plan: ColumnPlan
    form: Form
    arrays: Arrays
    images: Images
    inputs: tuple[str, ...] | None
    folder: Path | None
    marks: tuple[str, ...]
    on_bad: OnBad
    stream: bool

    def read_all(self, files: Mapping[str, Any]) -> dict[str, FileRows]:
        """The rows of each split's file; the training file decides the columns and their order."""
        reader, splits = self, dict[str, FileRows]()
        for split, file in files.items():
            splits[split] = reader.read(file, split)
            if splits[split].inputs is not None:
                reader = replace(reader, inputs=splits[split].inputs)
        return splits

    def read(self, path: Any, split: str) -> FileRows:
        """The rows of one file, in the format its ending says, or of a DataFrame."""
        named = f"the DataFrame of {split}" if is_frame(path) else str(path)
        bad: BadRows[int] = BadRows(self.on_bad, named)
        if self.stream:
            from fedgradnorm.data._files.streamed_files import streamed_rows

            return streamed_rows(self, path, bad)
        if not is_frame(path):
            if not is_there(path):
                raise DataError(f"{path}: no such file; check the path")
            suffix = self.form.suffix(path)
            if suffix == ".npz":
                return self._read_npz(path, bad)
            if suffix not in TABLE_SUFFIXES:
                known = ", ".join(TABLE_SUFFIXES)
                raise DataError(
                    f"{path}: unknown ending {suffix!r}; use one of {known}, .npz, or say what it "
                    "is: format = 'csv', 'parquet' or 'npz'"
                )
        lengths = self.arrays.lengths is not None
        if lengths or any(target.form for target in self.targets.values()):
            raise ConfigError(
                f"{named}: {'lengths' if lengths else 'shape'} is for arrays in an .npz file; "
                "leave it out, and say of a table which column tells sequences apart: sequence"
            )
        self.check_columns()
        return self._read_table(path, bad) if self.folder is None else self._read_images(path, bad)

    @property
    def columns(self) -> tuple[str, ...]:
        """The target columns of all tasks."""
        every = (column for target in self.targets.values() for column in target.columns)
        return tuple(dict.fromkeys(every))

    def check_columns(self) -> None:
        """Refuse column lists that cannot be meant: no target, a target among inputs, doubles."""
        for target in self.targets.values():
            if not target.columns:
                raise ConfigError("targets must name at least one column")
            if target.reads_texts and len(target.columns) > 1:
                raise ConfigError(
                    f"a classification has one target column, not {list(target.columns)}"
                )
            _check_once("targets", target.columns)
        _check_once("inputs", self.inputs or ())
        both = set(self.columns) - set(self.plan.without)
        for name in self.inputs or ():
            if name in both:
                raise ConfigError(
                    f"column {name!r} is both an input and a target; leave it out of one, or say "
                    f"without = [{name!r}] where other clients have it as an input"
                )

    def _read_npz(self, path: Path, bad: BadRows[int]) -> FileRows:
        named = self.given.named()
        plain = replace(self.plan, ids=(), groups={}).plain
        listed = self.inputs and not named
        said = self.form.na or self.form.where or self.folder or self.columns or self.marks
        if listed or not plain or said:
            raise ConfigError(
                f"{path}: an .npz file has no columns or image paths; leave out targets, images, "
                "split and what is said of columns, use x_key and y_key, and for several inputs "
                "inputs = { NAME = 'ARRAY' }"
            )
        ids = names(self.given.ids or ())
        return rows_from_npz(path, self.arrays, named, ids, self.targets, bad)

    def _read_images(self, path: Any, bad: BadRows[int]) -> FileRows:
        assert self.folder is not None
        columns = self.inputs or ("path",)
        if len(columns) > 1:
            raise ConfigError(f"with images, inputs names the one column of paths, not {columns}")
        self.images.check(self.folder)
        table = read_table(path, [*columns, *self.columns, *self.marks], bad, self.form)
        marks = table.marks(self.marks, self.form.free)
        y = self.targets_of(table)
        x = self.images.read(self.folder, table, columns[0])
        return FileRows(x, y, table.places, marks)

    def _read_table(self, path: Any, bad: BadRows[int]) -> FileRows:
        """Inputs and targets; where no inputs are named, every other column is one."""
        plan, wanted = self.plan, None
        if self.inputs is not None:
            there = [name for name in self.inputs if name not in plan.without]
            wanted = [*there, *plan.steps, *self.columns, *self.marks]
        table = read_table(path, wanted, bad, self.form)
        for name in (*self.columns, *self.marks, *plan.steps):
            if name not in table.frame:
                raise missing_name(bad.source, "column", name, table.frame)
        inputs = self.inputs
        if inputs is None:
            beside = {*self.columns, *self.form.where, *(set(self.marks) - plan.named())}
            inputs = tuple(n for n in table.frame if n not in beside and n not in plan.steps)
        if not inputs:
            raise DataError(
                f"{bad.source}: no input columns beside the targets {list(self.columns)}"
            )
        columns = plan.columns(inputs, bad.source)
        read = {column.name: _read_column(table, column) for column in columns}
        x = pd.DataFrame({name: pd.Series(v, dtype=v.dtype) for name, v in read.items()})
        y = self.targets_of(table)
        marks = table.marks(self.marks, self.form.free)
        rows = FileRows(x, y, table.places, marks, inputs=inputs)
        return joined_steps(rows, columns) if plan.sequence else rows

    def targets_of(self, table: Cells) -> dict[str, Any]:
        """The targets of each task: label texts of its one column, or the numbers of all.

        A missing one is no label: an empty text, or NaN.
        """
        found = {}
        for key, target in self.targets.items():
            if target.reads_texts:
                texts = each(text_of, table[target.columns[0]])
                found[key] = np.array(texts, dtype=object)
            else:
                found[key] = np.stack([numbers(table, name) for name in target.columns], axis=1)
        return found


def _check_once(what: str, columns: Sequence[str]) -> None:
    doubles = [name for name in columns if list(columns).count(name) > 1]
    if doubles:
        raise ConfigError(f"{what} names column {doubles[0]!r} more than once")


def _read_column(table: Cells, column: Column) -> NDArray[Any]:
    """What is read of an input column; cells that cannot be read are reported."""
    if column.absent:
        return np.full(len(table.frame), np.nan)
    read, places, cells = column.read(table.frame[column.name]), table.places, table[column.name]
    empty = read == "" if read.dtype == object else np.isnan(read)
    text = column.kind == "number" and bool(empty.all())
    way = f"read its texts with categories=[{column.name!r}]" if text else ""
    for i in np.flatnonzero(empty).tolist():
        if why := column.wrong(cells[i]):
            places.report(i, f"column {column.name!r} {why}", way)
        elif getattr(column, "role", "") == "sequence":
            places.report(i, f"column {column.name!r}, which tells sequences apart, is empty")
        elif not column.allows_gaps:
            filled = "fill such cells with missing='mean'" if column.fillable else ""
            places.report(i, f"column {column.name!r} is empty or NaN", filled)
    return read


def numbers(table: Cells, name: str) -> NDArray[np.float64]:
    """A column of targets as numbers; NaN where there is none."""
    values = numbers_of(table.frame[name])
    wrong = np.flatnonzero(~usable(values)).tolist()
    cells = table[name] if wrong else []
    for i in wrong:
        if not is_missing(cells[i]):
            why = "not a number" if np.isnan(number_of(cells[i])) else "too large"
            table.places.report(i, f"column {name!r} is {shown(cells[i])}, {why}")
            values[i] = np.nan
    return values


def joined_steps(rows: FileRows, columns: Sequence[Column]) -> FileRows:
    """A row for each sequence; it is known by the number of the first row of the file it has.

    A step that cannot be used makes its sequence one that cannot. The label of a sequence is the
    one that its rows have; rows without one, such as all but the last, say nothing.
    """
    places = [i for i, column in enumerate(columns) if column.kind == "step"]
    codes = torch.from_numpy(np.array(rows.x.iloc[:, places], dtype=np.float64))
    steps = [at.numpy() for at in step_rows([columns[i] for i in places], codes)]
    first = [int(at.min()) for at in steps]
    reasons, numbers = rows.places.bad.reasons, rows.places.numbers
    on_bad: OnBad = "drop" if rows.places.bad.on_bad == "drop" else "error"
    bad: BadRows[int] = BadRows(on_bad, rows.places.bad.source)
    (sequence,) = [c.name for c in columns if getattr(c, "role", "") == "sequence"]
    for at, begin in zip(steps, first, strict=True):
        wrong = next((reasons[numbers[i]] for i in at if numbers[i] in reasons), None)
        if wrong is not None:
            bad.reasons[numbers[begin]] = wrong
    return FileRows(
        rows.x,
        {key: _sequence_targets(rows, y, steps, sequence) for key, y in rows.y.items()},
        replace(rows.places.at(first), bad=bad),
        {name: [cells[i] for i in first] for name, cells in rows.marks.items()},
        steps,
        inputs=rows.inputs,
    )


def _sequence_targets(
    rows: FileRows, y: NDArray[Any], steps: Sequence[NDArray[np.int64]], sequence: str
) -> NDArray[Any]:
    """The one target of each sequence."""
    table = y.reshape(len(y), -1)
    none: Any = "" if y.dtype == object else np.nan
    found = np.full((len(steps), table.shape[1]), none, dtype=y.dtype)
    for row, at in enumerate(steps):
        for k in range(table.shape[1]):
            labels = [v for v in table[at, k].tolist() if v != "" and v == v]  # NaN is not itself
            distinct = list(dict.fromkeys(labels))
            if len(distinct) > 1:
                raise DataError(
                    f"{rows.places.where(int(at.min()))}: the sequence that begins here (column "
                    f"{sequence!r}) has the targets {shown(distinct[0])} and {shown(distinct[1])}; "
                    "a sequence has one, in each of its rows or in some of them"
                )
            if distinct:
                found[row, k] = distinct[0]
    return found.reshape(len(steps), *y.shape[1:])
