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
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from fedgradnorm._checks import flag, shown
from fedgradnorm._client import Client
from fedgradnorm._columns import is_frame
from fedgradnorm._errors import ConfigError, DataError, choose
from fedgradnorm.data._arrays import Standardize, standardized_together
from fedgradnorm.data._bad_rows import BadRows, OnBad
from fedgradnorm.data._files.archives import Arrays
from fedgradnorm.data._files.images import Images
from fedgradnorm.data._files.inputs import Columns, Inputs
from fedgradnorm.data._files.loading import Reader, load
from fedgradnorm.data._files.splitting import Split
from fedgradnorm.data._files.tables import (
    TABLE_SUFFIXES,
    FileRows,
    Form,
    is_place,
    is_there,
    read_table,
    text_of,
)
from fedgradnorm.data._files.target import Target
from fedgradnorm.data._paths import ENV, user_path
from fedgradnorm.data._source import FILES, Source
from fedgradnorm.models._networks import ACTIVATIONS, mlp
from fedgradnorm.tasks._kind import KINDS
from fedgradnorm.tasks._labels.label_map import LabelMap

if TYPE_CHECKING:
    import pandas as pd

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
        parts = {kind: _part(kind, given) for kind in (Inputs, Images, Arrays)}
        single = {one.name: given.pop(one.name) for one in fields(Target) if one.name in given}
        target: Any = Target(**single) if tasks is None else _tasks(tasks, single)
        if "train" not in given:
            raise ConfigError("a table needs the option 'train'")
        more: dict[str, Any] = {"images": parts[Images], "arrays": parts[Arrays]}
        return cls(target=target, inputs=parts[Inputs], split=split, **more, **given)

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


def _part(kind: type[Any], given: dict[str, Any]) -> Any:
    """One of the objects, from the keys that are its fields."""
    return kind(**{one.name: given.pop(one.name) for one in fields(kind) if one.name in given})


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


_declared()
Source(FILES, files, "your own tables, archives and images", ("base",)).register()
