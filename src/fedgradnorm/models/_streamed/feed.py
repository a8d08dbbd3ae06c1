"""Batches of a source: converted, checked when read, and read ahead by a thread.

What a batch holds follows from its row numbers alone. So whether it was read ahead, again, or not
at all beforehand changes nothing but the time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedgradnorm._errors import DataError
from fedgradnorm.models._given_inputs import as_inputs
from fedgradnorm.models._input_rows import Inputs, leaves
from fedgradnorm.models._streamed.row_sources import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
