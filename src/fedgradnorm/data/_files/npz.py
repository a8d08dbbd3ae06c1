"""NumPy archives: one array of inputs, one of targets."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.npyio import NpzFile

from fedgradnorm._errors import DataError
from fedgradnorm.data._bad_rows import BadRows
from fedgradnorm.data._files.in_archive import opened
from fedgradnorm.data._files.read_rows import (
    FileRows,
    label_text,
    missing_name,
    row_place,
    usable,
)
from fedgradnorm.data._memory import check_memory

if TYPE_CHECKING:
    from numpy.typing import NDArray

COPIES = 2  # in memory at a time: the array as it is in the file, and its rows as floats


def rows_from_npz(path: Path, x_key: str, y_key: str, labels: bool, bad: BadRows[int]) -> FileRows:
    """Inputs and targets of an ``.npz`` file; pickled objects are never loaded."""
    x, y = _arrays(path, x_key, y_key)
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise DataError(
            f"{path}: {x_key!r} has shape {x.shape}, {y_key!r} {y.shape}; they need one row per "
            "sample each"
        )
    if x.size == 0 or y.size == 0:
        raise DataError(f"{path}: {x_key!r} or {y_key!r} is empty, no rows left to use")
    x = _floats(path, x_key, x[:, None] if x.ndim == 1 else x)
    rows = range(1, len(x) + 1)
    _report_bad(x, x_key, bad)
    return FileRows(x, npz_targets(path, y_key, y, labels, bad), rows, None, bad)


def npz_targets(
    path: Path, y_key: str, y: NDArray[Any], labels: bool, bad: BadRows[int]
) -> NDArray[np.float64] | list[str]:
    """Targets of an array: a text for each row, or a table of numbers."""
    if labels:
        return _labels(path, y_key, y, bad)
    target: NDArray[np.float64] = _floats(path, y_key, y).reshape(len(y), -1).astype(np.float64)
    _report_bad(target, y_key, bad, gaps=True)
    return target


def _arrays(path: Path, x_key: str, y_key: str) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        # Opened here, because NumPy leaves the file open when it is no archive.
        with opened(path) as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, NpzFile):
                raise DataError(f"{path}: a single array, not an .npz archive; use numpy.savez")
            for key in (x_key, y_key):
                if key not in archive.files:
                    raise missing_name(str(path), "array", key, archive.files)
            _check_unpacked(path, archive, {x_key, y_key})
            return np.asarray(archive[x_key]), np.asarray(archive[y_key])
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
    members = archive.zip.infolist() if archive.zip else []
    sizes = {info.filename.removesuffix(".npy"): info.file_size for info in members}
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
        raise DataError(
            f"{path}: array {key!r} must hold one label per row, not {y.dtype} of shape {y.shape}"
        )
    if y.dtype.kind == "f":
        _report_bad(y[:, None], key, bad, gaps=True)
    if y.dtype.kind == "S":
        y = np.char.decode(y, "utf-8", "replace")
    return [label_text(label) for label in y.tolist()]
