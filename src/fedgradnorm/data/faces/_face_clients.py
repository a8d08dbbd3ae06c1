"""Clients with one face task each, from MTFL or from drawn faces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError, choose
from fedgradnorm.data._allocation import Rows, allocate, hold_out, shared_out
from fedgradnorm.data._images import unit_pixels
from fedgradnorm.tasks._making import classification, regression
from fedgradnorm.tasks._task import Task

Columns = Mapping[str, NDArray[Any]]
"""``images`` (uint8, [n, 1, side, side]) and one array of n targets per task."""

_Pair = tuple[Tensor, NDArray[Any]]


def nme(output: Tensor, target: Tensor) -> Tensor:
    """Normalised mean error of landmarks: mean distance of the points over the eye distance.

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


def face_clients(
    train: Columns,
    test: Columns,
    classes: Mapping[str, Sequence[str]],
    sizes: Mapping[str, int],
    *,
    tasks: Sequence[str],
    validation_share: float,
    seed: int,
    loss_scale: Mapping[str, float] | None,
    clients_per_task: int = 1,
) -> list[Client]:
    """So many clients per task, with disjoint training rows and all of the test rows.

    Rows are dealt to every task in ``sizes`` before ``tasks`` picks from them, so a client's rows
    do not depend on who else takes part. The test rows of a task are one pair of tensors, which all
    of its clients hold; the pictures are the same tensor for all tasks.
    """
    scales = dict(loss_scale or {})
    known = ["landmark", *classes]
    for name in [*tasks, *scales]:
        choose(name, known, "task")
    unsized = [name for name in tasks if name not in sizes]
    if unsized or not tasks or len(set(tasks)) != len(tasks):
        raise ConfigError(
            f"tasks {list(tasks)} must be distinct, each with a size in allocation ({dict(sizes)})"
        )
    parts = allocate(len(train["images"]), sizes, seed)
    pixels = torch.from_numpy(unit_pixels(test["images"]))  # one copy for all clients
    made: list[Client] = []
    for name in tasks:
        columns = {"images": train["images"], "targets": train[name]}
        held = pixels, torch.from_numpy(np.array(test[name]))
        task = _task(name, classes, scales.get(name, 1.0))
        for client, rows in shared_out(name, parts[name], clients_per_task).items():
            kept, validation = _splits(client, rows, columns, validation_share)
            made.append(Client(client, task, kept, held, validation, labels=_labels(name, classes)))
    return made


def _task(name: str, classes: Mapping[str, Sequence[str]], scale: float) -> Task:
    if name == "landmark":
        return regression(10, metrics={"nme": nme}, loss_scale=scale, name=name)
    return classification(len(classes[name]), loss_scale=scale, name=name)


def _labels(name: str, classes: Mapping[str, Sequence[str]]) -> tuple[str, ...] | None:
    return tuple(classes[name]) if name in classes else None


def _splits(
    client: str, rows: Rows, columns: Columns, validation_share: float
) -> tuple[_Pair, _Pair | None]:
    """The client's training rows, and those for validation where it has some."""

    def split(chosen: Rows) -> _Pair:
        # Sorted: memory-mapped files are read front to back, and batches are shuffled later anyway.
        chosen = np.sort(chosen)
        return torch.from_numpy(unit_pixels(columns["images"][chosen])), columns["targets"][chosen]

    kept, held = hold_out(rows, validation_share, client)
    return split(kept), None if held is None else split(held)
