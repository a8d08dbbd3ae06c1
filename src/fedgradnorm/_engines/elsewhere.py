"""Clients whose rows lie on another rank: who they are is known everywhere, their data is not."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from fedgradnorm._client import SPLITS, Client
from fedgradnorm._engines.ranks import World
from fedgradnorm._errors import ConfigError

SHOWN = 4  # rows that other ranks see, to find out which networks and heads fit


class Elsewhere(Client):
    """What a rank knows of a client that another rank runs; of each split it has the first rows."""

    rank: int

    @classmethod
    def of_client(cls, client: Client, rank: int) -> Elsewhere:
        """The same client without its data, which was checked on its own ``rank``."""
        found = object.__new__(cls)
        few = {split: _first_rows(getattr(client, split)) for split in SPLITS}
        numbers: dict[str, float] = {"size": client.size, "rank": rank}
        if client.task.has_real_targets:
            numbers["target_size"] = client.target_size
            numbers["target_spread"] = client.target_spread
        vars(found).update({**vars(client), **few, **numbers})
        return found

    def fingerprint(self) -> str:
        """Refused: it needs all rows."""
        raise ConfigError(f"the rows of client {self.name!r} are on rank {self.rank}")


def _first_rows(pair: tuple[Any, Any] | None) -> tuple[Any, Any] | None:
    """Copies of the first rows: a view would take all others along."""
    if pair is None:
        return None
    rows = torch.arange(min(SHOWN, len(pair[0])))
    return pair[0][rows], pair[1][rows]


def own_part(clients: Sequence[Client], rank: int, ranks: int) -> list[Client]:
    """The clients that one of so many ranks runs, out of all; all where they cannot be parted."""
    if len(clients) < ranks or parting_obstacle(clients) is not None:
        return list(clients)
    return list(clients[rank::ranks])


def parting_obstacle(clients: Sequence[Client]) -> str | None:
    """Why other ranks must have these clients with their data, or None if they need not."""
    for client in clients:
        special = {
            "several tasks": client.of is not None,
            "a head of its own": client.head is not None,
            "a first part of its own": client.stem is not None,
            "a loss or kind of its own": client.task.has_own_loss or client.task.own_kind,
            "privacy": client.privacy is not None,
        }
        if found := next((what for what, has in special.items() if has), None):
            return f"client {client.owner!r} has {found}"
    return None


def with_others(world: World, clients: Sequence[Client], reason: str | None) -> list[Client]:
    """All clients of a run whose ranks were given all of them, or each the ones that it runs.

    In the second case the others' have no data here. Their order is one of each rank in turn, so
    that ``clients[rank::ranks]`` on every rank makes the order of ``clients`` again. ``reason`` is
    why this run needs all data on every rank, if it does.
    """
    given = world.gather([client.name for client in clients])
    if all(names == given[0] for names in given):
        return list(clients)
    names = [name for part in given for name in part]
    problem = _problem(names, world.gather(reason or parting_obstacle(clients)))
    if problem is not None:
        raise ConfigError(f"the ranks were given different clients, but {problem}")
    told = world.gather([Elsewhere.of_client(client, world.rank) for client in clients])
    own = {client.name: client for client in clients}
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*told))
    return [own.get(client.name, client) for client in in_turn if client is not None]


def _problem(names: Sequence[str], reasons: Sequence[str | None]) -> str | None:
    if len(set(names)) < len(names):
        twice = next(name for k, name in enumerate(names) if name in names[:k])
        return f"client {twice!r} is on several of them; make all on every rank, or each on one"
    found = next((reason for reason in reasons if reason), None)
    return None if found is None else f"{found}; make all clients on every rank"
