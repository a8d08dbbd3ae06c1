"""NumPy archives: an array of inputs, and those of targets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.npyio import NpzFile

from fedgradnorm._errors import DataError
from fedgradnorm._memory import check_memory
from fedgradnorm.data._bad_rows import BadRows
from fedgradnorm.data._files.tables import (
    FileRows,
    Places,
    missing_name,
    opened,
    reason_of,
    usable,
)
from fedgradnorm.data._files.target import Target

if TYPE_CHECKING:
    from numpy.typing import NDArray

COPIES = 2  # in memory at a time: the array as it is in the file, and its rows as floats


@dataclass(frozen=True)
class Arrays:
    """The names of the arrays in an .npz archive or a folder of .npy files.

    Args:
        x_key: name of the array of inputs.
        y_key: name of the array of targets.
    """

    x_key: str = "x"
    y_key: str = "y"


def rows_from_npz(
    path: Path, which: Arrays, targets: Mapping[str, Target], bad: BadRows[int]
) -> FileRows:
    """Inputs and targets of an ``.npz`` file; pickled objects are never loaded."""
    keys = {key: target.y_key or which.y_key for key, target in targets.items()}
    arrays = read_arrays(path, [which.x_key, *keys.values()])
    given = arrays[which.x_key]
    for key, one in arrays.items():
        if one.ndim == 0 or given.ndim == 0 or len(one) != len(given):
            raise DataError(
                f"{path}: {which.x_key!r} has shape {given.shape}, {key!r} {one.shape}; they need "
                "one row per sample each"
            )
        if one.size == 0:
            raise DataError(f"{path}: {key!r} is empty, no rows left to use")
    x = _floats(path, which.x_key, given[:, None] if given.ndim == 1 else given)
    _report_bad(x, which.x_key, bad)
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
    for key, target in targets.items():
        name, array = keys[key], np.asarray(arrays[key])
        if target.reads_texts:
            y[key] = _labels(path, name, array, target.form)
            if array.dtype.kind == "f":
                _report_bad(y[key], name, bad, gaps=True)
        else:
            numbers = _floats(path, name, array).astype(np.float64)
            y[key] = numbers if target.form else numbers.reshape(len(array), -1)
            _report_bad(numbers, name, bad, gaps=True)
    return FileRows(x, y, Places(range(1, len(x) + 1), None, bad))


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
    # Pixels and half floats fit single precision; anything else waits for its standardization.
    small = array.dtype.itemsize <= 2 or array.dtype == np.float32
    with np.errstate(over="ignore"):
        return array.astype(np.float32 if small else np.float64)


def _report_bad(values: NDArray[Any], key: str, bad: BadRows[int], *, gaps: bool = False) -> None:
    table = values.reshape(len(values), -1)
    good = usable(table) | (np.isnan(table) if gaps else False)
    for row in np.flatnonzero(~good.all(axis=1)).tolist():
        value = table[row][~good[row]][0]
        bad.add(row + 1, f"array {key!r} holds {value}", f"data row {row + 1}")


def _labels(path: Path, key: str, y: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """An array of labels, one for each row or each position of it."""
    if not shape and y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.shape[1:] != shape or y.dtype.kind not in "fiubUS":
        wanted = f"labels of shape {shape} a row" if shape else "one label per row"
        mask = y.ndim > 1 and not shape
        way_out = f"; for a label at each place say shape = {list(y.shape[1:])}" if mask else ""
        raise DataError(
            f"{path}: array {key!r} must hold {wanted}, not {y.dtype} of shape {y.shape}{way_out}"
        )
    return np.char.decode(y, "utf-8", "replace") if y.dtype.kind == "S" else y
