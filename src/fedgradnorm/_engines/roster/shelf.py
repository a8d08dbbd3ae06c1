"""Where the heads of clients lie while they do not take part: a row of stacked tensors each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

FIRST_LOSS, ROUNDS = "first_loss", "rounds"
FEWEST = 64  # rows that room is made for


class Shelf:
    """Rows of clients whose heads are alike: parameters, moments, first loss, rounds.

    ``fresh`` is what a new row holds. A client has a row from the first time that it is asked for;
    one that was never asked for costs nothing. ``changed`` are the rows that were written since it
    was last emptied.
    """

    def __init__(self, fresh: Mapping[str, Tensor]) -> None:
        self.fresh = dict(fresh)
        self.names: list[str] = []
        self.changed = set[int]()
        self._tables = {key: value.new_empty(0, *value.shape) for key, value in fresh.items()}

    def table(self, key: str) -> Tensor:
        """All rows of one kind of numbers, as a view."""
        return self._tables[key][: len(self.names)]

    def add(self, names: Sequence[str], given: Mapping[str, Tensor]) -> range:
        """Rows for new clients: as ``given``, a line for each, and for the rest as ``fresh``."""
        start, stop = len(self.names), len(self.names) + len(names)
        self._make_room(stop)
        self.names += names
        for key, value in self.fresh.items():
            self._tables[key][start:stop] = given.get(key, value)
        return range(start, stop)

    def _make_room(self, rows: int) -> None:
        held = len(next(iter(self._tables.values())))
        if rows <= held:
            return
        room = max(rows, 2 * held, FEWEST)
        for key, old in self._tables.items():
            self._tables[key] = old.new_empty(room, *old.shape[1:])
            self._tables[key][:held] = old

    def read(self, rows: Tensor, into: Mapping[str, Tensor]) -> None:
        """Copy rows to the beginning of other tables of the same names."""
        for key, table in into.items():
            torch.index_select(self._tables[key], 0, rows, out=table[: len(rows)])

    def fill(self, rows: Tensor, tables: Mapping[str, Tensor]) -> None:
        """Copy the beginning of other tables to rows that are new."""
        for key, table in tables.items():
            self._tables[key].index_copy_(0, rows, table[: len(rows)])

    def write(self, rows: Tensor, tables: Mapping[str, Tensor]) -> None:
        """The same for rows that change by it."""
        self.fill(rows, tables)
        self.changed.update(rows.tolist())

    def put(self, row: int, values: Mapping[str, Tensor]) -> None:
        """Write one row."""
        for key, value in values.items():
            self._tables[key][row] = value
        self.changed.add(row)
