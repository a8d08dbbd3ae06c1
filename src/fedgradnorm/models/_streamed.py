"""Rows that stay where they lie, on a disk or in a Dataset, and are read batch by batch.

What a batch holds follows from its row numbers alone. So whether it was read ahead, again, or not
at all beforehand changes nothing but the time.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgradnorm._checks import whole
from fedgradnorm._errors import DataError
from fedgradnorm._memory import check_memory
from fedgradnorm.models._given_inputs import as_inputs
from fedgradnorm.models._input_rows import Composite, Inputs, leaves, moved, row_form

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
                count = f" of {len(item)}" if isinstance(item, (tuple, list)) else ""
                given = type(item).__name__ + count
                raise DataError(f"{self.place(row)}: expected {wanted}, not {given}")
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


Batch = tuple[Inputs, Tensor | None]
Change = Callable[[Any], Any]

_pools: dict[int, ThreadPoolExecutor] = {}


def _pool(workers: int) -> ThreadPoolExecutor:
    """The threads that read for all who want so many.

    With one thread, code of a Dataset is never run by two at a time, also where clients share it.
    """
    if workers not in _pools:
        _pools[workers] = ThreadPoolExecutor(workers, thread_name_prefix="fedgradnorm-reading")
    return _pools[workers]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)  # threads do not survive a fork


@dataclass(eq=False)
class Feed:
    """Some rows of a source, as a client learns from them.

    ``rows`` are those that belong to it, all by default; ``where`` names client and split in
    messages. ``change_x`` and ``change_y`` are done to each batch in turn: class numbers for
    texts, standardization. ``workers`` threads read ahead; 0 reads in the caller's own thread.
    """

    source: Source
    where: str
    rows: NDArray[np.int64] | None = None
    change_x: tuple[Change, ...] = ()
    change_y: tuple[Change, ...] = ()
    workers: int = 1
    _ahead: dict[bytes, Future[Batch]] = field(default_factory=dict, repr=False)
    _asked: tuple[bytes, ...] = field(default=(), repr=False)
    _last: tuple[bytes, Batch] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.source) if self.rows is None else len(self.rows)

    def but(self, **changes: Any) -> Feed:
        """The same feed with other settings, and with nothing read yet."""
        return replace(self, **changes, _ahead={}, _asked=(), _last=None)

    def subset(self, rows: NDArray[Any]) -> Feed:
        """Some of the rows, by number or by true and false."""
        if rows.dtype == np.bool_:
            rows = np.flatnonzero(rows)
        own = rows if self.rows is None else self.rows[rows]
        return self.but(rows=np.ascontiguousarray(own, dtype=np.int64))

    def take(self, rows: NDArray[np.int64]) -> Batch:
        """Inputs and targets of these rows; read now, unless they were read ahead."""
        key = rows.tobytes()
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        ahead = self._ahead.get(key)
        if ahead is not None:
            batch = ahead.result()
        elif self.workers:
            batch = _pool(self.workers).submit(self._read, rows).result()
        else:
            batch = self._read(rows)
        self._last = key, batch
        return batch

    def expect(self, batches: Sequence[NDArray[np.int64]]) -> None:
        """Begin to read batches that are wanted soon; those of the call before are kept, too."""
        if not self.workers:
            return
        keys = [rows.tobytes() for rows in batches]
        known = {key: self._ahead[key] for key in self._asked if key in self._ahead}
        for key in [key for key in self._ahead if key not in known and key not in keys]:
            self._ahead[key].cancel()
        for key, rows in zip(keys, batches, strict=True):
            if key not in known:
                kept = self._ahead.get(key)
                known[key] = kept or _pool(self.workers).submit(self._read, rows)
        self._ahead, self._asked = known, tuple(keys)

    def rest(self) -> None:
        """Let go of all that was read."""
        for ahead in self._ahead.values():
            ahead.cancel()
        self._ahead, self._asked, self._last = {}, (), None

    def _read(self, rows: NDArray[np.int64]) -> Batch:
        """The batch, converted and checked; a DataError names client, file and row."""
        there = rows if self.rows is None else self.rows[rows]
        try:
            raw_x, raw_y = self.source.read(there)
        except DataError as error:
            raise DataError(f"{self.where}: {error}") from error
        except (OSError, ValueError) as error:
            raise DataError(f"{self.where}: {self.source.name} cannot be read: {error}") from error
        x: Inputs = as_inputs(f"{self.where}, {self.source.name}", raw_x, empty=True)
        for name, leaf in leaves(x).items():
            self._check_finite(leaf, there, f"x[{name!r}]" if name else "x")
        for change in self.change_x:
            x = change(x)
        return x, self._targets(raw_y, there) if self.source.pairs else None

    def _targets(self, raw: Any, there: NDArray[np.int64]) -> Tensor:
        y = raw
        try:
            for change in self.change_y:
                y = change(y)
        except DataError:
            for row in there.tolist():  # which one is it?
                self._check_target(row)
            raise
        if isinstance(y, Tensor) and y.is_floating_point():
            self._check_finite(y, there, "y")
        found: Tensor = y
        return found

    def _check_target(self, row: int) -> None:
        y = self.source.read(np.array([row]))[1]
        try:
            for change in self.change_y:
                y = change(y)
        except DataError as error:
            reason = str(error).removeprefix(f"{self.where}: ")
            raise DataError(f"{self.where}, {self.source.place(row)}: {reason}") from error

    def _check_finite(self, values: Tensor, there: NDArray[np.int64], name: str) -> None:
        if not values.is_floating_point() or torch.isfinite(values.sum()):
            return
        bad = ~torch.isfinite(values)
        if bad.any():
            row, *rest = bad.nonzero()[0].tolist()
            value, at = values[(row, *rest)].item(), self.source.part(name, rest)
            raise DataError(
                f"{self.where}, {self.source.place(int(there[row]))}: {at} is {value}; remove or "
                "fill the rows that are not finite"
            )


SAMPLED = 256  # rows that tell whether data is the same as before


def numbers_of(rows: Any, size: int) -> NDArray[np.int64]:
    if isinstance(rows, slice):
        return np.arange(*rows.indices(size), dtype=np.int64)
    found = rows.detach().cpu().numpy() if isinstance(rows, Tensor) else np.asarray(rows)
    return np.ascontiguousarray(found, dtype=np.int64)


class Streamed(Composite):
    """Inputs of a feed. A slice or row numbers read them; true and false choose, and read nothing.

    ``placed`` puts a batch where the network is.
    """

    def __init__(self, feed: Feed, placed: Change | None = None) -> None:
        self.feed, self._placed = feed, placed
        self._first: Inputs | None = None

    def __len__(self) -> int:
        return len(self.feed)

    def __getitem__(self, rows: Any) -> Inputs:
        if isinstance(rows, Tensor) and rows.dtype == torch.bool:
            return Streamed(self.feed.subset(rows.cpu().numpy()), self._placed)
        x = self.feed.take(numbers_of(rows, len(self)))[0]
        return x if self._placed is None else self._placed(x)

    def placed(self, how: Change) -> Streamed:
        """The same rows, of which each batch goes through ``how`` when it is asked for."""
        return Streamed(self.feed, how)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Streamed:
        """Batches are moved as they are read."""
        return self.placed(lambda x: moved(x, device, dtype))

    @property
    def first(self) -> Inputs:
        if self._first is None:
            self._first = self[:1]
        return self._first

    def leaves(self) -> dict[str, Tensor]:
        """The numbers of the first row alone: nobody has all of them."""
        return leaves(self.first)

    def form(self) -> Any:
        return row_form(self.first)

    def arguments(self) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """Never asked for: networks are called with rows that were read."""
        raise DataError(f"{self.feed.where}: rows are read batch by batch, not all at once")

    @property
    def numbers(self) -> int:
        return sum(leaf.numel() for leaf in self.leaves().values())


class StreamedTargets:
    """Targets that lie with their inputs, one item of both, and are read with them."""

    def __init__(self, feed: Feed, placed: Callable[[Tensor], Tensor] | None = None) -> None:
        self.feed, self._placed = feed, placed

    def __len__(self) -> int:
        return len(self.feed)

    def __getitem__(self, rows: Any) -> Tensor:
        y = self.feed.take(numbers_of(rows, len(self)))[1]
        assert y is not None
        return y if self._placed is None else self._placed(y)

    def __array__(self, *given: Any, **options: Any) -> NDArray[Any]:
        raise TypeError("targets that are read batch by batch are no array")  # nor row by row

    def placed(self, how: Callable[[Tensor], Tensor]) -> StreamedTargets:
        """The same rows, of which each batch goes through ``how`` when it is asked for."""
        return StreamedTargets(self.feed, how)

    def whole(self, rows: int = 1024) -> Tensor:
        """All of them: that reads every item once."""
        return torch.cat([self[start : start + rows] for start in range(0, len(self), rows)])


Targets = Tensor | StreamedTargets


def all_targets(y: Any) -> Tensor:
    """All targets; those that lie with their inputs are read, each once."""
    return y.whole() if isinstance(y, StreamedTargets) else torch.as_tensor(y)


def some_targets(y: Any) -> Tensor:
    """All targets, or of those that lie with their inputs the ones that stand for all."""
    return y[sample_rows(len(y))] if isinstance(y, StreamedTargets) else torch.as_tensor(y)


def pair_of(feed: Feed, y: Targets | None) -> tuple[Streamed, Targets]:
    """Inputs and targets of a feed; ``y`` where it is in memory."""
    if feed.source.pairs:
        return Streamed(feed), StreamedTargets(feed)
    assert y is not None
    return Streamed(feed), y


def subset(x: Streamed, y: Targets, rows: NDArray[np.int64]) -> tuple[Streamed, Targets]:
    """Some rows of a split, by number, of which nothing is read."""
    own = y[torch.from_numpy(rows)] if isinstance(y, Tensor) else None
    return pair_of(x.feed.subset(rows), own)


def changed(
    x: Streamed, y: Targets, of_x: Change | None, of_y: Change | None
) -> tuple[Streamed, Targets]:
    """The split with something done to each batch of inputs, and to the targets."""
    feed = x.feed.but(
        change_x=(*x.feed.change_x, *([of_x] if of_x else [])),
        change_y=(*x.feed.change_y, *([of_y] if of_y else [])),
    )
    return pair_of(feed, (of_y(y) if of_y else y) if isinstance(y, Tensor) else None)


def pieces(x: Streamed, y: Targets, rows: int) -> Iterator[tuple[Inputs, Tensor]]:
    """All rows in order, so many at a time, each piece read while the one before is worked on."""
    starts = range(0, len(x), rows)
    numbers = [numbers_of(slice(start, start + rows), len(x)) for start in starts[:1]]
    for start in starts:
        here = numbers.pop()
        after = start + rows
        if after < len(x):
            numbers.append(numbers_of(slice(after, after + rows), len(x)))
        x.feed.expect([here, *numbers])
        yield x[here], y[torch.from_numpy(here)] if isinstance(y, Tensor) else y[here]
    x.feed.rest()


def sample_rows(size: int) -> NDArray[np.int64]:
    """Rows that stand for all: the first, the last, and others that follow from the number."""
    if size <= SAMPLED:
        return np.arange(size, dtype=np.int64)
    steps = np.arange(SAMPLED, dtype=np.uint64)
    with np.errstate(over="ignore"):
        drawn = (steps + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    width = size / SAMPLED
    inside = (drawn >> np.uint64(11)).astype(np.float64) / 2.0**53
    rows = np.minimum((steps.astype(np.float64) + inside) * width, size - 1).astype(np.int64)
    rows[0], rows[-1] = 0, size - 1
    return np.unique(rows)


def stream(rows: Any, *, workers: int = 1) -> Feed:
    """Read examples batch by batch while a client trains, and never all at once.

    ``rows`` is a map-style ``torch.utils.data.Dataset``, an ``np.memmap`` or a ``.npy`` file. Pass
    the result as a client's split if it is a Dataset of pairs ``(x, y)``, otherwise as the ``x`` of
    a split. You can also pass a Dataset or a memory map directly; use this function for files, and
    to set ``workers``.

    ``workers`` threads read ahead. By default one thread reads for all clients, so a Dataset's code
    never runs twice at the same time. With 0, the training thread reads.

    >>> import tempfile
    >>> from fedgradnorm import Client, classification
    >>> file = Path(tempfile.mkdtemp()) / "x.npy"
    >>> np.save(file, np.zeros((1000, 8), dtype=np.float32))
    >>> Client("a", classification(2), train=(stream(file), np.arange(1000) % 2)).size
    1000
    """
    workers = whole("workers", workers, 0)
    if isinstance(rows, (str, Path)):
        path = Path(rows).expanduser()
        if path.suffix.lower() != ".npy":
            raise DataError(
                f"{path}: rows are read from .npy files; use fgn.data.Table(..., stream=True) for "
                "a table, and a map-style Dataset for anything else"
            )
        rows = mapped(path)
    source = as_source(rows)
    if source is None:
        raise DataError(
            "stream takes a map-style Dataset, an np.memmap or a .npy file, not "
            f"{type(rows).__name__}; arrays in memory need no stream"
        )
    return Feed(source, "", workers=workers)


def mapped(path: Path) -> Any:
    """The array of a .npy file as a memory map; a DataError unless it is one."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; check the path")
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # NumPy evaluates the header as Python: damage raises anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{path}: not a readable .npy file of numbers ({reason}); save it with numpy.save"
        ) from error


def as_feed(x: Any, where: str, *, pairs: bool) -> Feed | None:
    """The feed that a split, or with ``pairs=False`` its inputs, come from; None in memory."""
    if isinstance(x, Streamed):
        return x.feed.but(where=where)
    feed = x if isinstance(x, Feed) else None
    source = feed.source if feed is not None else as_source(x)
    if source is None:
        return None
    if isinstance(source, DatasetSource):
        try:
            source = DatasetSource(source.dataset, pairs=pairs)
        except DataError as error:
            raise DataError(f"{where}: {error}") from error
    elif pairs:
        raise DataError(
            f"{where}: {source.name} holds inputs alone; give a pair (x, y), of which only x is "
            "read batch by batch"
        )
    found = Feed(source, where) if feed is None else feed.but(source=source, where=where)
    if not len(found):
        raise DataError(f"{where}: {source.name} is empty; a client needs at least one row")
    return found


def streamed_split(where: str, split: Any, target: Change) -> tuple[Streamed, Any] | None:
    """A split that is read batch by batch: inputs and targets; None if it is in memory.

    Targets of their own are as they were given; those of a Dataset go through ``target``.
    """
    if isinstance(split, (Feed, torch.utils.data.Dataset)):
        feed = as_feed(split, where, pairs=True)
        assert feed is not None
        feed = feed.but(change_y=(target,))
        return Streamed(feed), StreamedTargets(feed)
    if not isinstance(split, (tuple, list)) or len(split) != 2:
        return None
    x, y = split
    feed = as_feed(x, where, pairs=False)
    if feed is None:
        return None
    return Streamed(feed), StreamedTargets(feed) if isinstance(y, StreamedTargets) else y


def target_rows(y: Any, where: str) -> Any:
    """Targets given separately from inputs, in memory: one number per row, or a few."""
    source = as_source(y)
    if source is None:
        return y
    if source.pairs or isinstance(source, DatasetSource):
        raise DataError(
            f"{where}: y is a Dataset; give one Dataset of pairs (x, y), or y as an array"
        )
    return source.read(np.arange(len(source), dtype=np.int64))[0]
