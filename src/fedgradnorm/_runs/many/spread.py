"""Quantiles over clients: a row per round, split, task and quantity, however many there are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedgradnorm._runs.csv_table import Row, Table, read_rows

MANY = 48
"""Clients that are shown one by one at most; of more, distributions are shown."""

LARGEST = 12
"""Tasks that are told apart at most; of more, kinds of tasks are."""

SHARES = {"min": 0.0, "p10": 0.1, "p25": 0.25, "median": 0.5, "p75": 0.75, "p90": 0.9, "max": 1.0}
"""The columns of quantiles, and the share of clients at or below each."""

WHERE = ("round", "epoch", "split", "task", "quantity")
COLUMNS = (*WHERE, "clients", "mean", *SHARES)


def spread_table() -> Table:
    """One row per round, split, task and quantity: how the clients' values lie."""
    return Table(COLUMNS)


def read_spread(path: Path) -> list[Row]:
    """The rows of a table of quantiles."""
    return read_rows(path, COLUMNS)


def spread_rows(
    rows: Iterable[Row], groups: Mapping[str, str], metrics: Iterable[str]
) -> list[Row]:
    """Quantiles of loss, weight and ``metrics`` in a history's rows, for each of ``groups``.

    ``clients`` counts those whose value is a finite number; others have no place in an order. A
    client that was active and failed counts for nothing, nor does one that is in no group.
    """
    values: dict[tuple[Any, ...], list[float]] = {}
    quantities = ("loss", "weight", *sorted(metrics))
    for row in rows:
        task = groups.get(row["client"])
        if task is None or row.get("active") == 0:
            continue
        place = (row["round"], row["epoch"], row["split"], task)
        for quantity in quantities:
            value = row.get(quantity)
            if value is not None and math.isfinite(value):
                values.setdefault((*place, quantity), []).append(value)
    return [
        {**dict(zip(WHERE, place, strict=True)), **quantiles(found)}
        for place, found in values.items()
    ]


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """How many values there are, their mean, and quantiles with values between them in a line.

    >>> quantiles([1.0, 2.0, 4.0])["median"]
    2.0
    """
    found = np.quantile(np.asarray(values, dtype=np.float64), list(SHARES.values()))
    return {
        "clients": len(values),
        "mean": float(np.mean(values)),
        **dict(zip(SHARES, found.tolist(), strict=True)),
    }


def groups_of(infos: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """What clients are told apart by, as run.json tells of them: the task, or else its kind.

    A task that has no name has the client's own there, and of tasks with names of their own there
    may be as many as clients.

    >>> groups_of({"ann": {"task": "age", "kind": "regression"}})
    {'ann': 'age'}
    """
    kinds = {name: str(info.get("kind", "clients")) for name, info in infos.items()}
    tasks = {name: str(info.get("task", name)) for name, info in infos.items()}
    found = {name: kinds[name] if task == name else task for name, task in tasks.items()}
    return found if len(set(found.values())) <= LARGEST else kinds
