"""Rows of files as a client: read, checked, split, encoded, standardized."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedgradnorm._checks import shown
from fedgradnorm._client import SPLITS, Client
from fedgradnorm._columns import is_frame
from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm.data._arrays import (
    Standardize,
    client_from_arrays,
    single_precision,
    with_splits,
)
from fedgradnorm.data._bad_rows import BadRows, log_dropped, tell_unlabelled
from fedgradnorm.data._files.archives import Arrays, rows_from_npz
from fedgradnorm.data._files.encoding import Column, Encoding, gap_in
from fedgradnorm.data._files.images import Images
from fedgradnorm.data._files.inputs import ColumnPlan
from fedgradnorm.data._files.splitting import Split
from fedgradnorm.data._files.tables import (
    TABLE_SUFFIXES,
    Cells,
    FileRows,
    Form,
    each,
    is_missing,
    is_there,
    missing_name,
    number_of,
    numbers_of,
    read_table,
    text_of,
    usable,
)
from fedgradnorm.data._files.target import Target, class_numbers, label_map, tell_untrained
from fedgradnorm.tasks._kind import KINDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedgradnorm.data._bad_rows import OnBad
    from fedgradnorm.tasks._labels.label_map import LabelMap


@dataclass(frozen=True)
class Reader:
    """How a client's files are read: the options of its table, checked.

    ``targets`` are those of each task; of a client with one task by the name "". ``marks`` are the
    columns that decide the split, ``folder`` holds the images.
    """

    targets: Mapping[str, Target]
    plan: ColumnPlan
    form: Form
    arrays: Arrays
    images: Images
    folder: Path | None
    marks: tuple[str, ...]
    on_bad: OnBad
    stream: bool

    @property
    def inputs(self) -> tuple[str, ...] | None:
        """The input columns, where they are listed."""
        return self.plan.inputs

    @property
    def columns(self) -> tuple[str, ...]:
        """The target columns."""
        every = (column for target in self.targets.values() for column in target.columns)
        return tuple(dict.fromkeys(every))

    def read_all(self, files: Mapping[str, Any]) -> dict[str, FileRows]:
        """The rows of each split's file; the training file decides the columns and their order."""
        reader, splits = self, dict[str, FileRows]()
        for split, file in files.items():
            splits[split] = reader.read(file, split)
            if splits[split].inputs is not None:
                reader = replace(reader, plan=replace(self.plan, inputs=splits[split].inputs))
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
        if any(target.form for target in self.targets.values()):
            raise ConfigError(f"{named}: shape is for arrays in an .npz file; leave it out")
        self.check_columns()
        return self._read_table(path, bad) if self.folder is None else self._read_images(path, bad)

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
        said = self.form.na or self.form.where or self.folder or self.columns or self.marks
        if said or self.inputs or not self.plan.plain:
            raise ConfigError(
                f"{path}: an .npz file has no columns or image paths; leave out targets, inputs, "
                "images, split and what is said of columns, and use x_key and y_key"
            )
        return rows_from_npz(path, self.arrays, self.targets, bad)

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
            wanted = [*there, *self.columns, *self.marks]
        table = read_table(path, wanted, bad, self.form)
        for name in (*self.columns, *self.marks):
            if name not in table.frame:
                raise missing_name(bad.source, "column", name, table.frame)
        inputs = self.inputs
        if inputs is None:
            beside = {*self.columns, *self.form.where, *(set(self.marks) - plan.named())}
            inputs = tuple(n for n in table.frame if n not in beside)
        if not inputs:
            raise DataError(
                f"{bad.source}: no input columns besides the targets {list(self.columns)}"
            )
        columns = plan.columns(inputs, bad.source)
        x = pd.DataFrame({column.name: _read_column(table, column) for column in columns})
        y = self.targets_of(table)
        marks = table.marks(self.marks, self.form.free)
        return FileRows(x, y, table.places, marks, inputs)

    def targets_of(self, table: Cells) -> dict[str, Any]:
        """The targets of each task: texts of labels, or the numbers of its columns."""
        y: dict[str, Any] = {}
        for key, target in self.targets.items():
            if target.reads_texts:
                y[key] = np.array(each(text_of, table[target.columns[0]]), dtype=object)
            else:
                y[key] = np.stack([numbers(table, name) for name in target.columns], axis=1)
        return y


def _check_once(what: str, columns: Sequence[str]) -> None:
    doubles = [name for name in columns if list(columns).count(name) > 1]
    if doubles:
        raise ConfigError(f"{what} names column {doubles[0]!r} more than once")


def _read_column(table: Cells, column: Column) -> pd.Series:
    """What is read of an input column; cells that cannot be read are reported."""
    if column.absent:
        return pd.Series(np.full(len(table.frame), np.nan))
    read, cells = column.read(table.frame[column.name]), table[column.name]
    gaps = gap_in(read)
    text = column.kind == "number" and bool(gaps.all())
    way = f"read its texts with categories=[{column.name!r}]" if text else ""
    for i in np.flatnonzero(gaps).tolist():
        if why := column.wrong(cells[i]):
            table.places.report(i, f"column {column.name!r} {why}", way)
        elif not column.allows_gaps:
            filled = "fill such cells with missing='mean'"
            table.places.report(i, f"column {column.name!r} is empty or NaN", filled)
    return pd.Series(read, dtype=read.dtype)


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


def load(
    name: str,
    reader: Reader,
    read: Mapping[str, FileRows],
    split: Split,
    standardize: Standardize,
    seed: int,
) -> Client:
    """Divide the rows of each split's file, and make the client of them."""
    parts = split.parts(name, read, seed)
    _tell_dropped(name, read.values())
    labels = {k: label_map(read, k, one) for k, one in reader.targets.items() if one.counted}
    x = {part: rows.inputs_at(at) for part, (rows, at) in parts.items()}
    encoding, columns = None, read["train"].inputs
    if isinstance(x["train"], pd.DataFrame):  # archives and images have no columns
        if reader.plan.plain:
            x = {part: np.array(own, dtype=np.float64, order="C") for part, own in x.items()}
        else:
            encoding = reader.plan.learned(x["train"], parts["train"][0].places.bad.source)
            columns = encoding.features
            x = {
                part: encoding.encode(encoding.coded(own, f"client {name!r}, {part} data")).numpy()
                for part, own in x.items()
            }
    made = {}
    for key, target in reader.targets.items():
        who, known = f"{name}/{key}" if key else name, labels.get(key)
        y = {
            part: np.asarray(rows.y[key])[at]
            if known is None
            else class_numbers(rows, key, at, known, target)
            for part, (rows, at) in parts.items()
        }
        tell_unlabelled(who, list(y.values()))
        # Of several tasks some may have no targets to standardize.
        none = bool(key) and standardize == "targets" and not KINDS[target.task].real
        how = False if none else standardize
        pairs = {part: (x[part], own) for part, own in y.items()}
        made[key] = _client(who, target, pairs, known, how, encoding, columns)
    client = made[""] if "" in made else _joined(name, made, standardize)
    for row in client.rows:
        tell_untrained(row)
    return client


def _client(
    name: str,
    target: Target,
    pairs: dict[str, Any],
    known: LabelMap | None,
    standardize: Standardize,
    encoding: Encoding | None,
    columns: tuple[str, ...] | None,
) -> Client:
    """A client with one task."""
    if known is not None:
        task, labels = target.make(len(known.names)), known.names
    else:
        task = target.make(target.outputs_in(pairs["train"][1].shape[1:]))
        labels = target.columns if target.task == "multilabel" else ()
    client = client_from_arrays(name, task, pairs.pop("train"), **pairs, standardize=standardize)
    # Files hold numbers as texts or doubles; training is in single precision.
    single = {s: single_precision(pair) for s in SPLITS if (pair := getattr(client, s)) is not None}
    return replace(
        with_splits(client, single),
        labels=labels or None,
        labels_learned=known is not None and not target.is_public(known.names),
        columns=columns,
        encoding=encoding,
    )


def _joined(name: str, clients: Mapping[str, Client], standardize: Standardize) -> Client:
    """A client with several tasks, made of one for each; they share the inputs."""
    if isinstance(standardize, Mapping):
        raise ConfigError(
            f"client {name!r}: constants in standardize are for a client with one task; scale the "
            "data beforehand"
        )
    first = next(iter(clients.values()))
    pairs = {
        split: (pair[0], {key: getattr(one, split)[1] for key, one in clients.items()})
        for split in SPLITS
        if (pair := getattr(first, split)) is not None
    }
    return Client(
        name,
        tasks={key: one.task for key, one in clients.items()},
        train=pairs["train"],
        test=pairs.get("test"),
        validation=pairs.get("validation"),
        scaling={k: one.scaling for k, one in clients.items() if one.scaling is not None} or None,
        labels={k: one.labels for k, one in clients.items() if one.labels is not None} or None,
        columns=first.columns,
        encoding=first.encoding,
    )


def _tell_dropped(name: str, files: Collection[FileRows]) -> None:
    """One line in the log about all rows that were left out of the client's files."""
    reasons = [
        f"{why} [{Path(rows.places.bad.source).name}]"
        for rows in files
        for _, why in sorted(rows.places.bad.reasons.items())
    ]
    total = sum(len(rows.places.numbers) for rows in files)
    what = f"client {name!r}: dropped {len(reasons)} of {total} rows"
    log_dropped(what, reasons)
