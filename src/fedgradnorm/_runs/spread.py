"""What a run of many clients records: quantiles over all of them, and the rows of some.

Quantiles have a row per round, split, task and quantity, however many clients there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedgradnorm._client import Client
from fedgradnorm._errors import choose
from fedgradnorm._round.participation import some_of
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs.csv_table import Row, Table

MANY = 48
"""Clients that are shown one by one at most; of more, distributions are shown."""

ALL_ROWS = 500
"""Clients whose rows are all kept, unless some are asked for; of more clients, those of a few."""

LARGEST = 12
"""Tasks that are told apart at most; of more, kinds of tasks are."""

SHARES = {"min": 0.0, "p10": 0.1, "p25": 0.25, "median": 0.5, "p75": 0.75, "p90": 0.9, "max": 1.0}
"""The columns of quantiles, and the share of clients at or below each."""

WHERE = ("round", "epoch", "split", "task", "quantity")
COLUMNS = (*WHERE, "clients", "mean", *SHARES)


def spread_table() -> Table:
    """One row per round, split, task and quantity: how the clients' values lie."""
    return Table(COLUMNS)


def spread_rows(
    rows: Iterable[Row], groups: Mapping[str, str], metrics: Iterable[str]
) -> list[Row]:
    """Quantiles of loss, weight and ``metrics`` in a history's rows, for each of ``groups``.

    ``clients`` counts those whose value is a finite number; others have no place in an order. A
    client that was active and failed counts for nothing, nor does one that is in no group.
    """
    places: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        task = groups.get(row["client"])
        if task is not None and row.get("active") != 0:
            place = (row["round"], row["epoch"], row["split"], task)
            places.setdefault(place, []).append(row)
    wanted = ("loss", "weight", *sorted(metrics))
    return spreads(
        {
            (*place, quantity): [row[quantity] for row in here if row.get(quantity) is not None]
            for place, here in places.items()
            for quantity in wanted
        }
    )


def spreads(values: Mapping[tuple[Any, ...], Sequence[float]]) -> list[Row]:
    """Quantiles of the finite ``values`` at each place, as rows; none where there are none."""
    finite = {place: list(filter(math.isfinite, given)) for place, given in values.items()}
    finite = {place: given for place, given in finite.items() if given}
    return [
        {**dict(zip(WHERE, place, strict=True)), **spread}
        for place, spread in zip(finite, quantiles_of_each(list(finite.values())), strict=True)
    ]


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """How many values there are, their mean, and quantiles with values between them in a line.

    >>> quantiles([1.0, 2.0, 4.0])["median"]
    2.0
    """
    (found,) = quantiles_of_each([values])
    return found


def quantiles_of_each(lists: Sequence[Sequence[float]]) -> list[dict[str, float]]:
    """:func:`quantiles` of many lists; those of one length are done in one call.

    The numbers are those of ``numpy.quantile``, which takes 0.1 ms to begin, twice in every round.
    """
    found: dict[int, dict[str, float]] = {}
    for count in {len(values) for values in lists}:
        alike = [k for k, values in enumerate(lists) if len(values) == count]
        table = np.array([lists[k] for k in alike], dtype=np.float64)
        means = table.mean(axis=1).tolist()
        table.sort(axis=1)
        places = np.array(list(SHARES.values())) * (count - 1)
        below = places.astype(np.int64)
        share, low = places - below, table[:, below]
        high = table[:, np.minimum(below + 1, count - 1)]
        gap = high - low
        shares = np.where(share < 0.5, low + gap * share, high - gap * (1 - share)).tolist()
        for k, mean, own in zip(alike, means, shares, strict=True):
            found[k] = {"clients": count, "mean": mean, **dict(zip(SHARES, own, strict=True))}
    return [found[k] for k in range(len(lists))]


def groups_of(infos: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """What clients are told apart by, as run.json tells of them: the task, or else its kind.

    A task that has no name has the client's own there, and of tasks with names of their own there
    may be as many as clients.

    >>> groups_of({"ann": {"task": "age", "kind": "regression"}})
    {'ann': 'age'}
    """
    return told_apart(
        (name, str(info.get("task", name)), str(info.get("kind", "clients")))
        for name, info in infos.items()
    )


def told_apart(clients: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    """:func:`groups_of` clients by their names, and the names and kinds of their tasks."""
    kinds, found = dict[str, str](), dict[str, str]()
    for name, task, kind in clients:
        kinds[name], found[name] = kind, kind if task == name else task
    return found if len(set(found.values())) <= LARGEST else kinds


def recorded(clients: Sequence[Client], settings: Settings) -> frozenset[str] | None:
    """The rows that are kept by name, drawn from the seed or as named; None where all are.

    Several tasks of a client are recorded together; who names one of them gets that one.
    """
    asked = settings.record_clients
    if asked is None and len(clients) <= ALL_ROWS:
        return None
    owners = list(dict.fromkeys(client.owner for client in clients))
    if isinstance(asked, list):
        known = dict.fromkeys([*owners, *(client.name for client in clients)])
        wanted = {name if name in known else choose(name, known, "client in history.clients")
                  for name in asked}  # fmt: skip
    else:
        wanted = set(some_of(owners, MANY if asked is None else asked, settings.seed, "recorded"))
    kept = frozenset(c.name for c in clients if c.name in wanted or c.owner in wanted)
    return None if len(kept) == len(clients) else kept
