"""Who participates in a round: a share that is drawn, or a list; and tasks without labels.

Everything is a function of the seed, the names and the round, so a resumed run or another machine
finds the same clients.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch

from fedgradnorm._client import Client
from fedgradnorm._errors import choose
from fedgradnorm._round.batches import batches_of
from fedgradnorm._round.seeding import number
from fedgradnorm.tasks._targets import labelled

log = logging.getLogger("fedgradnorm")

Participation = float | list[str] | list[list[str]]
"""A share of the clients, a list of names, or a list of such lists, taken in turn."""

TRIED = 100  # rounds that are examined to estimate how often a task lacks labels
FEW = 0.9  # a warning if a task participates in a smaller share of them


def participants(
    participation: Participation, seed: int, names: Sequence[str], round_number: int
) -> list[str]:
    """The clients of a round, in the order of ``names``: drawn from the seed, or as listed.

    >>> participants(["cy", "ann"], 0, ["ann", "bob", "cy"], 7)
    ['ann', 'cy']
    """
    if isinstance(participation, (int, float)):
        if participation >= 1:
            return list(names)
        return some_of(names, float(participation), seed, "participation", round_number)
    plan = participation
    listed = plan[round_number % len(plan)] if plan and isinstance(plan[0], list) else plan
    wanted = set(listed)
    found = [name for name in names if name in wanted]
    if not found or len(found) < len(wanted):
        for name in listed or [""]:
            choose(str(name), names, "client in participation")
    return found


def some_of(names: Sequence[str], asked: float, *counter: object) -> list[str]:
    """A random subset of ``names``, in their order, that depends on the ``counter`` alone.

    ``asked`` is a number of names or, as a float, a share of them; at least one is drawn.

    >>> len(some_of(["ann", "bob", "cy"], 2, 0)), some_of(["ann", "bob"], 1.0, 0)
    (2, ['ann', 'bob'])
    """
    count = asked if isinstance(asked, int) else max(1, round(asked * len(names)))
    if count >= len(names):
        return list(names)
    generator = np.random.default_rng(number(*counter))
    chosen = generator.choice(len(names), size=count, replace=False)
    return [names[i] for i in sorted(chosen.tolist())]


def rows_by_owner(clients: Sequence[Client]) -> dict[str, list[str]]:
    """The rows of clients with several tasks, by client; clients with one task are left out."""
    found: dict[str, list[str]] = {}
    for client in clients:
        if client.of is not None:
            found.setdefault(client.of, []).append(client.name)
    return found


class Presence:
    """The rows of a round: drawn client by client, without tasks that have no labels in it.

    Several tasks of one client read the same batches. A task without any label in one of a round's
    batches sits that round out. This is known before the round, and is the same for all executors.
    """

    def __init__(
        self, clients: Sequence[Client], batch_size: int | None, seed: int, steps: int
    ) -> None:
        self._owners = list(dict.fromkeys(client.owner for client in clients))
        self._rows = rows_by_owner(clients)
        self._seed = seed
        there = {c.name: labelled(torch.as_tensor(c.train[1])).numpy() for c in clients if c.of}
        self._labels = {name: labels for name, labels in there.items() if not labels.all()}
        some = [client for client in clients if client.name in self._labels]
        self._batches = batches_of(some, batch_size, seed, steps) if some else None

    def active(self, participation: Participation, round_number: int) -> list[str]:
        """The rows that participate, in the order of the clients."""
        names = participants(participation, self._seed, self._owners, round_number)
        if self._rows:
            names = [row for owner in names for row in self._rows.get(owner, (owner,))]
        return self.with_labels(names, round_number) if self._labels else names

    def with_labels(self, names: Sequence[str], round_number: int) -> list[str]:
        """Those of ``names`` that have a label in every batch of a round."""
        if self._batches is None:
            return list(names)
        labels = self._labels
        batches = self._batches.of_round(round_number, labels.keys() & names)
        return [n for n in names if n not in labels or labels[n][batches[n]].any(axis=1).all()]

    def announce(self, rounds: int) -> None:
        """Warn, once, about tasks that will often sit out."""
        tried = min(rounds, TRIED) if self._labels else 0
        there = [set(self.with_labels(list(self._labels), k)) for k in range(tried)]
        for name, labels in self._labels.items():
            share = sum(name in names for names in there) / max(1, tried)
            if share < FEW:
                log.warning(
                    "%s: %d of %d training examples are labeled, and %.0f%% of the rounds leave the"
                    " task out because a batch has none of them; raise batch_size, or make the task"
                    " a separate client",
                    name, labels.sum(), len(labels), 100 * (1 - share),
                )  # fmt: skip
