"""Your own files as clients: CSV, Parquet, .npz, or a folder of images with a table of labels.

What is said of a client's files is a few objects. Their fields are also the keys of a config's
``[[data.clients]]``, so each option is declared once, here.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from fedgradnorm._checks import flag, shown
from fedgradnorm._client import SPLITS, Client
from fedgradnorm._columns import is_frame
from fedgradnorm._errors import ConfigError, DataError, choose
from fedgradnorm.data._arrays import (
    Standardize,
    client_from_arrays,
    single_precision,
    standardized_together,
    with_splits,
)
from fedgradnorm.data._bad_rows import BadRows, OnBad, log_dropped, tell_unlabelled
from fedgradnorm.data._files.archives import Arrays, rows_from_npz
from fedgradnorm.data._files.encoding import Column, ColumnPlan, Columns, Inputs, gap_in
from fedgradnorm.data._files.images import Images
from fedgradnorm.data._files.splitting import Split
from fedgradnorm.data._files.tables import (
    TABLE_SUFFIXES,
    Cells,
    FileRows,
    Form,
    each,
    is_place,
    is_there,
    missing_name,
    numbers,
    read_table,
    text_of,
)
from fedgradnorm.data._files.target import Target, class_numbers, label_map, tell_untrained
from fedgradnorm.data._paths import ENV, user_path
from fedgradnorm.data._source import FILES, Source
from fedgradnorm.models._networks import ACTIVATIONS, mlp
from fedgradnorm.tasks._kind import KINDS
from fedgradnorm.tasks._labels import LabelMap

FilePath = str | Path


@dataclass(frozen=True)
class Table:
    """Makes clients from a file or a DataFrame.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"area": [50, 80, 65, 120], "price": [1.0, 2, 1.5, 3]})
    >>> Table(frame, Target("price", "regression"), split=Split(test=0.25)).client("houses").size
    3

    It reads tables from .csv, .tsv, .txt and .parquet files, and arrays from .npz archives. A file
    inside a zip archive is ``"data.zip/folder/rows.csv"``. Relative paths start at ``base``, or in
    the folder named by FEDGRADNORM_DATA. With ``stream=True``, inputs stay on disk; this works for
    .parquet files, and for folders with ``x.npy`` and ``y.npy``.

    Args:
        train: the file with the training examples.
        target: what to learn; for several tasks, a target for each by its name.
        inputs: the columns to learn from; by default all others.
        split: which examples to hold out.
        validation, test: files with held-out examples, instead of a split.
        standardize: scale to mean 0 and standard deviation 1: true for inputs and regression
            targets, "inputs" or "targets" for one of them, or "pooled", which scales inputs with
            the statistics of all such clients together.
        format: "csv", "parquet" or "npz", if the file's ending does not tell.
        na: texts in tables that mean a missing value, such as "?".
        where: keep only the examples in which these columns have these values.
        on_bad: "error" stops at an unusable value, "drop" leaves out its example.
        stream: true keeps the inputs on disk and reads them batch by batch.
        images: the folder of the images that the table lists.
        arrays: the names of the arrays in an archive.
        stem: private first layers of this client: a table with the widths of the linear layers, and
            their activation.
        base: the folder where relative paths start; by default that of the config.
    """

    train: FilePath | pd.DataFrame
    target: Target | Mapping[str, Target]
    inputs: Inputs | Columns | None = None
    split: Split = field(default=Split())
    validation: FilePath | pd.DataFrame | None = field(default=None, kw_only=True)
    test: FilePath | pd.DataFrame | None = field(default=None, kw_only=True)
    standardize: Standardize | Literal["pooled"] = field(default=False, kw_only=True)
    format: str | None = field(default=None, kw_only=True)
    na: str | Sequence[str] = field(default=(), kw_only=True)
    where: Mapping[str, Any] | None = field(default=None, kw_only=True)
    on_bad: OnBad = field(default="error", kw_only=True)
    stream: bool = field(default=False, kw_only=True)
    images: Images = field(default=Images(), kw_only=True)
    arrays: Arrays = field(default=Arrays(), kw_only=True)
    stem: Mapping[str, Any] | nn.Module | None = field(default=None, kw_only=True)
    base: FilePath | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        given = self.target.values() if isinstance(self.target, Mapping) else [self.target]
        if not all(isinstance(one, Target) for one in given):
            raise ConfigError(
                "target must be fgn.data.Target(column, task), or a table of these by the names of "
                f"the tasks, not {shown(self.target)}"
            )

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> Table:
        """The table that a config describes: the fields of all these objects as keys.

        >>> Table.from_dict({"train": "a.csv", "task": "regression", "targets": "y"}).target.task
        'regression'
        """
        given = dict(options)
        for key in given:
            choose(str(key), set(_KEYS) - {"name", "per", "seed"}, "option of a table")
        tasks = given.pop("tasks", None)
        split = Split.from_dict(given.pop("split", None), given)
        inputs, images, arrays, single = (
            {one.name: given.pop(one.name) for one in fields(kind) if one.name in given}
            for kind in (Inputs, Images, Arrays, Target)
        )
        target: Any = Target(**single) if tasks is None else _tasks(tasks, single)
        if "train" not in given:
            raise ConfigError("a table needs the option 'train'")
        given |= {"images": Images(**images), "arrays": Arrays(**arrays)}
        return cls(target=target, inputs=Inputs(**inputs), split=split, **given)

    def client(self, name: str, *, seed: int = 0) -> Client:
        """The client of these rows; ``seed`` draws those that are held out."""
        return self._client(name, seed, {})[0]

    def clients(self, name: str, *, per: str | None = None, seed: int = 0) -> list[Client]:
        """A client, or with ``per`` one for each value of that column, called ``NAME-VALUE``."""
        made = self.unpooled(name, per, seed)
        return standardized_together(made) if self.standardize == "pooled" else made

    def unpooled(self, name: str, per: str | None, seed: int) -> list[Client]:
        """The same clients, with inputs that are to be pooled as they are in the files."""
        table, read = self, dict[Any, Any]()  # each file is read once for all of them
        if self.standardize == "pooled":
            real = any(one.task == "regression" for one in self._targets.values())
            table = replace(self, standardize="targets" if real else False)
        if per is None:
            return [table._client(name, seed, read)[0]]
        where = dict(self.where or {})
        return [
            replace(table, where={**where, per: value})._client(f"{name}-{value}", seed, read)[0]
            for value in self._values(name, per)
        ]

    def bad_rows(self, *, seed: int = 0) -> dict[str, tuple[int, ...]]:
        """The numbers of the rows that cannot be used, by file; the log has the reasons."""
        files = replace(self, on_bad="drop")._client("rows", seed, {})[1].values()
        found = {rows.places.bad.source: sorted(rows.places.bad.reasons) for rows in files}
        return {file: tuple(numbers) for file, numbers in found.items() if numbers}

    @property
    def _targets(self) -> dict[str, Target]:
        """What is learned by the names of the tasks; of a client with one task by ""."""
        return {"": self.target} if isinstance(self.target, Target) else dict(self.target)

    def _values(self, name: str, column: Any) -> tuple[str, ...]:
        """The values of a column in the training file; gaps are none."""
        path = _data_path(self.base, self.train, "train")
        form = Form.of(self.format, self.na, self.where)
        if not isinstance(column, str):
            raise ConfigError(f"client {name!r}: per must name a column, not {column!r}")
        if not is_frame(path):
            if not is_there(path):
                raise DataError(f"{path}: no such file; check the path")
            if form.suffix(path) not in TABLE_SUFFIXES:
                raise ConfigError(
                    f"{path}: per is for tables, with a column of clients; leave it out"
                )
        cells = read_table(path, [column], BadRows(self.on_bad, str(path)), form)[column]
        # As they are written, because rows are compared with them as texts.
        texts = {text_of(cell) for cell in cells} - {""}
        found = LabelMap.seen(texts)
        if not texts:
            raise DataError(f"{path}: column {column!r} is empty, so there is no client in it")
        return tuple(sorted(texts, key=lambda text: (found.codes([text])[0] or 0, text)))

    def _client(
        self, name: str, seed: int, before: dict[Any, Any]
    ) -> tuple[Client, dict[str, FileRows]]:
        """The client, and the rows of its files; ``before`` are tables that were read before."""
        given = self.inputs if isinstance(self.inputs, Inputs) else Inputs(self.inputs)
        who = name
        try:
            by_column, folder = self.split.way is not None, self.images.images
            for key, target in self._targets.items():
                who = f"{name}/{key}" if key else name
                choose(str(target.task), KINDS, "task")
                target.check()
            who, free = name, self.split.columns if self.split.way == "stratified" else ()
            reader = Reader(
                targets=self._targets,
                plan=given.checked(),
                form=Form.of(self.format, self.na, self.where, free, before),
                arrays=self.arrays,
                images=self.images,
                folder=None if folder is None else _data_path(self.base, folder, "images"),
                marks=self.split.columns if by_column else (),
                on_bad=self.on_bad,
                stream=flag("stream", self.stream),
            )
            if reader.folder is not None and not reader.plan.plain:
                raise ConfigError(
                    "categories, dates, cyclic, missing and without are for columns of numbers and "
                    "texts; leave them out where inputs are images"
                )
        except ConfigError as error:
            raise ConfigError(f"client {who!r}: {error}") from error
        paths = {"train": self.train, "validation": self.validation, "test": self.test}
        files = {k: _data_path(self.base, f, k) for k, f in paths.items() if f is not None}
        how: Any = self.standardize
        read = reader.read_all(files)
        client = load(name, reader, read, self.split, how, seed)
        return client if self.stem is None else self._with_stem(client, seed), read

    def _with_stem(self, client: Client, seed: int) -> Client:
        """The client with a first part: a module, or linear layers that take its rows.

        Their first numbers follow from the seed and the client's name.
        """
        stem = self.stem
        if isinstance(stem, nn.Module):
            return replace(client, stem=stem)
        where = f"client {client.name!r}: stem"
        if not isinstance(stem, Mapping) or not isinstance(stem.get("widths"), list | tuple):
            raise ConfigError(
                f"{where} must be a table such as {{ widths = [16, 8] }}, not {shown(stem)}"
            )
        for key in stem:
            choose(str(key), ("widths", "activation"), f"key of the stem of client {client.name!r}")
        rows = client.rows[0].train[0]
        if not isinstance(rows, Tensor) or not rows.is_floating_point():
            raise ConfigError(
                f"{where} of linear layers takes numbers in one tensor, not named inputs, "
                "sequences or ids; give a module of your own in Python: fgn.Client(..., stem=...)"
            )
        name = choose(str(stem.get("activation", "relu")), ACTIVATIONS, "activation")
        digest = hashlib.blake2b(f"stem {seed} {client.name}".encode(), digest_size=7).digest()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int.from_bytes(digest, "big"))
            layers = mlp(list(stem["widths"]), int(rows[0].numel()), ACTIVATIONS[name])
        return replace(client, stem=layers)


def _data_path(base: str | Path | None, path: Any, what: str) -> Any:
    """A path that starts at ``base``, or else in the folder named by FEDGRADNORM_DATA.

    A DataFrame is itself.
    """
    if is_frame(path):
        return path
    start = user_path("." if base is None else base, "base")
    if not isinstance(path, str | Path):
        raise ConfigError(f"{what} must be a path or a DataFrame, not {shown(path)}")
    name = user_path(path, what)
    here, folder = start / name, os.environ.get(ENV)
    if folder and not is_place(here):
        known = Path(folder).expanduser()
        return next((p for p in (known / start / name, known / name) if is_place(p)), here)
    return here


def anchored_base(base: Any, folder: Path) -> str:
    """Where files are looked for, to hold wherever a run is resumed from.

    It starts at ``folder``, the config's; one that only the data folder has is left as it is.
    """
    start = user_path(base, "data.base")
    known = os.environ.get(ENV)
    elsewhere = known and not start.is_absolute() and is_place(Path(known).expanduser() / start)
    if elsewhere and not is_place(folder / start):
        return str(base)
    return os.path.abspath(folder / start)  # noqa: PTH100 (keeps symlinks as given)


def _tasks(tables: Any, single: Mapping[str, Any]) -> dict[str, Target]:
    """The targets of several tasks; ``single`` are options of one, of which none may be given."""
    given = next((key for key, value in single.items() if value is not None), None)
    if given is not None:
        raise ConfigError(f"{given} and tasks are both given; give each of the tasks its own")
    if not isinstance(tables, Mapping) or not tables:
        raise ConfigError("tasks must be a table of tasks by name")
    found = {}
    known = [one.name for one in fields(Target)]
    for key, table in tables.items():
        if not isinstance(table, Mapping) or "task" not in table:
            raise ConfigError(
                f'task {key!r}: give a table such as {{task = "regression", targets = "hours"}}'
            )
        for option in table:
            choose(str(option), known, f"option of task {key}")
        found[str(key)] = Target(**table)
    return found


def files(name: str, **options: Any) -> list[Client]:
    """A client from files, or with ``per`` several; inputs to be pooled are so by the caller."""
    per, seed = options.pop("per", None), options.pop("seed", 0)
    try:
        table = Table.from_dict(options)
    except ConfigError as error:
        raise ConfigError(f"client {name!r}: {error}") from error
    return table.unpooled(name, per, seed)


@dataclass(frozen=True)
class _More:
    """Keys of a client's table that are no fields of an object.

    Args:
        name: the client's name.
        per: a column; makes one client per value, called NAME-VALUE.
        tasks: several tasks by name, each a table with its own settings.
        split: how to divide the training file: by a "column", in "time", by "group" or
            "stratified".
        validation_share, test_share: the shares of examples to hold out, each from 0 to 1.
        rows: how many examples to draw; all by default.
        seed: the seed for drawing held-out examples; by default that of the run.
    """

    name: str
    per: str | None = None
    tasks: Mapping[str, Mapping[str, Any]] | None = None
    split: Mapping[str, Any] | None = None
    validation_share: float = 0.0
    test_share: float = 0.0
    rows: int | None = None
    seed: int = 0


_OBJECTS = (Table, Target, Inputs, Images, Arrays, _More)
_KEYS = {one.name: one for kind in _OBJECTS for one in fields(kind)}
del _KEYS["target"], _KEYS["arrays"]
"""Every key of a client's table, from the fields of the objects."""


def _declared() -> None:
    """Give ``files`` the signature and the meanings that the objects declare."""
    meant = "\n".join((inspect.getdoc(kind) or "").partition("Args:\n")[2] for kind in _OBJECTS)
    word, empty = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
    known = [
        inspect.Parameter(
            key, word, annotation=one.type, default=empty if one.default is MISSING else one.default
        )
        for key, one in _KEYS.items()
    ]
    files.__doc__ = f"{files.__doc__}\n\nArgs:\n{meant}\n"
    vars(files)["__signature__"] = inspect.Signature(known)


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
            from fedgradnorm.data._files.archives import streamed_rows

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
        for what, names in [*(("targets", t.columns) for t in self.targets.values()),
                            ("inputs", self.inputs or ())]:  # fmt: skip
            doubles = [name for name in names if list(names).count(name) > 1]
            if doubles:
                raise ConfigError(f"{what} names column {doubles[0]!r} more than once")
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
    reasons = [
        f"{why} [{Path(rows.places.bad.source).name}]"
        for rows in read.values()
        for _, why in sorted(rows.places.bad.reasons.items())
    ]
    total = sum(len(rows.places.numbers) for rows in read.values())
    log_dropped(f"client {name!r}: dropped {len(reasons)} of {total} rows", reasons)
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
        if known is not None:
            task, names = target.make(len(known.names)), known.names
        else:
            task = target.make(target.outputs_in(y["train"].shape[1:]))
            names = target.columns if target.task == "multilabel" else ()
        pairs: dict[str, Any] = {part: (x[part], own) for part, own in y.items()}
        one = client_from_arrays(who, task, pairs.pop("train"), **pairs, standardize=how)
        # Files hold numbers as texts or doubles; training is in single precision.
        splits = {s: pair for s in SPLITS if (pair := getattr(one, s)) is not None}
        made[key] = replace(
            with_splits(one, {s: single_precision(pair) for s, pair in splits.items()}),
            labels=names or None,
            labels_learned=known is not None and not target.is_public(known.names),
            columns=columns,
            encoding=encoding,
        )
    client = made[""] if "" in made else _joined(name, made, standardize)
    for row in client.rows:
        tell_untrained(row)
    return client


def _joined(name: str, clients: Mapping[str, Client], standardize: Standardize) -> Client:
    """A client with several tasks, made of one for each; they share the inputs."""
    if isinstance(standardize, Mapping):
        raise ConfigError(
            f"client {name!r}: constants in standardize are for a client with one task; scale the "
            "data beforehand"
        )
    first = next(iter(clients.values()))
    pairs: dict[str, Any] = {
        split: (pair[0], {key: getattr(one, split)[1] for key, one in clients.items()})
        for split in SPLITS
        if (pair := getattr(first, split)) is not None
    }
    parts: dict[str, Any] = {
        part: {k: v for k, one in clients.items() if (v := getattr(one, part)) is not None} or None
        for part in ("scaling", "labels")
    }
    tasks = {key: one.task for key, one in clients.items()}
    parts |= {"columns": first.columns, "encoding": first.encoding}
    return Client(name, tasks=tasks, **pairs, **parts)


_declared()
Source(FILES, files, "your own tables, archives and images", ("base",)).register()
