"""Where rows lie: memory maps and map-style Datasets. Each is read by row numbers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedgradnorm._errors import DataError
from fedgradnorm._memory import check_memory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.int64]

ALWAYS = 1 << 20  # bytes that are read without asking for the limit


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
    """A memory map."""

    def __init__(self, array: Any, name: str) -> None:
        if not len(getattr(array, "shape", ())):
            raise DataError(f"{name}: expected an array with one row per sample")
        self._array, self.name = array, name

    def __len__(self) -> int:
        return int(self._array.shape[0])

    def read(self, rows: Rows) -> tuple[Any, Any]:
        """Always a copy, so that no page of a map is held on to."""
        count = len(rows)
        check_read(self._array, count, f"{self.name}: {count} row{'s' * (count != 1)} of it")
        return np.array(self._array[rows]), None


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
    return None
