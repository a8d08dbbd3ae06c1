"""Who of those that take part has something to say: tasks whose labels are missing in a batch.

Several tasks of one client read the same batches. A task of which one of a round's batches has no
label at all sits that round out, like a client that is not there. Batches follow from a counter, so
this is known before the round, and every engine is told the same.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from fedgradnorm._client import Client
from fedgradnorm._round.batches import Batches
from fedgradnorm._round.participation import Participation, participants
from fedgradnorm.tasks._missing import labelled

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

log = logging.getLogger("fedgradnorm")

TRIED = 100  # rounds that are looked at to say how often a task will sit out
FEW = 0.9  # share of the rounds below which that is said


def batches_of(
    clients: Sequence[Client], batch_size: int | None, seed: int, steps: int = 1
) -> Batches:
    """The batches of these clients; several tasks of one client have the same."""
    owners = {c.name: c.owner for c in clients}
    return Batches({c.name: c.drawn for c in clients}, batch_size, seed, steps, owners)


def rows_by_owner(clients: Sequence[Client]) -> dict[str, list[str]]:
    """The rows of clients that have several tasks, by who they are; of others there is none."""
    found: dict[str, list[str]] = {}
    for client in clients:
        if client.of is not None:
            found.setdefault(client.of, []).append(client.name)
    return found


def with_tasks(owners: Sequence[str], rows: Mapping[str, Sequence[str]]) -> list[str]:
    """The rows of clients: their own, or by :func:`rows_by_owner` those of their tasks."""
    if not rows:
        return list(owners)
    return [name for owner in owners for name in rows.get(owner, (owner,))]


class Presence:
    """Who takes part in a round: drawn client by client, without tasks that have no labels then."""

    def __init__(
        self, clients: Sequence[Client], batch_size: int | None, seed: int, steps: int
    ) -> None:
        self._owners = list(dict.fromkeys(client.owner for client in clients))
        self._rows = rows_by_owner(clients)
        self._seed = seed
        self._labels: Mapping[str, NDArray[np.bool_]] = {
            client.name: there.numpy()
            for client in clients
            if client.of and not bool((there := _labelled(client)).all())
        }
        some = [client for client in clients if client.name in self._labels]
        self._batches = batches_of(some, batch_size, seed, steps) if some else None

    def active(self, participation: Participation, round_number: int) -> list[str]:
        """Who takes part, in the order of the clients."""
        drawn = participants(participation, self._seed, self._owners, round_number)
        return self.with_labels(with_tasks(drawn, self._rows), round_number)

    def with_labels(self, names: Sequence[str], round_number: int) -> list[str]:
        """Those that have a label in every batch of a round."""
        if self._batches is None:
            return list(names)
        rows = self._batches.of_round(round_number)
        return [
            name
            for name in names
            if name not in self._labels or bool(self._labels[name][rows[name]].any(axis=1).all())
        ]

    def announce(self, rounds: int) -> None:
        """Name the tasks that will often sit out, once."""
        tried = min(rounds, TRIED)
        there = [set(self.with_labels(list(self._labels), k)) for k in range(tried)]
        for name, labels in self._labels.items():
            share = sum(name in names for names in there) / max(1, tried)
            if share < FEW:
                log.warning(
                    "%s: %d of %d training rows are labelled, and in %.0f%% of the rounds a batch "
                    "has none of them: the task is left out of them; raise batch_size, or make "
                    "it a client of its own", name, labels.sum(), len(labels), 100 * (1 - share),
                )  # fmt: skip


def _labelled(client: Client) -> torch.Tensor:
    return labelled(torch.as_tensor(client.train[1]))
