"""Clients with one face task each, from MTFL or from drawn faces: who holds which rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgradnorm._checks import whole
from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError, DataError, choose
from fedgradnorm.tasks._making import classification, regression

Rows = NDArray[np.int64]
Allocation = str | Mapping[str, int] | Sequence[int]
Progress = Callable[[int, int], None]
"""Called now and then with (done, total)."""

PRESETS: dict[str, tuple[int, ...]] = {
    "balanced": (2000, 2000, 2000, 2000, 2000),
    "imbalanced": (3000, 500, 3000, 500, 3000),
}
"""The paper's two allocations of 10,000 rows to five clients (its Fig. 2 and Table II)."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FaceSet:
    """Faces: images uint8 [n, 1, 40, 40], landmarks float32 [n, 10], labels int64 [n] by name.

    Of published pictures ``paths`` are their files, and ``rows`` the lines that describe them, from
    one.
    """

    images: NDArray[np.uint8]
    landmarks: NDArray[np.float32]
    labels: Mapping[str, NDArray[np.int64]]
    paths: NDArray[np.str_] | None = None
    rows: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.images)

    def target(self, task: str) -> NDArray[Any]:
        """What a task is to predict of each face."""
        return self.landmarks if task == "landmark" else self.labels[task]


def nme(output: Tensor, target: Tensor) -> Tensor:
    """Normalized mean error of landmarks: mean distance of the points over the eye distance.

    Columns are x1..x5, y1..y5, in that order, and points 1 and 2 are the eyes. Distances are taken
    in the crop, so the value is the same for landmarks in pixels and in [0, 1].

    >>> face = torch.tensor([[0.0, 4.0, 2.0, 1.0, 3.0, 0.0, 0.0, 2.0, 4.0, 4.0]])
    >>> nme(face + torch.tensor([1.0] * 5 + [0.0] * 5), face).item()
    0.25
    """
    half = target.shape[1] // 2
    off = output - target
    error = torch.hypot(off[:, :half], off[:, half:]).mean(dim=1)
    eyes = torch.hypot(target[:, 0] - target[:, 1], target[:, half] - target[:, half + 1])
    return (error / eyes.clamp_min(torch.finfo(target.dtype).tiny)).mean()


def sizes_of(
    allocation: Allocation, names: Sequence[str], rows: int | None = None
) -> dict[str, int]:
    """Rows per client: a preset's name, a size for each name, or sizes in the order of ``names``.

    With ``rows`` a preset keeps its shares but covers exactly that many rows.

    >>> sizes_of("imbalanced", ["a", "b", "c", "d", "e"], rows=100)
    {'a': 30, 'b': 5, 'c': 30, 'd': 5, 'e': 30}
    """
    if isinstance(allocation, Mapping):
        for name in allocation:
            choose(name, names, "client in allocation")
        sizes = {name: allocation[name] for name in names if name in allocation}
    elif isinstance(allocation, str):
        preset = PRESETS[choose(allocation, PRESETS, "allocation")]
        if rows is not None:
            ends = [round(end * rows / sum(preset)) for end in np.cumsum(preset).tolist()]
            preset = tuple(end - start for start, end in zip([0, *ends], ends, strict=False))
        sizes = dict(zip(names, preset, strict=True))
    elif len(allocation) != len(names):
        raise ConfigError(
            f"allocation has {len(allocation)} sizes for {len(names)} clients ({', '.join(names)})"
        )
    else:
        sizes = dict(zip(names, allocation, strict=True))
    if not sizes:
        raise ConfigError("allocation names no client")
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)):
            raise ConfigError(f"client {name!r}: its size must be a whole number, not {size!r}")
        if size < 1:
            raise DataError(f"client {name!r}: no rows (size {size}); give it at least one")
    return {name: int(size) for name, size in sizes.items()}


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
    count = whole("clients_per_task", clients_per_task, 1)
    if rows is None:
        by_order = not isinstance(allocation, str | Mapping)
        return sizes_of(allocation, tasks if by_order else known, rows=samples)
    if allocation != "balanced":
        raise ConfigError(
            f"rows = {rows!r} and allocation = {allocation!r} both say how many rows a client has; "
            "leave one of them out"
        )
    return {name: count * whole("rows", rows, 1) for name in tasks}


def allocate(rows: int, sizes: Mapping[str, int], seed: int) -> dict[str, Rows]:
    """Deal ``rows`` shuffled rows to the clients in order; no row is dealt twice.

    Where there are too few, the last client gets what is left, which is logged.

    >>> {name: len(part) for name, part in allocate(9, {"a": 6, "b": 4}, seed=0).items()}
    {'a': 6, 'b': 3}
    """
    order = np.random.default_rng(seed).permutation(rows).astype(np.int64)
    ends = np.cumsum(list(sizes.values()))
    parts = dict(zip(sizes, np.split(order, ends)[:-1], strict=True))
    wanted, last = int(ends[-1]), list(sizes)[-1]
    if empty := next((name for name, part in parts.items() if len(part) == 0), None):
        raise DataError(
            f"client {empty!r}: no rows left, the clients ask for {wanted} of {rows} rows; "
            "give smaller sizes in allocation"
        )
    if rows < wanted:
        logger.warning(
            "client %r has %d training rows, not %d: only %d of the %d rows asked for are there",
            *(last, len(parts[last]), sizes[last], rows, wanted),
        )
    return parts


def face_clients(
    train: FaceSet,
    test: FaceSet,
    classes: Mapping[str, Sequence[str]],
    sizes: Mapping[str, int],
    *,
    exact: bool,
    tasks: Sequence[str],
    validation_share: float,
    seed: int,
    loss_scale: Mapping[str, float] | None,
    clients_per_task: int = 1,
) -> list[Client]:
    """So many clients per task, with disjoint training rows and all of the test rows.

    Rows are dealt to every task in ``sizes`` before ``tasks`` picks from them, so a client's rows
    do not depend on who else participates. With ``exact`` sizes there must be as many. The test
    rows of a task are one pair of tensors, which all of its clients hold; the pictures are the same
    tensor for all tasks.
    """
    scales = dict(loss_scale or {})
    for name in [*tasks, *scales]:
        choose(name, ["landmark", *classes], "task")
    unsized = [name for name in tasks if name not in sizes]
    if unsized or not tasks or len(set(tasks)) != len(tasks):
        raise ConfigError(
            f"tasks {list(tasks)} must be distinct, each with a size in allocation ({dict(sizes)})"
        )
    if not 0 <= validation_share < 1:
        raise ConfigError(
            f"validation_share must be at least 0 and less than 1, not {validation_share!r}"
        )
    wanted, count = sum(sizes.values()), clients_per_task * len(sizes)
    if exact and wanted > len(train):
        raise DataError(
            f"{wanted} training rows are asked for, {wanted // count} for each of {count} clients, "
            f"but there are {len(train)}, {len(train) // count} for each; lower rows or "
            "clients_per_task, or name fewer tasks"
        )
    parts = allocate(len(train), sizes, seed)
    pixels = torch.from_numpy(unit_pixels(test.images))  # one copy for all clients

    def split(name: str, rows: Rows) -> tuple[Tensor, NDArray[Any]]:
        # Sorted: memory-mapped files are read front to back, and batches are shuffled later anyway.
        at = np.sort(rows)
        return torch.from_numpy(unit_pixels(train.images[at])), train.target(name)[at]

    made: list[Client] = []
    for name in tasks:
        scale = scales.get(name, 1.0)
        if name == "landmark":
            task = regression(10, metrics={"nme": nme}, loss_scale=scale, name=name)
        else:
            task = classification(len(classes[name]), loss_scale=scale, name=name)
        labels = tuple(classes[name]) if name in classes else None
        held = pixels, torch.from_numpy(np.array(test.target(name)))
        for client, rows in _shared_out(name, parts[name], clients_per_task).items():
            count = max(1, round(validation_share * len(rows))) if validation_share else 0
            if count >= len(rows):
                raise DataError(
                    f"client {client!r}: no training rows left, validation_share="
                    f"{validation_share} takes {count} of {len(rows)}; give it more rows or a "
                    "smaller share"
                )
            validation = split(name, rows[:count]) if count else None
            kept = split(name, rows[count:])
            made.append(Client(client, task, kept, held, validation, labels=labels))
    return made


def _shared_out(task: str, rows: Rows, count: int) -> dict[str, Rows]:
    """One task's rows for ``count`` clients ``task-0``, ``task-1``, ...; a single one is ``task``.

    >>> {name: len(part) for name, part in _shared_out("a", np.arange(7), 2).items()}
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


def unit_pixels(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Gray levels 0 .. 255 as float32 in [0, 1]."""
    return np.asarray(images, dtype=np.float32) / np.float32(255)
