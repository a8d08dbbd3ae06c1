"""How a client's files are read, whatever their format."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedgradnorm._columns import is_frame
from fedgradnorm._errors import ConfigError, DataError, choose
from fedgradnorm.data._bad_rows import BadRows, OnBad
from fedgradnorm.data._encoding.column_plan import ColumnPlan
from fedgradnorm.data._files.formats.image_folder import Color, rows_from_images
from fedgradnorm.data._files.formats.npz import Arrays, rows_from_npz
from fedgradnorm.data._files.in_archive import is_place, is_there
from fedgradnorm.data._files.named_columns import (
    TABLE_SUFFIXES,
    Form,
    check_columns,
    rows_from_table,
)
from fedgradnorm.data._files.read_rows import FileRows
from fedgradnorm.data._paths import ENV, user_path


@dataclass(frozen=True)
class FileSource:
    """How a client's files are to be read."""

    targets: tuple[str, ...]
    labels: bool
    inputs: tuple[str, ...] | None = None
    images: Path | None = None
    size: int = 40
    color: Color = "grey"
    x_key: str = "x"
    y_key: str = "y"
    stream: bool = False
    on_bad: OnBad = "error"
    columns: ColumnPlan = field(default_factory=ColumnPlan)
    marks: tuple[str, ...] = ()
    aside: tuple[str, ...] = ()
    named: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ids: tuple[str, ...] = ()
    lengths: str | Mapping[str, str] | None = None
    shape: tuple[int, ...] = ()
    form: Form = field(default_factory=Form)

    def __post_init__(self) -> None:
        choose(self.on_bad, ("error", "drop"), "on_bad")
        if self.columns.without and self.inputs is None:
            gone = self.columns.without[0]
            raise ConfigError(
                f"without = [{gone!r}] needs inputs: a file cannot say where a column that it does "
                "not have belongs among the others; list the input columns of all clients in one "
                f"order: inputs = [..., {gone!r}, ...]"
            )
        if self.images is not None and not self.columns.plain:
            raise ConfigError(
                "categories, dates, cyclic, missing, without, ids, sequence and named inputs are "
                "for columns of numbers and texts; leave them out where inputs are images"
            )

    def read_all(self, files: Mapping[str, Any]) -> dict[str, FileRows]:
        """The rows of each split's file; the training file decides the columns and their order."""
        source, splits = self, dict[str, FileRows]()
        for split, file in files.items():
            splits[split] = source.read(file, split)
            if splits[split].inputs is not None:
                source = replace(source, inputs=splits[split].inputs)
        return splits

    def read(self, path: Any, split: str) -> FileRows:
        """The rows of one file, in the format its ending says, or of a DataFrame."""
        named = f"the DataFrame of {split}" if is_frame(path) else str(path)
        bad: BadRows[int] = BadRows(self.on_bad, named)
        if self.stream:
            from fedgradnorm.data._files.formats.streamed_files import streamed_rows

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
        if self.lengths is not None or self.shape:
            what = "lengths" if self.lengths is not None else "shape"
            raise ConfigError(
                f"{named}: {what} is for arrays in an .npz file; leave it out, and say of a table "
                "which column tells sequences apart: sequence"
            )
        check_columns(self.inputs, self.targets, self.labels, self.columns.without)
        if self.images is None:
            return rows_from_table(
                path,
                self.inputs,
                self.targets,
                self.labels,
                bad,
                self.columns,
                self.marks,
                aside=self.aside,
                form=self.form,
            )
        return rows_from_images(
            path,
            self.images,
            self._path_column(),
            self.targets,
            self.labels,
            bad,
            size=self.size,
            color=self.color,
            marks=self.marks,
            form=self.form,
        )

    def _read_npz(self, path: Path, bad: BadRows[int]) -> FileRows:
        plain = replace(self.columns, ids=(), groups={}).plain
        listed = self.inputs and not self.named
        said = self.form.na or self.form.where
        if self.images or listed or self.targets or self.marks or not plain or said:
            raise ConfigError(
                f"{path}: an .npz file has no columns or image paths; leave out targets, images, "
                "split and what is said of columns, use x_key and y_key, and for several inputs "
                "inputs = { NAME = 'ARRAY' }"
            )
        which = Arrays(self.x_key, self.y_key, self.named, self.ids, self.lengths, self.shape)
        return rows_from_npz(path, which, self.labels, bad)

    def _path_column(self) -> str:
        columns = self.inputs or ("path",)
        if len(columns) > 1:
            raise ConfigError(f"with images, inputs names the one column of paths, not {columns}")
        return columns[0]


def names(columns: str | Sequence[str]) -> tuple[str, ...]:
    """A name or several as a tuple."""
    return (columns,) if isinstance(columns, str) else tuple(columns)


def named_inputs(inputs: Any) -> dict[str, tuple[str, ...]]:
    """The columns or arrays of inputs that have names; empty where they have none."""
    if not isinstance(inputs, Mapping):
        return {}
    if not inputs or not all(isinstance(n, str) and n.isidentifier() for n in inputs):
        raise ConfigError(
            f"inputs: the names must be those of a network's keyword arguments, not {list(inputs)}"
        )
    found = {name: names(columns) for name, columns in inputs.items()}
    empty = next((name for name, columns in found.items() if not columns), None)
    if empty is not None:
        raise ConfigError(f"inputs: {empty} has no columns; list some, or leave it out")
    return found


def data_path(base: str | Path | None, path: Any, what: str) -> Any:
    """A path that starts at ``base``, or else in the folder named by FEDGRADNORM_DATA.

    A DataFrame is itself.
    """
    if is_frame(path):
        return path
    start, name = user_path("." if base is None else base, "base"), user_path(path, what)
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
