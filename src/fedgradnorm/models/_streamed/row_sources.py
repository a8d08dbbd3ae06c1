"""Where rows lie: arrays on a disk, HDF5 files, map-style Datasets. Each is read by row numbers."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedgradnorm._errors import DataError
from fedgradnorm._extras import needed
from fedgradnorm._memory import check_memory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.int64]

ALWAYS = 1 << 20  # bytes that are read without asking for the limit
LINKS = 16  # that a name inside an HDF5 file may pass through


class Source(ABC):
    """Rows by number, as they lie there: nothing is converted, checked or kept.

    ``name`` is what messages call it, such as a file. ``pairs`` says that a row is inputs and
    target in one.
    """

    name: str
    pairs: bool = False

    @abstractmethod
    def __len__(self) -> int:
        """How many rows there are."""

    @abstractmethod
    def read(self, rows: Rows) -> tuple[Any, Any]:
        """Inputs of these rows, in this order, and their targets, or None without ``pairs``."""

    def place(self, row: int) -> str:
        """Where a row is, for a message."""
        return f"{self.name}, row {row} (from 0)"

    def part(self, name: str, at: list[int]) -> str:
        """What a number of a row is called, for a message."""
        return f"{name}{at if at else ''}"


class ArraySource(Source):
    """Something with a shape that is indexed like an array: a memory map, an HDF5 dataset."""

    def __init__(self, array: Any, name: str) -> None:
        if not len(getattr(array, "shape", ())):
            raise DataError(f"{name}: expected an array with one row per sample")
        self._array, self.name = array, name

    def array(self) -> Any:
        return self._array

    def __len__(self) -> int:
        return int(self.array().shape[0])

    def read(self, rows: Rows) -> tuple[Any, Any]:
        """Always a copy, so that no page of a map is held on to."""
        array = self.array()
        count = len(rows)
        check_read(array, count, f"{self.name}: {count} row{'s' * (count != 1)} of it")
        if isinstance(array, np.ndarray):
            return np.array(array[rows]), None
        return read_runs(array, rows), None


def check_read(array: Any, rows: int, what: str) -> None:
    """Refuse to read more than fits in memory: a small file may stand for any number of zeros."""
    needed = rows * math.prod(array.shape[1:]) * array.dtype.itemsize
    if needed > ALWAYS:
        check_memory(needed, what, DataError)


class TableSource(ArraySource):
    """A memory map with the columns of a table."""

    def __init__(self, array: Any, name: str, columns: Sequence[str]) -> None:
        super().__init__(array, name)
        self.columns = tuple(columns)

    def place(self, row: int) -> str:
        """The file's data row, counted from 1 as in every table."""
        return f"{self.name}, data row {row + 1}"

    def part(self, name: str, at: list[int]) -> str:
        return f"column {self.columns[at[0]]!r}" if name == "x" and at else super().part(name, at)


class Hdf5Source(ArraySource):
    """A dataset of an HDF5 file, opened by each process for itself when it is first read."""

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key, self.name = Path(path), key, str(path)
        self._process, self._file = -1, None
        if not len(self.array().shape):
            raise DataError(f"{path}: {key!r} is a single value; it needs one row per sample")

    def array(self) -> Any:
        """The dataset, in this process's own file handle."""
        if self._process != os.getpid():
            self._file, self._process = opened_hdf5(self.path), os.getpid()
        return hdf5_dataset(self._file, self.key, self.path)

    def read(self, rows: Rows) -> tuple[Any, Any]:
        """The rows; whatever a damaged file raises is a DataError."""
        with hdf5_damage(self.path):
            return super().read(rows)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_file": None, "_process": -1}


@contextmanager
def hdf5_damage(path: Path) -> Iterator[None]:
    """Make a DataError of whatever HDF5 stumbles over in a damaged file."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # h5py raises many kinds, by the part that is damaged
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(
            f"{path}: not a readable HDF5 file, or damaged ({reason}); save it again"
        ) from error


def opened_hdf5(path: Path) -> Any:
    """The file for reading, or a DataError."""
    with needed("files", "reading HDF5 files"):
        import h5py

    if not path.is_file():
        raise DataError(f"{path}: no such file; check the path")
    with hdf5_damage(path):
        return h5py.File(path, "r")


def hdf5_dataset(file: Any, key: str, path: Path) -> Any:
    """A dataset of the file, or a DataError that names what it has.

    Links to other files, external storage and virtual datasets are refused: a file from elsewhere
    would read whatever it names on this machine.
    """
    import h5py

    with hdf5_damage(path):
        place = _followed(file, key, path)
        found = None if place is None else h5py.h5o.open(file.id, place.encode())
        if not isinstance(found, h5py.h5d.DatasetID):
            there = ", ".join(repr(name) for name in list(file)[:10]) or "none"
            raise DataError(f"{path}: no dataset {key!r} (it has: {there})")
        stored = found.get_create_plist()
        # Asked before the shape: to tell it, HDF5 may open the files that a virtual one is made of.
        if stored.get_layout() == h5py.h5d.VIRTUAL or stored.get_external_count():
            raise _elsewhere(path, key)
        return h5py.Dataset(found)


def hdf5_values(file: Any, key: str, path: Path) -> Any:
    """All values of a dataset, if they fit in memory."""
    dataset = hdf5_dataset(file, key, path)
    with hdf5_damage(path):
        if dataset.shape:
            check_read(dataset, dataset.shape[0], f"{path}: {key!r}, read at once,")
        return dataset[()]


def _followed(file: Any, key: str, path: Path) -> str | None:
    """Where a name leads inside the file; None where there is nothing."""
    import h5py

    place, parts, links = "", [part for part in key.split("/") if part], 0
    while parts:
        part = parts.pop(0)
        group = file[place or "/"]
        link = group.get(part, getlink=True) if isinstance(group, h5py.Group) else None
        if isinstance(link, h5py.ExternalLink):
            raise _elsewhere(path, key)
        if isinstance(link, h5py.SoftLink):
            links += 1
            place = "" if link.path.startswith("/") else place
            parts = [step for step in link.path.split("/") if step not in ("", ".")] + parts
        else:
            place = f"{place}/{part}"
        if link is None or links > LINKS:
            return None
    return place or None


def _elsewhere(path: Path, key: str) -> DataError:
    return DataError(f"{path}: {key!r} is stored in another file; copy it into this one")


def read_runs(array: Any, rows: Rows) -> NDArray[Any]:
    """Rows of an array on a disk: in order, and neighbours with one read."""
    order, back = np.unique(rows, return_inverse=True)
    found = np.empty((len(order), *array.shape[1:]), dtype=array.dtype)
    cuts = np.flatnonzero(np.diff(order) != 1) + 1
    starts, ends = [0, *cuts.tolist()], [*cuts.tolist(), len(order)]
    for start, end in zip(starts, ends, strict=True):
        if end > start:
            found[start:end] = array[int(order[start]) : int(order[end - 1]) + 1]
    return found[back.reshape(-1)]


class FieldsSource(Source):
    """Named inputs, each from a source of its own."""

    def __init__(self, fields: Mapping[str, Source]) -> None:
        self.fields = dict(fields)
        self.name = next(iter(fields.values())).name
        sizes = {name: len(part) for name, part in fields.items()}
        if len(set(sizes.values())) > 1:
            raise DataError(f"the parts of x must have one number of rows each: {sizes}")

    def __len__(self) -> int:
        return len(next(iter(self.fields.values())))

    def read(self, rows: Rows) -> tuple[Any, Any]:
        return {name: part.read(rows)[0] for name, part in self.fields.items()}, None


class DatasetSource(Source):
    """A map-style ``torch.utils.data.Dataset``: pairs ``(x, y)``, or inputs alone."""

    def __init__(self, dataset: Any, *, pairs: bool) -> None:
        if isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__len__"):
            raise DataError(
                f"{type(dataset).__name__} has no rows by number; give a map-style Dataset, with "
                "__len__ and __getitem__"
            )
        self.dataset, self.pairs, self.name = dataset, pairs, type(dataset).__name__

    def __len__(self) -> int:
        return len(self.dataset)

    def place(self, row: int) -> str:
        return f"{self.name}, item {row}"

    def read(self, rows: Rows) -> tuple[Any, Any]:
        items = self._items(rows)
        for row, item in zip(rows.tolist(), items, strict=True):
            if self.pairs is not (isinstance(item, (tuple, list)) and len(item) == 2):
                wanted = "a pair (x, y)" if self.pairs else "inputs alone, as y is given separately"
                raise DataError(f"{self.place(row)}: expected {wanted}, not {_kind(item)}")
        if not self.pairs:
            return self._stacked(rows, items, "x"), None
        x, y = ([item[part] for item in items] for part in (0, 1))
        return self._stacked(rows, x, "x"), self._stacked(rows, y, "y")

    def _items(self, rows: Rows) -> Sequence[Any]:
        try:
            if hasattr(self.dataset, "__getitems__"):
                found: Sequence[Any] = self.dataset.__getitems__(rows.tolist())
                return found
            return [self.dataset[row] for row in rows.tolist()]
        except Exception as error:  # code of others may raise anything
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            first = self.place(int(rows[0])) if len(rows) else self.name
            raise DataError(
                f"{first} and the {len(rows) - 1} items read with it: {type(error).__name__}: "
                f"{reason}; correct the Dataset"
            ) from error

    def _stacked(self, rows: Rows, parts: Sequence[Any], name: str) -> Any:
        if isinstance(parts[0], Mapping):
            return {
                key: self._stacked(rows, [part[key] for part in parts], f"{name}[{key!r}]")
                for key in parts[0]
            }
        if isinstance(parts[0], Tensor):
            arrays = [part.detach().cpu() for part in parts]
            shapes = [tuple(part.shape) for part in arrays]
        else:
            arrays = [np.asarray(part) for part in parts]
            shapes = [part.shape for part in arrays]
        odd = next((k for k, shape in enumerate(shapes) if shape != shapes[0]), None)
        if odd is not None:
            raise DataError(
                f"{self.place(int(rows[odd]))}: {name} has shape {shapes[odd]}, and item "
                f"{int(rows[0])} {shapes[0]}; all items must have one shape"
            )
        return torch.stack(arrays) if isinstance(arrays[0], Tensor) else np.stack(arrays)


def _kind(item: Any) -> str:
    count = f" of {len(item)}" if isinstance(item, (tuple, list)) else ""
    return type(item).__name__ + count


def as_source(x: Any) -> Source | None:
    """The source that inputs come from, or None where they are in memory."""
    if isinstance(x, Tensor):
        return None
    if isinstance(x, Source):
        return x
    if isinstance(x, np.memmap):
        return ArraySource(x, str(x.filename) if x.filename else "a memory map")
    if isinstance(x, torch.utils.data.Dataset):
        return DatasetSource(x, pairs=False)
    if is_hdf5(x):
        return ArraySource(x, f"{x.file.filename}:{x.name}")
    if isinstance(x, Mapping) and x:
        parts = {name: as_source(part) for name, part in x.items()}
        if any(parts.values()):
            arrays = {
                name: ArraySource(np.asarray(x[name]), f"x[{name!r}]")
                for name in x
                if parts[name] is None
            }
            return FieldsSource({name: part or arrays[name] for name, part in parts.items()})
    return None


def is_hdf5(x: Any) -> bool:
    kind = type(x)
    return kind.__module__.startswith("h5py.") and kind.__name__ == "Dataset"
