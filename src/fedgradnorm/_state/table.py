"""The client table: everything that clients keep between rounds, one row per client.

The table has one part per structure. A part holds the clients whose rows have the same keys and
shapes, and who can be run in one call, as stacked tensors ``[clients, ...]``. Rows are created when
a client is first asked for: a registered client that never participates costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgradnorm._client import Client

Row = dict[str, Tensor]
Places = NDArray[np.int64]

OWN = "own"  # the client's trained parameters as one vector: head, private layers, stem
FIRST_LOSS = "first_loss"  # NaN until it is known
ROUNDS = "rounds"
NETWORK = "network"  # a network of the client's own; NaN where it has none
OPTIMIZER = "optimizer."
BUFFER = "buffer."
CONSTANT = "constant."  # follows from the client: not saved

FEWEST = 64  # rows that memory is reserved for
UNKNOWN = -1  # the part of a client that was never asked for


class Layout:
    """Where each named tensor is in a row of numbers.

    >>> layout = Layout({"weight": (2, 3), "bias": (2,)})
    >>> {name: tuple(part.shape) for name, part in layout.views(torch.zeros(5, 8)).items()}
    {'weight': (5, 2, 3), 'bias': (5, 2)}
    """

    def __init__(self, shapes: Mapping[str, Iterable[int]]) -> None:
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.slices: dict[str, slice] = {}
        start = 0
        for name, shape in self.shapes.items():
            stop = start + int(torch.Size(shape).numel())
            self.slices[name] = slice(start, stop)
            start = stop
        self.size = start
        self._sizes = [part.stop - part.start for part in self.slices.values()]

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """The tensors in rows of numbers ``[..., size]``, as views ``[..., *shape]``."""
        parts = rows.split(self._sizes, dim=-1)
        named = zip(self.shapes.items(), parts, strict=True)
        return {
            name: part.unflatten(-1, shape) if shape else part[..., 0]
            for (name, shape), part in named
        }

    def flat(self, tensors: Mapping[str, Tensor], like: Tensor | None = None) -> Tensor:
        """One vector of the tensors, copied; their order here decides."""
        parts = [tensors[name].detach().reshape(-1) for name in self.shapes]
        if not parts:
            return torch.empty(0) if like is None else like.new_empty(0)
        return torch.cat(parts)

    def rows(
        self,
        tensors: Iterable[Tensor | None],
        count: int,
        like: Tensor,
        out: Tensor | None = None,
    ) -> Tensor:
        """Stacked tensors ``[count, *shape]``, in this order, as rows; None stands for zeros.

        They are written into ``out`` where it is given: new memory costs more than the copy.
        """
        parts = [
            like.new_zeros(count, size) if part is None else part.reshape(count, size)
            for part, size in zip(tensors, self._sizes, strict=True)
        ]
        return torch.cat(parts, dim=1, out=out) if parts else like.new_empty(count, 0)


class Part:
    """Clients of one structure, in stacked tensors ``rows`` that grow; ``like`` is the first.

    ``fresh`` is the row of a client that has not participated yet.
    """

    def __init__(self, like: Client, fresh: Mapping[str, Tensor]) -> None:
        constant = torch.tensor(0, device=fresh[OWN].device)
        unknown = torch.full_like(constant, torch.nan, dtype=torch.float64)
        self.like = like
        self.fresh: Row = {**fresh, FIRST_LOSS: unknown, ROUNDS: constant}
        self.names: list[str] = []
        self.changed = set[int]()  # since they were last saved
        self.known = set[int]()  # no longer as they began
        self._reserved = {
            key: value.new_empty(0, *value.shape) for key, value in self.fresh.items()
        }
        self.rows: Row = dict(self._reserved)

    def saved(self) -> list[str]:
        """The columns that a checkpoint holds."""
        return [key for key in self.rows if not key.startswith(CONSTANT)]

    def add_column(self, key: str, fresh: Tensor) -> None:
        if key not in self.rows:
            self.fresh[key] = fresh
            self._reserved[key] = fresh.expand(len(self._reserved[OWN]), *fresh.shape).clone()
            self.rows[key] = self._reserved[key][: len(self.names)]

    def add(self, names: Sequence[str], given: Mapping[str, Tensor]) -> range:
        """Rows for new clients: ``given`` stacked, and ``fresh`` for every other key."""
        start, stop = len(self.names), len(self.names) + len(names)
        reserved = len(self._reserved[OWN])
        size = max(stop, 2 * reserved, FEWEST) if reserved else stop
        self.names += names
        for key, value in self.fresh.items():
            if stop > reserved:
                self._reserved[key] = value.new_empty(size, *value.shape)
                self._reserved[key][:start] = self.rows[key]
            self.rows[key] = self._reserved[key][:stop]
            self.rows[key][start:] = given.get(key, value)
        return range(start, stop)

    def put(self, index: Tensor, values: Mapping[str, Tensor], rows: Sequence[int] = ()) -> None:
        """Write the rows at ``index``; ``rows`` are their numbers, which have to be saved."""
        for key, value in values.items():
            self.rows[key].index_copy_(0, index, value)
        self.changed.update(rows)
        self.known.update(rows)


AnyPart = TypeVar("AnyPart", bound=Part)


@dataclass(frozen=True)
class Group(Generic[AnyPart]):
    """The clients of one part among some that were asked for, in the order of the request."""

    part: AnyPart
    names: list[str]
    turns: Places  # among those that were asked for
    rows: Places  # of the part
    index: Tensor  # the same numbers, on the device

    @property
    def whole(self) -> bool:
        """Whether these are all rows of the part, in their order."""
        return len(self.rows) == len(self.part.names) and bool(
            (self.rows == np.arange(len(self.rows))).all()
        )

    def only(self, some: Places) -> Group[AnyPart]:
        if len(some) == len(self.names):
            return self
        names, rows = [self.names[k] for k in some.tolist()], self.rows[some]
        index = torch.from_numpy(rows).to(self.index.device)
        return Group(self.part, names, self.turns[some], rows, index)


class ClientTable(Generic[AnyPart]):
    """Which client has which row of which part.

    ``key`` tells clients of one structure from others, ``new_part`` makes the part of a structure
    that was not there yet, and ``first_rows`` gives new clients of a part their stacked first rows.
    """

    def __init__(
        self,
        clients: Sequence[Client],
        device: torch.device,
        *,
        key: Callable[[Client], Hashable],
        new_part: Callable[[Client], AnyPart],
        first_rows: Callable[[AnyPart, Sequence[Client]], Row],
    ) -> None:
        self.clients = {client.name: client for client in clients}
        self.position = {name: place for place, name in enumerate(self.clients)}
        self.device = device
        self.parts: list[AnyPart] = []
        self._key, self._new_part, self._first_rows = key, new_part, first_rows
        self._number: dict[Hashable, int] = {}
        self._part_of = np.full(len(self.clients), UNKNOWN)
        self._row_of = np.zeros(len(self.clients), dtype=np.int64)

    def places(self, names: Iterable[str]) -> Places:
        position = self.position
        return np.array([position[name] for name in names], dtype=np.int64)

    def group(self, names: Sequence[str]) -> list[Group[AnyPart]]:
        """Clients by part; those that are new get their rows."""
        places = self.places(names)
        parts = self._part_of[places]
        if (new := (parts == UNKNOWN).nonzero()[0]).size:
            self._enter([self.clients[names[k]] for k in new.tolist()], places[new])
            parts = self._part_of[places]
        rows, found = self._row_of[places], list[Group[AnyPart]]()
        for number in dict.fromkeys(parts.tolist()):
            turns = (parts == number).nonzero()[0]
            own = [names[k] for k in turns.tolist()]
            index = torch.from_numpy(rows[turns]).to(self.device)
            found.append(Group(self.parts[number], own, turns, rows[turns], index))
        return found

    def one(self, name: str) -> tuple[AnyPart, int]:
        (group,) = self.group([name])
        return group.part, int(self._row_of[self.position[name]])

    def _enter(self, clients: Sequence[Client], places: Places) -> None:
        keys = [self._key(client) for client in clients]
        for key, client in zip(keys, clients, strict=True):
            if key not in self._number:
                self._number[key] = len(self.parts)
                self.parts.append(self._new_part(client))
        numbers = np.array([self._number[key] for key in keys])
        self._part_of[places] = numbers
        for number in dict.fromkeys(numbers.tolist()):
            turns = (numbers == number).nonzero()[0]
            own, part = [clients[k] for k in turns.tolist()], self.parts[number]
            first = {k: v.to(self.device) for k, v in self._first_rows(part, own).items()}
            self._row_of[places[turns]] = part.add([client.name for client in own], first)

    def without_rows(self, names: Sequence[str]) -> list[str]:
        """The clients that were never asked for."""
        parts = self._part_of[self.places(names)].tolist()
        return [name for name, part in zip(names, parts, strict=True) if part == UNKNOWN]

    def known(self) -> list[str]:
        """Who has participated so far, in the order of clients."""
        return sorted(
            (part.names[row] for part in self.parts for row in _known(part)),
            key=self.position.__getitem__,
        )

    def state(self, name: str) -> Row:
        """A client's row, as copies; with a network only where it has one of its own."""
        part, row = self.one(name)
        found = {key: part.rows[key][row].detach().clone() for key in part.saved()}
        if NETWORK in found and bool(found[NETWORK][0].isnan()):
            del found[NETWORK]
        return found

    def load(self, name: str, state: Mapping[str, Any]) -> None:
        """Fill a client's row; a ValueError names what does not fit."""
        stacked = {k: v[None] if isinstance(v, Tensor) else v for k, v in state.items()}
        (group,) = self.group([name])
        self._fill(group, stacked)

    def network(self, name: str) -> Tensor | None:
        """A client's own network as a flat view, if it has one."""
        part, row = self.one(name)
        if NETWORK not in part.rows or bool(part.rows[NETWORK][row, 0].isnan()):
            return None
        return part.rows[NETWORK][row]

    def reset(self, names: Sequence[str]) -> None:
        """Put clients back to how they began."""
        for group in self.group(names):
            part, numbers, count = group.part, group.rows.tolist(), len(group.names)
            first = self._first_rows(part, [self.clients[name] for name in group.names])
            fresh = {key: value.expand(count, *value.shape) for key, value in part.fresh.items()}
            whole = {key: first.get(key, value).to(value) for key, value in fresh.items()}
            part.put(group.index, whole, numbers)
            part.known.difference_update(numbers)

    def changed(self, everything: bool = False) -> dict[str, Any]:
        """The rows that changed since :meth:`settle`, or all that ever did, for a checkpoint."""
        found = list[dict[str, Any]]()
        for part in self.parts:
            chosen = _known(part) if everything else part.changed
            order = sorted(chosen, key=lambda row: self.position[part.names[row]])
            if order:
                index = torch.tensor(order, device=self.device)
                tables = {k: part.rows[k].index_select(0, index).cpu() for k in part.saved()}
                if NETWORK in tables and bool(tables[NETWORK][:, 0].isnan().all()):
                    del tables[NETWORK]  # what is saved does not depend on networks that are gone
                found.append({"names": [part.names[k] for k in order], "tables": tables})
        return {"parts": sorted(found, key=lambda part: self.position[part["names"][0]])}

    def count(self) -> tuple[int, int]:
        """How many rows changed since :meth:`settle`, and how many ever did."""
        new = sum(len(part.changed) for part in self.parts)
        return new, sum(len(_known(part)) for part in self.parts)

    def settle(self) -> None:
        """Everything that changed so far has been saved."""
        for part in self.parts:
            part.changed.clear()

    def take(self, saved: Mapping[str, Any]) -> None:
        """Restore the rows saved by :meth:`changed`; a ValueError if they do not fit."""
        for piece in saved["parts"]:
            place = {name: k for k, name in enumerate(piece["names"])}
            for key, table in piece["tables"].items():
                if len(table) != len(place):
                    raise ValueError(f"{key} of clients has shape {tuple(table.shape)}")
            for group in self.group(piece["names"]):
                here = torch.tensor([place[name] for name in group.names])
                self._fill(group, {key: table[here] for key, table in piece["tables"].items()})

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore all rows ever changed, as saved by :meth:`changed`; others are as they began."""
        there = {name for part in saved["parts"] for name in part["names"]}
        if others := [name for name in self.known() if name not in there]:
            self.reset(others)
        self.take(saved)

    def _fill(self, group: Group[AnyPart], tables: Mapping[str, Any]) -> None:
        """Write whole rows; who is given no network has none of its own."""
        part, first = group.part, group.names[0]
        if NETWORK in tables:
            part.add_column(
                NETWORK, torch.full_like(tables[NETWORK][0], torch.nan, device=self.device)
            )
        if wrong := (set(part.saved()) ^ tables.keys()) - {NETWORK}:
            raise ValueError(f"client {first!r} has no {sorted(wrong)[0]!r}, or one too many")
        new = Row()
        for key in part.saved():
            like = part.fresh[key]
            if key not in tables:
                new[key] = torch.full_like(like, torch.nan).expand(len(group.names), -1)
                continue
            value = tables[key]
            if not isinstance(value, Tensor) or value.shape[1:] != like.shape:
                shape = tuple(getattr(value, "shape", ()))[1:]
                raise ValueError(f"{key} of client {first!r} has shape {shape}")
            new[key] = value.to(like)
        part.put(group.index, new, group.rows.tolist())


def _known(part: Part) -> list[int]:
    """The rows that are no longer as they began."""
    found: list[int] = (~part.rows[FIRST_LOSS].isnan()).nonzero()[:, 0].tolist()
    return sorted({*found, *part.known})
