"""Which rows each client holds: disjoint, seeded, by sizes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedgradnorm._checks import whole
from fedgradnorm._errors import ConfigError, DataError, choose

Rows = NDArray[np.int64]
Allocation = str | Mapping[str, int] | Sequence[int]

logger = logging.getLogger(__name__)

PRESETS: dict[str, tuple[int, ...]] = {
    "balanced": (2000, 2000, 2000, 2000, 2000),
    "imbalanced": (3000, 500, 3000, 500, 3000),
}
"""The paper's two allocations of 10,000 rows to five clients (its Fig. 2 and Table II)."""


def sizes_of(
    allocation: Allocation, names: Sequence[str], rows: int | None = None
) -> dict[str, int]:
    """Rows per client: a preset's name, a size for each name, or sizes in the order of ``names``.

    With ``rows`` a preset keeps its shares but covers exactly that many rows.

    >>> sizes_of("imbalanced", ["a", "b", "c", "d", "e"], rows=100)
    {'a': 30, 'b': 5, 'c': 30, 'd': 5, 'e': 30}
    """
    if isinstance(allocation, str):
        sizes = PRESETS[choose(allocation, PRESETS, "allocation")]
        if rows is not None:
            ends = [round(end * rows / sum(sizes)) for end in np.cumsum(sizes).tolist()]
            sizes = tuple(end - start for start, end in zip([0, *ends], ends, strict=False))
        return _checked(dict(zip(names, sizes, strict=True)))
    if isinstance(allocation, Mapping):
        for name in allocation:
            choose(name, names, "client in allocation")
        return _checked({name: allocation[name] for name in names if name in allocation})
    if len(allocation) != len(names):
        raise ConfigError(
            f"allocation has {len(allocation)} sizes for {len(names)} clients ({', '.join(names)})"
        )
    return _checked(dict(zip(names, allocation, strict=True)))


def task_sizes(
    allocation: Allocation,
    tasks: Sequence[str],
    known: Sequence[str],
    clients_per_task: int,
    rows: int | None,
    samples: int | None = None,
) -> dict[str, int]:
    """Rows per task: as ``allocation`` says, or ``rows`` for each of ``clients_per_task`` clients.

    >>> task_sizes("balanced", ["a", "b"], ["a", "b", "c"], 3, rows=20)
    {'a': 60, 'b': 60}
    """
    each = whole("clients_per_task", clients_per_task, 1)
    if rows is None:
        by_order = not isinstance(allocation, str | Mapping)
        return sizes_of(allocation, tasks if by_order else known, rows=samples)
    if allocation != "balanced":
        raise ConfigError(
            f"rows = {rows!r} and allocation = {allocation!r} both say how many rows a client has; "
            "leave one of them out"
        )
    return {name: each * whole("rows", rows, 1) for name in tasks}


def shared_out(task: str, rows: Rows, count: int) -> dict[str, Rows]:
    """One task's rows for ``count`` clients ``task-0``, ``task-1``, ...; a single one is ``task``.

    >>> {name: len(part) for name, part in shared_out("a", np.arange(7), 2).items()}
    {'a-0': 4, 'a-1': 3}
    """
    if count == 1:
        return {task: rows}
    if len(rows) < count:
        raise DataError(
            f"task {task!r}: {len(rows)} rows are too few for {count} clients; lower "
            "clients_per_task, or give the task more rows"
        )
    return {f"{task}-{i}": part for i, part in enumerate(np.array_split(rows, count))}


def check_enough(sizes: Mapping[str, int], clients_per_task: int, rows: int) -> None:
    """A DataError where ``rows`` for each client were asked for, and are not there."""
    wanted = sum(sizes.values())
    if wanted > rows:
        clients = clients_per_task * len(sizes)
        raise DataError(
            f"{wanted} training rows are asked for, {wanted // clients} for each of {clients} "
            f"clients, but there are {rows}, {rows // clients} for each; lower rows or "
            "clients_per_task, or name fewer tasks"
        )


def allocate(rows: int, sizes: Mapping[str, int], seed: int) -> dict[str, Rows]:
    """Deal ``rows`` shuffled rows to the clients in order; no row is dealt twice.

    Where there are too few, the last client gets what is left, which is logged.

    >>> {name: len(part) for name, part in allocate(9, {"a": 6, "b": 4}, seed=0).items()}
    {'a': 6, 'b': 3}
    """
    order = np.random.default_rng(seed).permutation(rows).astype(np.int64)
    parts: dict[str, Rows] = {}
    start = 0
    for name, size in sizes.items():
        parts[name] = order[start : start + size]
        start += size
    wanted, last = sum(sizes.values()), list(sizes)[-1]
    short = next((name for name in sizes if len(parts[name]) < sizes[name]), None)
    if short is not None and (short != last or len(parts[last]) == 0):
        empty = next((name for name in sizes if len(parts[name]) == 0), last)
        raise DataError(
            f"client {empty!r}: no rows left, the clients ask for {wanted} of {rows} rows; "
            "give smaller sizes in allocation"
        )
    if short is not None:
        logger.warning(
            "client %r has %d training rows, not %d: only %d of the %d rows asked for are there",
            last,
            len(parts[last]),
            sizes[last],
            rows,
            wanted,
        )
    return parts


def hold_out(rows: Rows, share: float, client: str) -> tuple[Rows, Rows | None]:
    """Split a client's rows into training and validation rows; None where ``share`` is 0."""
    if not 0 <= share < 1:
        raise ConfigError(f"validation_share must be at least 0 and less than 1, not {share!r}")
    if share == 0:
        return rows, None
    count = max(1, round(share * len(rows)))
    if count >= len(rows):
        raise DataError(
            f"client {client!r}: no training rows left, validation_share={share} takes {count} of "
            f"{len(rows)}; give it more rows or a smaller share"
        )
    return rows[count:], rows[:count]


def _checked(sizes: dict[str, int]) -> dict[str, int]:
    if not sizes:
        raise ConfigError("allocation names no client")
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)):
            raise ConfigError(f"client {name!r}: its size must be a whole number, not {size!r}")
        if size < 1:
            raise DataError(f"client {name!r}: no rows (size {size}); give it at least one")
    return {name: int(size) for name, size in sizes.items()}
