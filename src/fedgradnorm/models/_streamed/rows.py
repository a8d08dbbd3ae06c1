"""Inputs and targets that are read when rows of them are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedgradnorm._errors import DataError
from fedgradnorm.models._input_rows import Composite, Inputs, leaves, moved, row_form
from fedgradnorm.models._streamed.feed import Change, Feed

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    return pair_of(x.feed.subset(rows), y[torch.from_numpy(rows)] if _in_memory(y) else None)


def changed(
    x: Streamed, y: Targets, of_x: Change | None, of_y: Change | None
) -> tuple[Streamed, Targets]:
    """The split with something done to each batch of inputs, and to the targets."""
    feed = x.feed.but(
        change_x=(*x.feed.change_x, *([of_x] if of_x else [])),
        change_y=(*x.feed.change_y, *([of_y] if of_y else [])),
    )
    return pair_of(feed, (of_y(y) if of_y else y) if _in_memory(y) else None)


def _in_memory(y: Targets) -> bool:
    return isinstance(y, Tensor)


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
