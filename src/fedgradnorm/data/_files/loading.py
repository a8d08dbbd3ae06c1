"""Rows of files as a client: columns become numbers, labels class numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

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
from fedgradnorm.data._files.encoding import (
    CategoryColumn,
    Column,
    Encoding,
    tell_unknown,
)
from fedgradnorm.data._files.images import Images
from fedgradnorm.data._files.inputs import ColumnPlan, Inputs, names
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
from fedgradnorm.data._scaling import Scaling

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from fedgradnorm.data._bad_rows import OnBad
    from fedgradnorm.tasks._labels.label_map import LabelMap

    Part = tuple[FileRows, NDArray[np.int64]]


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
                "leave it out"
            )
        self.check_columns()
        return self._read_table(path, bad) if self.folder is None else self._read_images(path, bad)

    @property
    def columns(self) -> tuple[str, ...]:
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
        read = {column.name: _read_column(table, column) for column in columns}
        x = pd.DataFrame({name: pd.Series(v, dtype=v.dtype) for name, v in read.items()})
        y = self.targets_of(table)
        marks = table.marks(self.marks, self.form.free)
        return FileRows(x, y, table.places, marks, inputs=inputs)

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
    targets = reader.targets
    known = {k: label_map(read, k, one) if one.counted else None for k, one in targets.items()}
    made = encoded(name, reader.plan, parts, standardize)
    y: dict[str, dict[str, Any]] = {part: {} for part in parts}
    for key, one in targets.items():
        for part, (rows, at) in parts.items():
            labels = known[key]
            y[part][key] = (
                np.asarray(rows.y[key])[at]
                if labels is None
                else class_numbers(rows, key, at, labels, one)
            )
        tell_unlabelled(f"{name}/{key}" if key else name, [y[part][key] for part in parts])
    columns = read["train"].inputs if made.encoding is None else made.encoding.features
    made = replace(made, columns=columns if made.flat else None)
    singles = {}
    for key, one in targets.items():
        who, own = f"{name}/{key}" if key else name, {part: y[part][key] for part in parts}
        singles[key] = _single(who, one, made, own, known[key], lenient=bool(key))
    client = singles[""] if "" in singles else _joined(name, singles, made)
    for row in client.rows:
        tell_untrained(row)
    return client


def _single(
    name: str,
    target: Target,
    made: Encoded,
    y: Mapping[str, Any],
    known: LabelMap | None,
    *,
    lenient: bool,
) -> Client:
    """A client with one task; where it is one of several, it may be none with real targets."""
    if known is not None:
        task, called = target.make(len(known.names)), known.names
    else:
        task = target.make(target.outputs_in(y["train"].shape[1:]))
        called = target.columns if target.task == "multilabel" else ()
    how = made.standardize
    if how == "targets" and (lenient or made.arranged) and not task.has_real_targets:
        how = False
    pairs: dict[str, Any] = {part: (made.x[part], own) for part, own in y.items()}
    client = client_from_arrays(name, task, pairs.pop("train"), **pairs, standardize=how)
    # Files hold numbers as texts or doubles; training is in single precision.
    single = {s: single_precision(pair) for s in SPLITS if (pair := getattr(client, s)) is not None}
    return replace(
        with_splits(client, single),
        labels=called or None,
        labels_learned=known is not None and not target.is_public(known.names),
        columns=made.columns,
        encoding=made.encoding,
        scaling=made.merged(client.scaling),
    )


def _joined(name: str, clients: Mapping[str, Client], made: Encoded) -> Client:
    """A client with several tasks, made of one for each; they share the inputs."""
    if isinstance(made.standardize, Mapping):
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
        columns=made.columns,
        encoding=made.encoding,
    )


@dataclass(frozen=True)
class Encoded:
    """The inputs of each split, how they were made, and what is still to be standardised.

    ``scaling`` is that of inputs which no longer are one table: those are ``arranged``, and scaled
    here. ``columns`` are the names of the numbers of a row.
    """

    x: dict[str, Any]
    encoding: Encoding | None
    standardize: Standardize
    scaling: Scaling | None = None
    arranged: bool = False
    columns: tuple[str, ...] | None = None

    @property
    def flat(self) -> bool:
        """Whether the inputs are one table of numbers, whose columns have names."""
        return self.encoding is None or self.encoding.flat

    def merged(self, of_targets: Any) -> Any:
        """What was done to the inputs here, and to the targets elsewhere."""
        if self.scaling is None or of_targets is None:
            return self.scaling or of_targets
        inputs = self.scaling.input_mean, self.scaling.input_std
        return replace(of_targets, input_mean=inputs[0], input_std=inputs[1])


def encoded(
    name: str, plan: ColumnPlan, parts: Mapping[str, Part], standardize: Standardize
) -> Encoded:
    """The inputs of each split; with an encoding where columns are more than plain numbers."""
    x = {part: rows.inputs_at(at) for part, (rows, at) in parts.items()}
    if not isinstance(x["train"], pd.DataFrame):  # archives and images have no columns
        ids = isinstance(x["train"], np.ndarray) and x["train"].dtype.kind == "i"
        if ids and standardize in (True, "inputs"):
            raise ConfigError(
                f"client {name!r}: ids are not standardised; use standardize = 'targets', or leave "
                "it out"
            )
        return Encoded(x, None, standardize)
    if plan.plain:
        plain = {part: np.array(own, dtype=np.float64, order="C") for part, own in x.items()}
        return Encoded(plain, None, standardize)
    encoding = plan.learned(x["train"], parts["train"][0].places.bad.source)
    codes = {
        part: _codes(f"client {name!r}, {part} data", encoding, own) for part, own in x.items()
    }
    numbers = {part: encoding.encode(own) for part, own in codes.items()}
    if encoding.flat:
        return Encoded({part: own.numpy() for part, own in numbers.items()}, encoding, standardize)
    if isinstance(standardize, Mapping):
        raise ConfigError(
            f"client {name!r}: constants in standardize are for one table of numbers; scale the "
            "data beforehand"
        )
    scaling = _input_scaling(name, encoding, numbers["train"], standardize)
    if scaling is not None:
        numbers = {part: scaling.scale_inputs(own) for part, own in numbers.items()}
    arranged = {part: encoding.arranged(own) for part, own in numbers.items()}
    left: Standardize = False if standardize in (False, "inputs") else "targets"
    return Encoded(arranged, encoding, left, scaling, arranged=standardize is True)


def _input_scaling(
    name: str, encoding: Encoding, numbers: Tensor, standardize: Standardize
) -> Scaling | None:
    """Mean and deviation of the training rows' numbers; ids are left as they are."""
    if standardize not in (True, "inputs") or not any(encoding.scalable):
        return None
    try:
        learned = Scaling.fit(numbers, numbers)
    except DataError as error:
        raise DataError(f"client {name!r}, training data: {error}") from error
    assert learned.input_mean is not None
    assert learned.input_std is not None
    free = torch.tensor(encoding.scalable)
    mean = torch.where(free, learned.input_mean, 0.0)
    return Scaling(mean, torch.where(free, learned.input_std, 1.0))


def _codes(where: str, encoding: Encoding, rows: pd.DataFrame) -> Tensor:
    """The codes of rows that were read, by what the training rows taught."""
    found = []
    for column in encoding.columns:
        read = rows[column.name].to_numpy()
        codes = np.full(len(rows), np.nan) if column.absent else column.coded(read)
        if isinstance(column, CategoryColumn):
            tell_unknown(column, read, codes, where)
        found.append(codes)
    return torch.from_numpy(np.stack(found, axis=1))


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
