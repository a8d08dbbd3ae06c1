"""Your own files as clients: CSV, Parquet, .npz, or a folder of images with a table of labels.

What is said of a client's files is a few objects. Their fields are also the keys of a config's
``[[data.clients]]``, so each option is declared once, here.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedgradnorm._checks import flag, shown
from fedgradnorm._client import SPLITS, Client
from fedgradnorm._columns import is_frame
from fedgradnorm._errors import ConfigError, DataError, choose
from fedgradnorm.data._arrays import (
    Loaded,
    Standardize,
    client_from_arrays,
    single_precision,
    with_splits,
)
from fedgradnorm.data._bad_rows import BadRows, OnBad
from fedgradnorm.data._dropped import tell_unlabelled
from fedgradnorm.data._encoding.column_plan import ColumnPlan
from fedgradnorm.data._files.encoded_rows import encoded
from fedgradnorm.data._files.file_labels import class_numbers, label_map, tell_untrained
from fedgradnorm.data._files.file_parts import Division, dropped_rows, tell_dropped
from fedgradnorm.data._files.file_source import FileSource, data_path, named_inputs, names
from fedgradnorm.data._files.formats.image_folder import Color
from fedgradnorm.data._files.in_archive import is_there
from fedgradnorm.data._files.named_columns import TABLE_SUFFIXES, Form, read_table
from fedgradnorm.data._files.read_rows import label_text
from fedgradnorm.data._files.row_splits import WAYS, SplitPlan
from fedgradnorm.data._files.target import Target
from fedgradnorm.data._pooled import standardized_together
from fedgradnorm.data._source import FILES, Source
from fedgradnorm.data._stems import with_stem
from fedgradnorm.tasks._kind import KINDS
from fedgradnorm.tasks._labels.label_map import LabelMap

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    FilePath = str | Path
    Columns = str | Sequence[str]


@dataclass(frozen=True)
class Inputs:
    """Which columns a client learns from, and what becomes of them.

    Columns are numbers unless an option names them. All that is learned (categories, what fills a
    gap) is learned on training rows and kept with the run, so ``predict`` takes raw rows.

    Args:
        inputs: input columns (by default all others), or a table of such by the names of the
            network's arguments; with images, the column of paths (by default "path").
        categories: input columns of texts: a list, or a table with the values of each.
        dates: input columns of dates, a table with the parts that each becomes.
        date_format: how dates are written, as in ``datetime.strptime``.
        cyclic: input columns that repeat, a table with the period of each.
        missing: what an empty input becomes: "error", "mean", "median" or "indicator", for all or
            by column.
        without: input columns that this client does not have.
        ids: inputs that are whole numbers to look up, such as tokens: columns, arrays or names.
        sequence: column that tells sequences apart; every row of the table is a step of one.
        order: column that says where in its sequence a step stands: a number, or a date.
    """

    inputs: Columns | Mapping[str, Columns] | None = None
    categories: Columns | Mapping[str, Sequence[str]] | None = None
    dates: Columns | Mapping[str, Columns] | None = None
    date_format: str | None = None
    cyclic: Mapping[str, float] | None = None
    missing: str | Mapping[str, str] = "error"
    without: Columns | None = None
    ids: Columns | None = None
    sequence: str | None = None
    order: str | None = None

    def plan(self, groups: Mapping[str, tuple[str, ...]]) -> ColumnPlan:
        """The options, checked; ``groups`` are the columns of each named input."""
        return ColumnPlan.of(
            *(self.categories, self.dates, self.date_format, self.cyclic, self.missing),
            *(self.without, self.ids, groups, self.sequence, self.order),
        )


@dataclass(frozen=True)
class Split:
    """Which rows of the training file are held out; by default at random.

    ``Split(test=0.2, time="date")`` holds out the last fifth; with ``group="patient"`` all rows of
    a patient are on one side.

    Args:
        test: a share of the rows, the time at which it begins, or the values of ``column``.
        validation: the same for validation.
        column: the column that says which rows are which.
        time: the column or columns by which the last rows are for testing.
        group: the column whose values are never divided.
        stratified: the column whose values have the same share of every split.
        rows: how many of the rows are drawn; all by default.
    """

    test: float | str | Sequence[Any] | None = None
    validation: float | str | Sequence[Any] | None = None
    column: str | None = None
    time: Columns | None = None
    group: str | None = None
    stratified: str | None = None
    rows: int | None = None

    def division(self, seed: int) -> Division:
        """How rows are dealt."""
        held = {"validation": self.validation, "test": self.test}
        given: dict[str, Any] = {key: v for key, v in held.items() if v is not None}
        ways = {way: v for way in WAYS if (v := getattr(self, way)) is not None}
        if not ways:
            return Division(None, {k: given.get(k, 0.0) for k in held}, self.rows, seed)
        return Division(SplitPlan.of({**ways, **given}), dict.fromkeys(held, 0.0), self.rows, seed)


@dataclass(frozen=True)
class Images:
    """A folder of images that the table names; they become [1 or 3, size, size] in 0 .. 1.

    Args:
        images: folder of the images that the table names.
        size: images become size x size pixels.
        color: "grey" or "rgb".
    """

    images: FilePath | None = None
    size: int = 40
    color: Color = "grey"


@dataclass(frozen=True)
class Arrays:
    """The names of the arrays in an .npz archive, an HDF5 file or a folder of .npy files.

    Args:
        x_key: name of the array of inputs.
        y_key: name of the array of targets.
        lengths: array of an .npz archive that says how many steps of each row of x are real; a
            table of such for named inputs.
    """

    x_key: str = "x"
    y_key: str = "y"
    lengths: str | Mapping[str, str] | None = None


@dataclass(frozen=True)
class Table:
    """A file, or a DataFrame, from which clients are made.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"area": [50, 80, 65, 120], "price": [1.0, 2, 1.5, 3]})
    >>> Table(frame, Target("price", "regression"), split=Split(test=0.25)).client("houses").size
    3

    Tables are .csv, .tsv, .txt and .parquet files; archives are .npz files. A file may lie in a
    zip archive: ``"data.zip/folder/rows.csv"``. Relative paths start at ``base``, or in the folder
    FEDGRADNORM_DATA. With ``stream=True`` inputs stay on the disk: .parquet, .h5 files, and folders
    with ``x.npy`` and ``y.npy``.

    Args:
        train: file of the training rows.
        target: what is learned, or several by the names of the tasks.
        inputs: the columns it is learned from; by default all others.
        split: which rows are held out.
        validation, test: files of held-out rows, instead of a split.
        standardize: to mean 0 and deviation 1: true for both sides, "inputs" or "targets" for one,
            or "pooled": inputs by the training rows of all such clients together.
        format: "csv", "parquet", "npz" or "h5", for files whose ending does not say so.
        na: texts in tables that mean no value, such as "?".
        where: rows to keep, a table of columns with the value that each has in them.
        on_bad: "error" stops at a row that cannot be used, "drop" leaves it out.
        stream: true leaves the inputs on the disk, and reads them batch by batch.
        images: a folder of images that the table names.
        arrays: the names of arrays in an archive.
        stem: a first part of the client's own: a table with the widths of its linear layers, and
            their activation.
        base: folder where relative paths start; a config's own by default.
    """

    train: FilePath | pd.DataFrame
    target: Target | Mapping[str, Target]
    inputs: Inputs | Columns | Mapping[str, Columns] | None = None
    split: Split = Split()
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

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> Table:
        """The table that a config describes: the fields of all these objects as keys.

        >>> Table.from_dict({"train": "a.csv", "task": "regression", "targets": "y"}).target.task
        'regression'
        """
        given = dict(options)
        for key in given:
            choose(str(key), set(_keys()) - {"name", "per", "seed"}, "option of a table")
        tasks = given.pop("tasks", None)
        split = _split(given.pop("split", None), given)
        parts = {kind: _part(kind, given) for kind in (Inputs, Images, Arrays)}
        single = {one.name: given.pop(one.name) for one in fields(Target) if one.name in given}
        target: Any = Target(**single) if tasks is None else _tasks(tasks, single)
        if "train" not in given:
            raise ConfigError("a table needs the option 'train'")
        more: dict[str, Any] = {"images": parts[Images], "arrays": parts[Arrays]}
        return cls(target=target, inputs=parts[Inputs], split=split, **more, **given)

    def client(self, name: str, *, seed: int = 0) -> Client:
        """The client of these rows; ``seed`` draws those that are held out."""
        return self.loaded(name, seed).client

    def clients(self, name: str, *, per: str | None = None, seed: int = 0) -> list[Client]:
        """A client, or with ``per`` one for each value of that column, called ``NAME-VALUE``."""
        tables = {name: self} if per is None else self._per(name, per)
        how = self.standardize
        if how != "pooled":
            return [table.client(one, seed=seed) for one, table in tables.items()]
        own = {key: replace(t, standardize=t.beside_pooled) for key, t in tables.items()}
        return standardized_together([t.client(key, seed=seed) for key, t in own.items()])

    def bad_rows(self, *, seed: int = 0) -> dict[str, tuple[int, ...]]:
        """The numbers of the rows that cannot be used, by file; the log has the reasons."""
        return dict(replace(self, on_bad="drop").loaded("rows", seed).dropped)

    @property
    def beside_pooled(self) -> Standardize:
        """What each client standardises itself where inputs are pooled."""
        targets = [self.target] if isinstance(self.target, Target) else self.target.values()
        return "targets" if any(one.task == "regression" for one in targets) else False

    def _per(self, name: str, per: Any) -> dict[str, Table]:
        if not isinstance(per, str):
            raise ConfigError(f"client {name!r}: per must name a column, not {per!r}")
        where = dict(self.where or {})
        values = self._values(name, per)
        return {f"{name}-{v}": replace(self, where={**where, per: v}) for v in values}

    def _values(self, name: str, column: str) -> tuple[str, ...]:
        """The values of a column in the training file; gaps are none."""
        path, form = data_path(self.base, self.train, "train"), self._form(name, None)
        if not is_frame(path):
            if not is_there(path):
                raise DataError(f"{path}: no such file; check the path")
            if form.suffix(path) not in TABLE_SUFFIXES:
                raise ConfigError(
                    f"{path}: per is for tables, with a column of clients; leave it out"
                )
        cells = read_table(path, [column], BadRows(self.on_bad, str(path)), form).columns[column]
        # As they are written, because rows are compared with them as texts.
        texts = {label_text(cell) for cell in cells} - {""}
        found = LabelMap.seen(texts)
        if not texts:
            raise DataError(f"{path}: column {column!r} is empty, so there is no client in it")
        return tuple(sorted(texts, key=lambda text: (found.codes([text])[0] or 0, text)))

    def _form(self, name: str, cut: SplitPlan | None) -> Form:
        """What is said of the tables as files, checked."""
        gaps, kept = names(self.na), {} if self.where is None else self.where
        if not all(isinstance(text, str) for text in gaps):
            raise ConfigError(
                f"client {name!r}: na must be texts, such as ['?'], not {shown(self.na)}"
            )
        if not isinstance(kept, Mapping):
            raise ConfigError(
                f"client {name!r}: where must be a table, column = value, not {self.where!r}"
            )
        values = {str(column): str(value).strip() for column, value in kept.items()}
        free = cut.columns if cut is not None and cut.way == "stratified" else ()
        return Form(self.format, tuple(text.strip() for text in gaps), values, free)

    def loaded(self, name: str, seed: int) -> Loaded:
        """The client, and which rows were left out of its files."""
        given = self.inputs if isinstance(self.inputs, Inputs) else Inputs(self.inputs)
        groups = named_inputs(given.inputs)
        columns, division = given.plan(groups), self.split.division(seed)
        one = self.target if isinstance(self.target, Target) else None
        if one is not None:
            choose(str(one.task), KINDS, "task")
        images = self.images.images
        source = FileSource(
            images=None if images is None else data_path(self.base, images, "images"),
            inputs=_listed(name, given.inputs, groups, columns),
            targets=() if one is None else one.columns,
            labels=one is not None and one.reads_texts,
            size=self.images.size,
            color=self.images.color,
            x_key=self.arrays.x_key,
            y_key=self.arrays.y_key,
            stream=flag(f"client {name!r}: stream", self.stream),
            on_bad=self.on_bad,
            columns=columns,
            marks=() if division.cut is None else division.cut.columns,
            named=groups,
            ids=names(given.ids or ()),
            lengths=self.arrays.lengths,
            shape=() if one is None else one.form,
            form=self._form(name, division.cut),
        )
        paths = {"train": self.train, "validation": self.validation, "test": self.test}
        files = {k: data_path(self.base, f, k) for k, f in paths.items() if f is not None}
        how: Any = self.standardize
        if one is None:
            from fedgradnorm.data._files.several_targets import load_several

            several = dict(self.target) if isinstance(self.target, Mapping) else {}
            made = load_several(name, source, files, several, division, how)
        else:
            one.check(name)
            made = _load(name, source, files, one, division, how)
        return made if self.stem is None else with_stem(made, self.stem, seed)


def _part(kind: type[Any], given: dict[str, Any]) -> Any:
    """One of the objects, from the keys that are its fields."""
    return kind(**{one.name: given.pop(one.name) for one in fields(kind) if one.name in given})


def _split(table: Any, given: dict[str, Any]) -> Split:
    """``split``, or the shares of a random one."""
    shares = {split: given.pop(f"{split}_share", None) for split in SPLITS[1:]}
    shares = {split: share for split, share in shares.items() if share is not None}
    rows = given.pop("rows", None)
    if table is None:
        return Split(**shares, rows=rows)
    if not isinstance(table, Mapping):
        raise ConfigError(
            "split must be a table, such as split = {time = 'date', test = 0.2}, not "
            f"{shown(table)}"
        )
    for key in table:
        choose(str(key), (*WAYS, *SPLITS[1:]), "key of split")
    for split, share in shares.items():
        if share:
            raise ConfigError(f"split and {split} data or {split}_share are both given; choose one")
    return Split(**table, rows=rows)


def _tasks(tables: Any, single: Mapping[str, Any]) -> dict[str, Target]:
    """The targets of several tasks; ``single`` are options of one, of which none may be given."""
    given = next((key for key, value in single.items() if value is not None), None)
    if given is not None:
        raise ConfigError(f"{given} and tasks are both given; give each of the tasks its own")
    if not isinstance(tables, Mapping) or not tables:
        raise ConfigError("tasks must be a table of tasks by name")
    found = {}
    known = [*(one.name for one in fields(Target)), "y_key"]
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
    """A client from files, or with ``per`` several; see :class:`Table` and the objects it takes."""
    per, seed = options.pop("per", None), options.pop("seed", 0)
    try:
        table = Table.from_dict(options)
    except ConfigError as error:
        raise ConfigError(f"client {name!r}: {error}") from error
    return table.clients(name, per=per, seed=seed)


def _keys() -> dict[str, inspect.Parameter]:
    """Every key of a client's table, from the fields of the objects."""
    ours = ("target", "inputs", "split", "images", "arrays")
    own = [one for one in fields(Table) if one.name not in ours]
    parts = [one for kind in (Target, Inputs, Images, Arrays) for one in fields(kind)]
    found = {one.name: (one.type, one.default) for one in (*own, *parts)}
    found |= {key: (kind, default) for key, (kind, default, _) in _MORE.items()}
    word, empty = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
    return {
        key: inspect.Parameter(
            key, word, annotation=kind, default=empty if default is MISSING else default
        )
        for key, (kind, default) in found.items()
    }


_MORE: dict[str, tuple[str, Any, str]] = {
    "name": ("str", MISSING, "of the client."),
    "per": ("str | None", None, "a column; each of its values becomes a client, NAME-VALUE."),
    "tasks": (
        "Mapping[str, Mapping[str, Any]] | None", None,
        "several tasks by name, each a table of its own settings.",
    ),
    "split": (
        "Mapping[str, Any] | None", None,
        'how the training file is divided: by a "column", in "time", by "group" or "stratified".',
    ),
    "validation_share": ("float", 0.0, "part of the rows that is held out, from 0 to 1."),
    "test_share": ("float", 0.0, "part of the rows that is held out, from 0 to 1."),
    "rows": ("int | None", None, "how many of the rows are drawn; all by default."),
    "seed": ("int", 0, "draws the held-out rows; the run's own unless given."),
}  # fmt: skip


def _declared() -> None:
    """Give ``files`` the signature and the meanings that the objects declare."""
    meant = "\n".join(
        (inspect.getdoc(kind) or "").partition("Args:\n")[2]
        for kind in (Target, Inputs, Images, Arrays, Table)
    )
    more = "\n".join(f"    {key}: {text}" for key, (_, _, text) in _MORE.items())
    files.__doc__ = f"{files.__doc__}\n\nArgs:\n{meant}\n{more}\n"
    vars(files)["__signature__"] = inspect.Signature(list(_keys().values()))


_declared()
Source(FILES, files, "your own tables, archives and images", ("base",)).register()


def _listed(
    name: str, inputs: Any, groups: Mapping[str, tuple[str, ...]], columns: ColumnPlan
) -> tuple[str, ...] | None:
    """The input columns, whether or not they are in groups."""
    if inputs is None:
        return None
    every = tuple(c for group in groups.values() for c in group) if groups else names(inputs)
    for column in columns.steps:
        if column in every:
            raise ConfigError(
                f"client {name!r}: column {column!r} tells sequences or steps apart, so it is no "
                "input; leave it out of inputs, or copy it to another column"
            )
    return every


def _load(
    name: str,
    source: FileSource,
    files: Mapping[str, Any],
    plan: Target,
    division: Division,
    standardize: Standardize,
) -> Loaded:
    """Read every split, turn labels into class numbers and columns into numbers."""
    splits = source.read_all(files)
    parts = division.parts(name, splits)
    tell_dropped(name, splits.values())
    known = label_map(splits, plan) if plan.counted else None
    made = encoded(name, source.columns, parts, standardize)
    y = {
        part: np.asarray(rows.y)[at] if known is None else class_numbers(rows, at, known, plan)
        for part, (rows, at) in parts.items()
    }
    tell_unlabelled(name, list(y.values()))
    task = plan.make(len(known.names) if known else plan.outputs_in(y["train"].shape[1:]))
    x, left = made.x, made.standardize
    if left == "targets" != standardize and not task.has_real_targets:
        left = False
    held: dict[str, Any] = {part: (x[part], y[part]) for part in SPLITS[1:] if part in x}
    train = x["train"], y["train"]
    loaded = client_from_arrays(name, task, train, **held, standardize=left)
    scaling, encoding = made.merged(loaded.scaling), made.encoding
    called = known.names if known else None
    if plan.task == "multilabel" and source.targets:
        called = source.targets
    columns = splits["train"].inputs if encoding is None else encoding.features
    columns = columns if made.flat else None
    client = _single_precision(loaded.client)
    learned = known is not None and not plan.is_public(known.names)
    client = replace(client, labels=called, columns=columns, encoding=encoding, scaling=scaling)
    client = replace(client, labels_learned=learned)
    tell_untrained(client)
    return Loaded(client, scaling, called, dropped_rows(splits.values()))


def _single_precision(client: Client) -> Client:
    """Files hold numbers as text or doubles; training is in float32 unless arrays say otherwise."""
    return with_splits(
        client,
        {
            split: single_precision(pair)
            for split in SPLITS
            if (pair := getattr(client, split)) is not None
        },
    )
