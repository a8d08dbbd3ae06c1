"""Files whose inputs are never all in memory: folders of .npy files, and Parquet.

Targets are read at once, because they are small and classes are learned from all of them. Parquet
cannot be read row by row: its numbers are written once, in pieces, to a memory-mapped array in the
cache.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm._extras import needed
from fedgradnorm._memory import check_memory
from fedgradnorm.data._bad_rows import BadRows
from fedgradnorm.data._cache import Built, cached, default_folder, fingerprint
from fedgradnorm.data._files.archives import array_rows
from fedgradnorm.data._files.tables import (
    CELL_BYTES,
    PARQUET,
    FileRows,
    frame_cells,
    missing_name,
    reason_of,
    text_columns,
)
from fedgradnorm.data._paths import is_file
from fedgradnorm.models._streamed.feed import Feed
from fedgradnorm.models._streamed.given import mapped
from fedgradnorm.models._streamed.row_sources import (
    ArraySource,
    TableSource,
    check_read,
)
from fedgradnorm.models._streamed.rows import Streamed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedgradnorm.data._files.loading import Reader

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
    arrays = {key: _whole_array(path / f"{name}.npy") for key, name in keys.items()}
    for key, y in arrays.items():
        if y.ndim == 0 or len(x) != len(y):
            raise DataError(
                f"{path}: {x_key!r} has {len(x)} rows, {keys[key]!r} has shape {y.shape}; they "
                "need one row per sample each"
            )
    return array_rows(path, Streamed(Feed(x, str(path))), arrays, keys, reader.targets, bad)


def _whole_array(path: Path) -> NDArray[Any]:
    """An array of targets, if it fits in memory."""
    y = mapped(path)
    if y.shape:
        check_read(y, len(y), f"{path}, read at once,")
    return np.array(y)


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


def _write_columns(file: Any, names: Sequence[str], array: Any) -> None:
    """Some columns of a Parquet file, in pieces."""
    start, rows = 0, max(1, NUMBERS // len(names))
    for batch in file.iter_batches(rows, columns=list(names), use_threads=False):
        end = start + batch.num_rows
        for k, name in enumerate(names):
            column = batch.column(batch.schema.get_field_index(name))
            array[start:end, k] = column.to_numpy(zero_copy_only=False).astype(array.dtype)
        start = end


def _written(path: Path, names: Sequence[str], place: Path, dtype: np.dtype[Any], size: int) -> Any:
    import pyarrow
    from pyarrow import parquet

    shape = (size, len(names))
    array = np.lib.format.open_memmap(place, mode="w+", dtype=dtype, shape=shape)
    with parquet.ParquetFile(path) as file:
        for first in range(0, len(names), COLUMNS):
            _write_columns(file, names[first : first + COLUMNS], array[:, first : first + COLUMNS])
    pyarrow.default_memory_pool().release_unused()
    array.flush()
    return array
