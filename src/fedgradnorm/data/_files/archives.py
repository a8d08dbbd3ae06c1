"""NumPy archives: one array of inputs or several, and those of targets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.lib.npyio import NpzFile

from fedgradnorm._checks import shown
from fedgradnorm._errors import ConfigError, DataError, choose
from fedgradnorm._memory import check_memory
from fedgradnorm.data._bad_rows import BadRows
from fedgradnorm.data._files.tables import (
    FileRows,
    array_places,
    missing_name,
    opened,
    reason_of,
    text_of,
    usable,
)
from fedgradnorm.data._files.target import Target
from fedgradnorm.models._input_rows import Fields, Sequences, sequences

if TYPE_CHECKING:
    from numpy.typing import NDArray

COPIES = 2  # in memory at a time: the array as it is in the file, and its rows as floats


@dataclass(frozen=True)
class Arrays:
    """The names of the arrays in an .npz archive or a folder of .npy files.

    Args:
        x_key: name of the array of inputs.
        y_key: name of the array of targets.
        lengths: array of an .npz archive that says how many steps of each row of x are real; a
            table of such for named inputs.
    """

    x_key: str = "x"
    y_key: str = "y"
    lengths: str | Mapping[str, str] | None = None

    def inputs(self, path: Path, named: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
        """The array of each input, by its name; of one without a name it is empty."""
        for name, arrays in named.items():
            if len(arrays) != 1:
                raise ConfigError(
                    f"{path}: inputs: {name} is {list(arrays)}; in an archive it is one array, "
                    f"such as {name} = {arrays[0]!r}"
                )
        return {name: arrays[0] for name, arrays in named.items()} or {"": self.x_key}

    def sizes(self, inputs: Mapping[str, str]) -> dict[str, str]:
        """The array of lengths of each input that has one."""
        given = {"": self.lengths} if isinstance(self.lengths, str) else dict(self.lengths or {})
        for name in given:
            if name not in inputs:
                way = f"lengths = {{ {next(iter(inputs)) or 'name'} = ... }}"
                raise ConfigError(f"lengths must name inputs, {way}, not {shown(self.lengths)}")
        return given


def rows_from_npz(
    path: Path,
    which: Arrays,
    named: Mapping[str, tuple[str, ...]],
    ids: Collection[str],
    targets: Mapping[str, Target],
    bad: BadRows[int],
) -> FileRows:
    """Inputs and targets of an ``.npz`` file; pickled objects are never loaded.

    ``named`` are the arrays of inputs that have names, ``ids`` those of whole numbers that a
    network looks up.
    """
    inputs = which.inputs(path, named)
    sizes = which.sizes(inputs)
    for name in ids:
        choose(name, (*inputs, *inputs.values()), "array in ids")
    keys = {key: target.y_key or which.y_key for key, target in targets.items()}
    arrays = read_arrays(path, [*inputs.values(), *sizes.values(), *keys.values()])
    y_key = next(iter(keys.values()))
    rows = arrays[y_key]
    for key, one in arrays.items():
        if one.ndim == 0 or rows.ndim == 0 or len(one) != len(rows):
            raise DataError(
                f"{path}: {key!r} has shape {one.shape}, {y_key!r} {rows.shape}; they need one row "
                "per sample each"
            )
        if one.size == 0 or rows.size == 0:
            raise DataError(f"{path}: {key!r} or {y_key!r} is empty, no rows left to use")
    parts: dict[str, Any] = {}
    for name, key in inputs.items():
        array = arrays[key]
        if name in ids or key in ids:
            parts[name] = _whole(path, key, array)
        else:
            column = array.ndim == 1 and not name  # the one input, with one number a row
            parts[name] = _floats(path, key, array[:, None] if column else array)
            _report_bad(parts[name], key, bad)
        if name in sizes:
            parts[name] = _with_lengths(path, key, parts[name], sizes[name], arrays[sizes[name]])
    tensors = {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in parts.items()}
    x = parts[""] if "" in parts else Fields(tensors)
    return array_rows(
        path, x, {key: arrays[name] for key, name in keys.items()}, keys, targets, bad
    )


def array_rows(
    path: Path,
    x: Any,
    arrays: Mapping[str, NDArray[Any]],
    keys: Mapping[str, str],
    targets: Mapping[str, Target],
    bad: BadRows[int],
) -> FileRows:
    """Rows with the targets of each task from its array, which the file calls as in ``keys``."""
    y: dict[str, Any] = {}
    texts: dict[str, tuple[str, ...]] = {}
    for key, target in targets.items():
        name, array = keys[key], np.asarray(arrays[key])
        if target.reads_texts and target.form:
            y[key], texts[key] = _label_codes(path, name, array, target.form)
        elif target.reads_texts:
            y[key] = _labels(path, name, array, bad)
        else:
            numbers = _floats(path, name, array).astype(np.float64)
            y[key] = numbers if target.form else numbers.reshape(len(array), -1)
            _report_bad(numbers, name, bad, gaps=True)
    return FileRows(x, y, array_places(len(x), bad), label_texts=texts)


def _with_lengths(
    path: Path, key: str, array: NDArray[Any], size_key: str, given: NDArray[Any]
) -> Sequences:
    lengths = _whole(path, size_key, given)
    longest = array.shape[1] if array.ndim > 1 else 0
    wrong = np.flatnonzero((lengths.reshape(len(array), -1)[:, 0] > longest) | (lengths.min() < 1))
    if lengths.ndim != 1 or len(wrong):
        row = int(wrong[0]) if len(wrong) else 0
        raise DataError(
            f"{path}, data row {row + 1}: array {size_key!r} must hold how many of the {longest} "
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
        raise DataError(
            f"{path}: not a readable .npz file of plain arrays ({reason_of(error)}); save it again "
            "with numpy.savez"
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
    for row in np.flatnonzero(~good.all(axis=1)).tolist():
        value = table[row][~good[row]][0]
        bad.add(row + 1, f"array {key!r} holds {value}", f"data row {row + 1}")


def _labels(path: Path, key: str, y: NDArray[Any], bad: BadRows[int]) -> NDArray[Any]:
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
    return np.array(_texts(y), dtype=object)


def _texts(labels: NDArray[Any]) -> list[str]:
    if labels.dtype.kind == "S":
        labels = np.char.decode(labels, "utf-8", "replace")
    return [text_of(label) for label in labels.tolist()]


def _label_codes(
    path: Path, key: str, y: NDArray[Any], shape: tuple[int, ...]
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Labels at each place as numbers of distinct texts; NaN where there is none."""
    if y.shape[1:] != shape or y.dtype.kind not in "fiubUS":
        raise DataError(
            f"{path}: array {key!r} must hold labels of shape {shape} a row, not {y.dtype} of "
            f"shape {y.shape[1:]}"
        )
    distinct, places = np.unique(y, return_inverse=True)
    texts = _texts(distinct)
    known = {text: i for i, text in enumerate(dict.fromkeys(text for text in texts if text))}
    codes = np.array([known.get(text, np.nan) for text in texts], dtype=np.float64)
    return codes[places.reshape(y.shape)], tuple(known)
