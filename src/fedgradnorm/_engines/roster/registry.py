"""All clients of a federation: which of them are alike, and what each keeps between rounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm._engines.batched.grouping import class_weights, head_key
from fedgradnorm._engines.roster.seats import Moments, Seats
from fedgradnorm._engines.roster.shelf import FIRST_LOSS, ROUNDS, Shelf
from fedgradnorm.models._networks import linear_of

SCALE, CLASSES = "scale", "classes"
NEW = -1  # the kind of a client that was never asked for
DRAWN = 1000  # first heads that are drawn at once, where they get no row


class FirstHeads(Protocol):
    """The linear heads that clients begin with."""

    @property
    def features(self) -> int:
        """How many numbers of a row they read."""

    def numbers(self, clients: Sequence[Client]) -> tuple[Tensor, Tensor]:
        """Weights and biases of clients' heads, of one shape, before any step: a row each."""


@dataclass
class Alike:
    """Clients whose heads can sit side by side: where they lie, and where they sit."""

    like: Client
    batch: int
    moments: Moments
    shelf: Shelf
    seats: Seats

    @property
    def trained(self) -> dict[str, Tensor]:
        """The tables of the seats: what a round changes."""
        return self.seats.tables

    def seat(self, names: Sequence[str], rows: Tensor) -> None:
        """Let these clients sit down, in turn."""
        if len(rows) > self.seats.count:
            count = max(len(rows), self.seats.count + self.seats.count // 4)
            self.seats = Seats(self.like, self.batch, self.moments, count)
        self.seats.group.names[: len(names)] = names
        self.seats.group.take_part(len(names))
        self.shelf.read(rows, self.seats.tables)
        classes = self.shelf.table(CLASSES)[rows] if CLASSES in self.shelf.fresh else None
        self.seats.group.retask(self.shelf.table(SCALE)[rows], classes)


class Seated(NamedTuple):
    """Clients of one kind among some that were asked for, in the order in which they were."""

    kind: Alike
    names: list[str]
    places: NDArray[np.int64]  # in the order of all clients
    turns: NDArray[np.int64]  # among those that were asked for
    rows: Tensor  # on the kind's shelf

    def only(self, some: NDArray[np.int64]) -> Seated:
        """Some of them, by number."""
        if len(some) == len(self.names):
            return self
        names = [self.names[k] for k in some.tolist()]
        return Seated(self.kind, names, self.places[some], self.turns[some], self.rows[some])


class Registry:
    """Who has a head where. A client that was never asked for has none yet."""

    def __init__(
        self,
        clients: Sequence[Client],
        heads: FirstHeads,
        optimizer: Mapping[str, Any],
        batch_size: int | None,
        device: torch.device,
    ) -> None:
        self.clients = {client.name: client for client in clients}
        self.position = {name: i for i, name in enumerate(self.clients)}
        self._heads, self._optimizer, self._device = heads, optimizer, device
        self._batch_size = batch_size
        self.kinds: list[Alike] = []  # of clients that were asked for so far
        self._number: dict[object, int] = {}  # of a kind
        self._kind_of = np.full(len(self.clients), NEW)
        self._row_of = np.zeros(len(self.clients), dtype=np.int64)

    def places(self, names: Iterable[str]) -> NDArray[np.int64]:
        """Where clients are in the order of all."""
        position = self.position
        return np.array([position[name] for name in names], dtype=np.int64)

    def grouped(self, names: Sequence[str]) -> list[Seated]:
        """Clients by their kind, with their rows; those that are new get theirs."""
        places = self.places(names)
        kinds = self._kind_of[places]
        if (new := (kinds == NEW).nonzero()[0]).size:
            self._enter([names[k] for k in new.tolist()], places[new])
            kinds = self._kind_of[places]
        rows, found = self._row_of[places], list[Seated]()
        for number in dict.fromkeys(kinds.tolist()):
            turns = (kinds == number).nonzero()[0]
            own = [names[k] for k in turns.tolist()]
            here = torch.from_numpy(rows[turns]).to(self._device)
            found.append(Seated(self.kinds[number], own, places[turns], turns, here))
        return found

    def _enter(self, names: Sequence[str], places: NDArray[np.int64]) -> None:
        """Kinds and rows for clients that are new."""
        clients = [self.clients[name] for name in names]
        kinds = self._kinds(clients)
        self._kind_of[places] = kinds
        for number in dict.fromkeys(kinds.tolist()):
            turns = (kinds == number).nonzero()[0]
            own = [clients[k] for k in turns.tolist()]
            self._row_of[places[turns]] = self._add(self.kinds[number], own)

    def _kinds(self, clients: Sequence[Client]) -> NDArray[np.int64]:
        """The numbers of clients' kinds; those with one task and batch have the same."""
        found: dict[tuple[int, int], int] = {}
        numbers = []
        for client in clients:
            batch = min(self._batch_size or client.drawn, client.drawn)
            alike = id(client.task), batch
            if alike not in found:
                found[alike] = self._kind(client, batch)
            numbers.append(found[alike])
        return np.array(numbers)

    def _kind(self, client: Client, batch: int) -> int:
        """The number of a client's kind."""
        features = self._heads.features
        key = head_key(client, (client.task.outputs, features), batch)
        if key not in self._number:
            self._number[key] = len(self.kinds)
            self.kinds.append(self._new_kind(client, batch))
        return self._number[key]

    def _new_kind(self, client: Client, batch: int) -> Alike:
        weight, bias = (part[0].to(self._device) for part in self._heads.numbers([client]))
        moments = Moments(self._optimizer, weight, bias)
        fresh = {
            "weight": weight,
            "bias": bias,
            **moments.fresh,
            FIRST_LOSS: torch.tensor(torch.nan, dtype=torch.float64, device=self._device),
            ROUNDS: torch.tensor(0, device=self._device),
            SCALE: weight.new_ones(()),
        }
        if (table := class_weights([client.task], weight)) is not None:
            fresh[CLASSES] = table[0]
        return Alike(client, batch, moments, Shelf(fresh), Seats(client, batch, moments, 1))

    def _add(self, kind: Alike, clients: Sequence[Client]) -> range:
        """Rows for clients that are new, with the heads that they begin with."""
        weight, bias = self._heads.numbers(clients)
        tasks = [client.task for client in clients]
        like = kind.moments.weight
        start = {
            "weight": weight.to(like),
            "bias": bias.to(like),
            SCALE: torch.tensor([task.loss_scale for task in tasks]).to(like),
        }
        if (table := class_weights(tasks, like)) is not None:
            start[CLASSES] = table
        return kind.shelf.add([client.name for client in clients], start)

    def known(self) -> list[str]:
        """Who took part so far."""
        found = []
        for kind in self.kinds:
            first = kind.shelf.table(FIRST_LOSS).tolist()
            found += [n for n, f in zip(kind.shelf.names, first, strict=True) if f == f]
        return found

    def state(self, name: str) -> dict[str, Any]:
        """What a client keeps to itself, as a :class:`ClientState` says it."""
        ((kind, _, _, _, rows),) = self.grouped([name])
        shelf, row = kind.shelf, int(rows)
        rounds, first = int(shelf.table(ROUNDS)[row]), float(shelf.table(FIRST_LOSS)[row])
        tables = {key: shelf.table(key) for key in kind.moments.fresh}
        stepped = kind.moments.state_dict(tables, row) if rounds else kind.moments.fresh_state()
        return {
            "head": {key: shelf.table(key)[row].clone() for key in ("weight", "bias")},
            "optimizer": stepped,
            "buffers": {},
            "first_loss": None if first != first else first,
            "rounds": rounds,
        }

    def load(self, name: str, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state` returned, or any engine's."""
        ((kind, _, _, _, rows),) = self.grouped([name])
        first, moments = state["first_loss"], state["optimizer"]["state"]
        values = {key: torch.as_tensor(state["head"][key]) for key in ("weight", "bias")}
        for i, parameter in enumerate(("weight", "bias")):
            for key, value in moments.get(i, {}).items():
                if isinstance(value, Tensor):
                    values[f"{parameter}.{key}"] = value
        known = kind.shelf.fresh
        for key, value in values.items():
            if key not in known or value.shape != known[key].shape:
                raise ValueError(f"{key} of client {name!r} has shape {tuple(value.shape)}")
        if not moments:
            values |= kind.moments.fresh
        value = torch.nan if first is None else float(first)
        values[FIRST_LOSS] = torch.tensor(value, dtype=torch.float64)
        values[ROUNDS] = torch.tensor(int(state["rounds"]))
        kind.shelf.put(int(rows), values)

    def head(self, name: str) -> nn.Linear:
        """A client's head as a module of its own."""
        ((kind, _, _, _, rows),) = self.grouped([name])
        weight, bias = (kind.shelf.table(key)[int(rows)].clone() for key in ("weight", "bias"))
        return linear_of(weight, bias)

    def heads_by_shape(self) -> list[tuple[list[str], Tensor, Tensor]]:
        """Everybody's head in stacked rows: names, weights, biases, for each number of outputs.

        Clients that were never asked for are drawn here, and get no row by it.
        """
        by_outputs: dict[int, list[str]] = {}
        for name, client in self.clients.items():
            by_outputs.setdefault(client.task.outputs, []).append(name)
        return [(names, *self._heads_of(names)) for names in by_outputs.values()]

    def _heads_of(self, names: list[str]) -> tuple[Tensor, Tensor]:
        """Weights and biases of heads of one shape, in the order of ``names``."""
        both = [
            part.new_empty(len(names), *part.shape[1:])
            for part in self._heads.numbers([self.clients[names[0]]])
        ]
        places = self.places(names)
        kinds = self._kind_of[places]
        for number in np.unique(kinds[kinds != NEW]).tolist():
            there, shelf = (kinds == number).nonzero()[0], self.kinds[number].shelf
            rows = torch.from_numpy(self._row_of[places[there]]).to(self._device)
            for part, key in zip(both, ("weight", "bias"), strict=True):
                part[there] = shelf.table(key)[rows].cpu()
        new = (kinds == NEW).nonzero()[0]
        for start in range(0, len(new), DRAWN):
            some = new[start : start + DRAWN]
            drawn = self._heads.numbers([self.clients[names[k]] for k in some.tolist()])
            for part, own in zip(both, drawn, strict=True):
                part[some] = own
        weight, bias = both
        return weight, bias

    def changed(self, everything: bool = False) -> dict[str, Any]:
        """The rows that changed since :meth:`settle`, or all that ever did, to be taken elsewhere.

        Rows that only were asked for are as they began, and left out.
        """
        parts = list[dict[str, Any]]()
        for kind in self.kinds:
            shelf, position = kind.shelf, self.position
            known = shelf.table(FIRST_LOSS).isnan().logical_not().nonzero()[:, 0].tolist()
            chosen = known if everything else shelf.changed
            rows = sorted(chosen, key=lambda row: position[shelf.names[row]])
            if rows:
                kept = [key for key in shelf.fresh if key not in (SCALE, CLASSES)]
                there = torch.tensor(rows, device=self._device)
                tables = {key: shelf.table(key)[there].cpu() for key in kept}
                parts.append({"names": [shelf.names[k] for k in rows], "tables": tables})
        return {"parts": sorted(parts, key=lambda part: self.position[part["names"][0]])}

    def settle(self) -> None:
        """What changed so far is kept elsewhere."""
        for kind in self.kinds:
            kind.shelf.changed.clear()

    def count(self, everything: bool = False) -> int:
        """How many rows :meth:`changed` would give."""
        if everything:
            return sum(int((~kind.shelf.table(FIRST_LOSS).isnan()).sum()) for kind in self.kinds)
        return sum(len(kind.shelf.changed) for kind in self.kinds)

    def take(self, rows: Mapping[str, Any]) -> None:
        """Take over what :meth:`changed` returned."""
        for part in rows["parts"]:
            place = {name: k for k, name in enumerate(part["names"])}
            for kind, own, _, _, there in self.grouped(part["names"]):
                here = torch.tensor([place[name] for name in own])
                for key, table in part["tables"].items():
                    wanted = kind.shelf.fresh[key]
                    if table.shape[1:] != wanted.shape or len(table) != len(place):
                        raise ValueError(f"{key} of clients has shape {tuple(table.shape)}")
                tables = {
                    key: table[here].to(kind.shelf.fresh[key])
                    for key, table in part["tables"].items()
                }
                kind.shelf.fill(there, tables)


class RegisteredHeads(Mapping[str, nn.Module]):
    """The heads of all clients, each made when it is asked for."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def __getitem__(self, name: str) -> nn.Module:
        return self._registry.head(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._registry.clients)

    def __len__(self) -> int:
        return len(self._registry.clients)
