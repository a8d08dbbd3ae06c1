"""NumPy archives, and files whose inputs are never all in memory: .npy files, and Parquet.

Targets are read at once, because they are small and classes are learned from all of them. Parquet
cannot be read row by row: its numbers are written once, in pieces, to a memory-mapped array in the
cache.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.npyio import NpzFile

from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm._extras import needed
from fedgradnorm._memory import check_memory
from fedgradnorm.data._bad_rows import BadRows
from fedgradnorm.data._cache import Built, cached, default_folder, fingerprint
from fedgradnorm.data._files.tables import (
    CELL_BYTES,
    PARQUET,
    FileRows,
    Places,
    frame_cells,
    missing_name,
    opened,
    reason_of,
    text_columns,
    usable,
)
from fedgradnorm.data._files.target import Target
from fedgradnorm.data._paths import is_file
from fedgradnorm.models._streamed import (
    ArraySource,
    Feed,
    Streamed,
    TableSource,
    check_read,
    mapped,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedgradnorm.data._files.table import Reader


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


log = logging.getLogger(__name__)

NUMBERS = 1 << 19  # of a Parquet file in memory at a time, about
COLUMNS = 32  # read at a time: the reader has buffers for each
_SMALL = ("float", "halffloat", "int8", "int16", "uint8", "uint16", "bool")


def streamed_rows(reader: Reader, path: Any, bad: BadRows[int]) -> FileRows:
    """The rows of a file, of whose inputs none is read yet."""
    said = reader.form.na or reader.form.where
    if not reader.plan.plain or reader.folder is not None or reader.on_bad != "error" or said:
        raise ConfigError(
            f"{bad.source}: stream reads plain numbers, and bad rows are found while it trains; "
            "leave out images, categories, dates, cyclic, missing, without, na, where and on_bad"
        )
    suffix, x_key = reader.form.suffix(path), reader.arrays.x_key
    if suffix in PARQUET:
        return _parquet_rows(reader, path, bad)
    if not isinstance(path, Path) or not path.is_dir():
        raise DataError(
            f"{bad.source}: stream reads .parquet files and folders of .npy files; save it as one "
            "of them, or leave stream out"
        )
    if reader.inputs or reader.columns or reader.marks:
        raise ConfigError(
            f"{bad.source}: arrays have no columns; leave out inputs, targets and split, and use "
            "x_key and y_key"
        )
    keys = {key: target.y_key or reader.arrays.y_key for key, target in reader.targets.items()}
    x = ArraySource(mapped(path / f"{x_key}.npy"), str(path / f"{x_key}.npy"))
    arrays = {key: mapped(path / f"{name}.npy") for key, name in keys.items()}
    for key, y in arrays.items():
        if y.shape:
            check_read(y, len(y), f"{path / keys[key]}.npy, read at once,")
        if y.ndim == 0 or len(x) != len(y):
            raise DataError(
                f"{path}: {x_key!r} has {len(x)} rows, {keys[key]!r} has shape {y.shape}; they "
                "need one row per sample each"
            )
        arrays[key] = np.array(y)
    return array_rows(path, Streamed(Feed(x, str(path))), arrays, keys, reader.targets, bad)


def _parquet_rows(reader: Reader, path: Path, bad: BadRows[int]) -> FileRows:
    with needed("files", "reading Parquet files"):
        from pyarrow import parquet

    reader.check_columns()
    if not is_file(path):
        raise DataError(f"{path}: no such file; check the path")
    wanted = list(dict.fromkeys([*reader.columns, *reader.marks]))
    try:
        with parquet.ParquetFile(path) as file:
            schema, size = file.schema_arrow, file.metadata.num_rows
        known = list(schema.names)
        names = list(reader.inputs or [name for name in known if name not in wanted])
        for name in (*names, *wanted):
            if name not in known:
                raise missing_name(str(path), "column", name, known)
        need = size * len(wanted) * CELL_BYTES
        check_memory(need, f"{path}: its targets, unpacked, together", DataError)
        # Without threads, which would read many row groups at a time.
        with parquet.ParquetFile(path, read_dictionary=text_columns(schema)) as file:
            frame = file.read(columns=wanted, use_threads=False).to_pandas()
        table = frame_cells(frame, wanted, bad)
        x = _mapped_columns(path, names, schema, size)
    except DataError:
        raise
    except Exception as error:  # a damaged file surfaces as almost any exception of the reader
        reason = reason_of(error)
        if isinstance(error, MemoryError) or "bad_alloc" in reason:
            raise DataError(
                f"{path}: a row group of it does not fit in memory ({reason}); write it again with "
                "smaller ones (row_group_size)"
            ) from error
        raise DataError(f"{path}: not a readable Parquet file ({reason}); save it again") from error
    rows = Streamed(Feed(TableSource(x, str(path), names), str(path)))
    marks = table.marks(reader.marks, reader.form.free)
    return FileRows(rows, reader.targets_of(table), table.places, marks, inputs=tuple(names))


def _mapped_columns(path: Path, names: Sequence[str], schema: Any, size: int) -> Any:
    """The columns as one array on the disk, written when the file is first used."""
    kinds = {name: str(schema.field(name).type) for name in names}
    for name, kind in kinds.items():
        if not kind.startswith(("float", "double", "halffloat", "int", "uint", "bool")):
            raise DataError(
                f"{path}: column {name!r} holds {kind}, and stream reads numbers; leave it out of "
                "inputs, or leave stream out"
            )
    single = all(kind in _SMALL for kind in kinds.values())
    dtype = np.dtype(np.float32 if single else np.float64)
    root = default_folder()
    root.mkdir(parents=True, exist_ok=True)
    needed, (_, _, free) = size * len(names) * dtype.itemsize, shutil.disk_usage(root)
    if needed > free:
        raise DataError(
            f"{path}: unpacked, its inputs take {needed // 10**6} MB, and {root} has "
            f"{free // 10**6} MB left; name another folder with FEDGRADNORM_CACHE"
        )
    with tempfile.TemporaryDirectory(prefix=".parquet-", dir=root) as place:

        def build() -> Built:
            log.info("%s: writing its %d rows to %s, once", path, size, root)
            return {"x": _written(path, names, Path(place) / "x.npy", dtype, size)}, {}

        key = {"file": fingerprint(path), "columns": list(names), "dtype": str(dtype)}
        return cached("parquet", key, build).arrays["x"]


def _written(path: Path, names: Sequence[str], place: Path, dtype: np.dtype[Any], size: int) -> Any:
    import pyarrow
    from pyarrow import parquet

    shape = (size, len(names))
    array = np.lib.format.open_memmap(place, mode="w+", dtype=dtype, shape=shape)
    with parquet.ParquetFile(path) as file:
        for first in range(0, len(names), COLUMNS):
            start, some = 0, list(names[first : first + COLUMNS])
            rows = max(1, NUMBERS // len(some))
            for batch in file.iter_batches(rows, columns=some, use_threads=False):
                end = start + batch.num_rows
                for k, name in enumerate(some, first):
                    column = batch.column(batch.schema.get_field_index(name))
                    array[start:end, k] = column.to_numpy(zero_copy_only=False).astype(dtype)
                start = end
    pyarrow.default_memory_pool().release_unused()
    array.flush()
    return array
