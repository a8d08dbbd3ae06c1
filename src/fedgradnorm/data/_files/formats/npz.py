"""NumPy archives: one array of inputs or several, one of targets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.lib.npyio import NpzFile

from fedgradnorm._checks import shown
from fedgradnorm._errors import ConfigError, DataError, choose
from fedgradnorm._memory import check_memory
from fedgradnorm.data._bad_rows import BadRows
from fedgradnorm.data._files.in_archive import opened
from fedgradnorm.data._files.read_rows import (
    FileRows,
    label_text,
    missing_name,
    row_place,
    usable,
)
from fedgradnorm.models._input_rows import Fields, Sequences, sequences

if TYPE_CHECKING:
    from numpy.typing import NDArray

COPIES = 2  # in memory at a time: the array as it is in the file, and its rows as floats


@dataclass(frozen=True)
class Arrays:
    """Which arrays of an archive are what.

    ``named`` are the arrays of inputs that have names. ``ids`` are those of whole numbers that a
    network looks up. ``lengths`` says how many steps each row of an input has, by the input's
    name, or as one array where the input has none. ``shape`` is that of a target.
    """

    x_key: str
    y_key: str
    named: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ids: Collection[str] = ()
    lengths: str | Mapping[str, str] | None = None
    shape: tuple[int, ...] = ()

    def inputs(self, path: Path) -> dict[str, str]:
        """The array of each input, by its name; of one without a name it is empty."""
        for name, arrays in self.named.items():
            if len(arrays) != 1:
                raise ConfigError(
                    f"{path}: inputs: {name} is {list(arrays)}; in an archive it is one array, "
                    f"such as {name} = {arrays[0]!r}"
                )
        found = {name: arrays[0] for name, arrays in self.named.items()} or {"": self.x_key}
        known = (*found, *found.values())
        for name in self.ids:
            choose(name, known, "array in ids")
        return found

    def sizes(self) -> dict[str, str]:
        """The array of lengths of each input that has one."""
        given = {"": self.lengths} if isinstance(self.lengths, str) else dict(self.lengths or {})
        for name in given:
            if name not in (self.named or {"": ()}):
                way = f"lengths = {{ {next(iter(self.named), 'name')} = ... }}"
                raise ConfigError(f"lengths must name inputs, {way}, not {shown(self.lengths)}")
        return given


def rows_from_npz(path: Path, which: Arrays, labels: bool, bad: BadRows[int]) -> FileRows:
    """Inputs and targets of an ``.npz`` file; pickled objects are never loaded."""
    inputs, sizes = which.inputs(path), which.sizes()
    arrays = read_arrays(path, [*inputs.values(), *sizes.values(), which.y_key])
    y = arrays[which.y_key]
    for key in (*inputs.values(), *sizes.values()):
        one = arrays[key]
        if one.ndim == 0 or y.ndim == 0 or len(one) != len(y):
            raise DataError(
                f"{path}: {key!r} has shape {one.shape}, {which.y_key!r} {y.shape}; they need one "
                "row per sample each"
            )
        if one.size == 0 or y.size == 0:
            raise DataError(f"{path}: {key!r} or {which.y_key!r} is empty, no rows left to use")
    parts: dict[str, Any] = {}
    for name, key in inputs.items():
        array = arrays[key]
        if name in which.ids or key in which.ids:
            parts[name] = _whole(path, key, array)
        else:
            parts[name] = _floats(path, key, array[:, None] if _is_column(array, name) else array)
            _report_bad(parts[name], key, bad)
        if name in sizes:
            count = _whole(path, sizes[name], arrays[sizes[name]])
            parts[name] = _with_lengths(path, key, parts[name], sizes[name], count)
    x = parts[""] if "" in parts else Fields({k: _tensor(part) for k, part in parts.items()})
    rows = range(1, len(y) + 1)
    if labels:
        if which.shape:
            codes, texts = _label_codes(path, which, y)
            return FileRows(x, codes, rows, None, bad, label_texts=texts)
        return FileRows(x, npz_targets(path, which.y_key, y, True, bad), rows, None, bad)
    if not which.shape:
        return FileRows(x, npz_targets(path, which.y_key, y, False, bad), rows, None, bad)
    target = _floats(path, which.y_key, y).astype(np.float64)
    _report_bad(target, which.y_key, bad, gaps=True)
    return FileRows(x, target, rows, None, bad)


def npz_targets(
    path: Path, y_key: str, y: NDArray[Any], labels: bool, bad: BadRows[int]
) -> NDArray[np.float64] | list[str]:
    """Targets of an array: a text for each row, or a table of numbers."""
    if labels:
        return _labels(path, y_key, y, bad)
    target: NDArray[np.float64] = _floats(path, y_key, y).reshape(len(y), -1).astype(np.float64)
    _report_bad(target, y_key, bad, gaps=True)
    return target


def _is_column(array: NDArray[Any], name: str) -> bool:
    """Whether it is the one input of a client, with one number a row."""
    return array.ndim == 1 and not name


def _tensor(part: Any) -> Any:
    return torch.from_numpy(part) if isinstance(part, np.ndarray) else part


def _with_lengths(
    path: Path, key: str, array: NDArray[Any], size_key: str, lengths: NDArray[np.int64]
) -> Sequences:
    longest = array.shape[1] if array.ndim > 1 else 0
    wrong = np.flatnonzero((lengths.reshape(len(array), -1)[:, 0] > longest) | (lengths.min() < 1))
    if lengths.ndim != 1 or len(wrong):
        row = int(wrong[0]) if len(wrong) else 0
        raise DataError(
            f"{path}, {row_place(row + 1)}: array {size_key!r} must hold how many of the {longest} "
            f"steps of a row of {key!r} are real, from 1 on, not {shown(lengths[row].tolist())}"
        )
    return sequences(array, lengths)


def _whole(path: Path, key: str, array: NDArray[Any]) -> NDArray[np.int64]:
    """Ids or lengths: whole numbers of at least 0."""
    fits = array.dtype.kind in "iu" or (
        array.dtype.kind == "f" and bool((array == np.floor(array)).all())
    )
    if not fits or (array.size and array.min() < 0):
        raise DataError(f"{path}: array {key!r} must hold whole numbers of at least 0")
    return array.astype(np.int64)


def read_arrays(path: Path, keys: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The named arrays of an archive, if they fit in memory; pickled objects are never loaded."""
    try:
        # Opened here, because NumPy leaves the file open when it is no archive.
        with opened(path) as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, NpzFile):
                raise DataError(f"{path}: a single array, not an .npz archive; use numpy.savez")
            for key in keys:
                if key not in archive.files:
                    raise missing_name(str(path), "array", key, archive.files)
            _check_unpacked(path, archive, set(keys))
            return {key: np.asarray(archive[key]) for key in keys}
    except DataError:
        raise
    # A damaged archive surfaces as almost any exception of zipfile, zlib or NumPy's header parser.
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{path}: not a readable .npz file of plain arrays ({reason}); save it again with "
            "numpy.savez"
        ) from error


def _check_unpacked(path: Path, archive: NpzFile, keys: Collection[str]) -> None:
    """Refuse arrays that would not fit in memory, by the sizes in the archive's directory.

    No more than these sizes is ever unpacked, so a small file cannot fill the memory.
    """
    sizes: dict[str, int] = {}
    for info in archive.zip.infolist() if archive.zip else []:
        name = info.filename.removesuffix(".npy")
        if name in sizes and name in keys:
            raise DataError(
                f"{path}: two members are both array {name!r}; save it again with numpy.savez"
            )
        sizes[name] = info.file_size
    check_memory(COPIES * sum(sizes[key] for key in keys), f"{path}: unpacked, it", DataError)


def _floats(path: Path, key: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind not in "fiub":
        raise DataError(f"{path}: array {key!r} must hold numbers, not {array.dtype}")
    # Pixels and half floats fit single precision; anything else waits for its standardisation.
    small = array.dtype.itemsize <= 2 or array.dtype == np.float32
    with np.errstate(over="ignore"):
        return array.astype(np.float32 if small else np.float64)


def _report_bad(values: NDArray[Any], key: str, bad: BadRows[int], *, gaps: bool = False) -> None:
    table = values.reshape(len(values), -1)
    good = usable(table) | (np.isnan(table) if gaps else False)
    for row in np.flatnonzero(~good.all(axis=1)):
        value = table[row][~good[row]][0]
        bad.add(int(row) + 1, f"array {key!r} holds {value}", row_place(int(row) + 1))


def _labels(path: Path, key: str, y: NDArray[Any], bad: BadRows[int]) -> list[str]:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or y.dtype.kind not in "fiubUS":
        mask = f"; for a label at each place say shape = {list(y.shape[1:])}" if y.ndim > 1 else ""
        raise DataError(
            f"{path}: array {key!r} must hold one label per row, not {y.dtype} of shape "
            f"{y.shape}{mask}"
        )
    if y.dtype.kind == "f":
        _report_bad(y[:, None], key, bad, gaps=True)
    if y.dtype.kind == "S":
        y = np.char.decode(y, "utf-8", "replace")
    return [label_text(label) for label in y.tolist()]


def _label_codes(
    path: Path, which: Arrays, y: NDArray[Any]
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Labels at each place as numbers of distinct texts; NaN where there is none."""
    if y.shape[1:] != which.shape or y.dtype.kind not in "fiubUS":
        raise DataError(
            f"{path}: array {which.y_key!r} must hold labels of shape {which.shape} a row, not "
            f"{y.dtype} of shape {y.shape[1:]}"
        )
    distinct, places = np.unique(y, return_inverse=True)
    if distinct.dtype.kind == "S":
        distinct = np.char.decode(distinct, "utf-8", "replace")
    texts = [label_text(label) for label in distinct.tolist()]
    known = tuple(dict.fromkeys(text for text in texts if text))
    codes = np.array([known.index(text) if text else np.nan for text in texts], dtype=np.float64)
    return codes[places.reshape(y.shape)], known
