"""A client's splits: checked, in memory or read batch by batch, and told apart by their values.

Those of a client with several tasks are taken apart into one row of parts for each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedgradnorm._columns import check_order, is_frame, picked
from fedgradnorm._errors import DataError
from fedgradnorm.models._given_inputs import as_inputs, as_tensor, check_finite
from fedgradnorm.models._input_rows import Inputs, leaves
from fedgradnorm.models._streamed import (
    Streamed,
    StreamedTargets,
    Targets,
    sample_rows,
    streamed_split,
    target_rows,
)
from fedgradnorm.tasks._labels import names_for, numbered
from fedgradnorm.tasks._targets import has_gaps, labelled
from fedgradnorm.tasks._task import Task

if TYPE_CHECKING:
    from fedgradnorm._client import Client


def checked_split(client: Client, split: str, pair: Any) -> tuple[Inputs, Targets]:
    """The split as tensors, or a DataError that names the client, the split and the value.

    Inputs that stay where they lie are checked when they are read.
    """
    where = f"client {client.name!r}, {split} data"
    task, labels = client.task, client.labels
    streamed = streamed_split(where, pair, lambda y: _target(task, labels, y, "its target"))
    if streamed is not None:
        x, y = streamed
        if not isinstance(y, StreamedTargets):
            y = _checked_targets(client, split, x, target_rows(y, where))
        return x, y
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        loader = isinstance(pair, torch.utils.data.DataLoader)
        way = "; give loader.dataset, and batch_size in fgn.Local" if loader else ""
        if is_frame(pair):
            way = " alone: give (frame[inputs], frame[target]), or use fgn.data.Table"
        way = way or f"; give {split}=(x, y)"
        raise DataError(f"{where}: expected a pair (x, y), not {type(pair).__name__}{way}")
    check_order(pair[0], pair[1], where)
    found = as_inputs(where, picked(pair[0], client.columns, where))
    targets = _checked_targets(client, split, found, pair[1])
    for name, leaf in leaves(found).items():
        check_finite(where, leaf, f"x[{name!r}]" if name else "x")
    return found, targets


def _checked_targets(client: Client, split: str, x: Inputs, given: Any) -> Tensor:
    """Targets for these inputs, as a tensor that fits the task."""
    where = f"client {client.name!r}, {split} data"
    y = as_tensor(where, numbered(client.task, client.labels, given, where), "y")
    if y.ndim == 0 or len(x) != len(y):
        rows = 0 if y.ndim == 0 else len(y)
        raise DataError(f"{where}: x has {len(x)} rows but y has {rows}; they must be equal")
    y = _fitting(client.task, y, where)
    if not y.numel() or (has_gaps(y) and not labelled(y).any()):
        raise DataError(
            f"{where}: none of its {len(y)} rows has a label; give it some, or leave "
            f"{'the client' if split == 'train' else split} out"
        )
    return y


def _target(task: Task, labels: tuple[str, ...] | None, given: Any, where: str) -> Tensor:
    return _fitting(task, as_tensor(where, numbered(task, labels, given, where), "y"), where)


def _fitting(task: Task, y: Tensor, where: str) -> Tensor:
    if has_gaps(y):
        check_finite(where, y.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf), "y")
    else:
        check_finite(where, y, "y")
    return task.target(where, y)


def fingerprint(splits: Mapping[str, Iterable[Any]]) -> str:
    """A hash of splits: kinds of numbers, shapes and values.

    Of a part that is read batch by batch it is its length and the values of some rows, chosen by
    their number alone.
    """
    digest = hashlib.blake2b(digest_size=16)
    for split, parts in splits.items():
        for part in parts:
            here, known = split, part
            if isinstance(part, (Streamed, StreamedTargets)):
                here, known = f"{split} of {len(part)}", part[sample_rows(len(part))]
            for name, leaf in leaves(known).items():
                tensor = leaf if leaf.is_contiguous() else leaf.contiguous()
                where = f"{here} {name} " if name else f"{here} "
                digest.update(f"{where}{tensor.dtype} {tuple(tensor.shape)} ".encode())
                usual = tensor.dtype in (torch.float32, torch.int64)  # a call less for each
                array = tensor if usual else tensor.reshape(-1).view(torch.uint8)
                digest.update(array.numpy().data)
    return digest.hexdigest()


Splits = Mapping[str, tuple[Inputs, Any] | None]


def task_rows(
    name: str,
    tasks: Mapping[str, Task],
    splits: Splits,
    given: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """What the client of each task is made of; all share the same inputs.

    Training rows that no task has a label for are left out of all of them, and a task without any
    label in a held-out split has no such split.
    """
    _check_tasks(name, tasks)
    labels = {key: _of_task(name, "labels", key, tasks, given["labels"]) for key in tasks}
    data = {s: _split(name, s, tasks, pair, labels) for s, pair in splits.items() if pair}
    if "train" not in data:
        raise DataError(f"client {name!r}: train must be a pair (x, targets by task)")
    given = {**given, "labels": {key: names for key, names in labels.items() if names}}
    x, targets = data["train"]
    some = torch.stack([labelled(y) for y in targets.values()]).any(dim=0)
    if not bool(some.all()):
        data["train"] = x[some], {key: y[some] for key, y in targets.items()}
    rows = []
    for key, task in tasks.items():
        own = {s: (x, table[key]) for s, (x, table) in data.items()}
        held = {s: p for s, p in own.items() if s == "train" or bool(labelled(p[1]).any())}
        parts = {
            option: _of_task(name, option, key, tasks, value) for option, value in given.items()
        }
        rows.append({"name": f"{name}/{key}", "task": task, **held, **parts})
    return rows


def _check_tasks(name: str, tasks: Any) -> None:
    if not isinstance(tasks, Mapping) or not tasks:
        raise DataError(f"client {name!r}: tasks must be a table of tasks by name, not {tasks!r}")
    for key, task in tasks.items():
        if not isinstance(key, str) or not key.strip():
            raise DataError(f"client {name!r}: a task's name must be a text, not {key!r}")
        if not isinstance(task, Task):
            raise DataError(
                f"client {name!r}: tasks[{key!r}] must be classification(...), regression(...) or "
                f"the like, not {task!r}"
            )


def _split(
    name: str,
    split: str,
    tasks: Mapping[str, Task],
    pair: tuple[Inputs, Any],
    labels: dict[str, Any],
) -> tuple[Inputs, dict[str, Tensor]]:
    where = f"client {name!r}, {split} data"
    if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[1], Mapping):
        raise DataError(f"{where}: expected (x, targets), with a table of targets by task")
    x, targets = pair
    odd = sorted(map(str, set(tasks) ^ set(targets)))
    if odd:
        what = "no targets for task" if odd[0] in tasks else "targets, but no task, for"
        raise DataError(
            f"{where}: {what} {odd[0]!r} (tasks: {', '.join(tasks)}; targets: "
            f"{', '.join(map(str, targets))}); use the same names, and NaN for missing labels"
        )
    found: dict[str, Tensor] = {}
    for key, task in tasks.items():
        at, y = f"{where}, task {key!r}", targets[key]
        if split == "train" and labels[key] is None:
            labels[key] = names_for(task, y, at)
        found[key] = as_tensor(at, numbered(task, labels[key], y, at), "y")
    for key, y in found.items():
        if y.ndim == 0 or len(y) != len(x):
            rows = 0 if y.ndim == 0 else len(y)
            raise DataError(
                f"{where}, task {key!r}: x has {len(x)} rows but y has {rows}; they must be equal"
            )
    return x, found


def _of_task(name: str, option: str, key: str, tasks: Mapping[str, Task], value: Any) -> Any:
    """A task's own part of an option that is a table by task; one scaling may be for all."""
    if value is None or (option == "scaling" and not isinstance(value, Mapping)):
        return value
    if not isinstance(value, Mapping) or not set(value) <= set(tasks):
        raise DataError(
            f"client {name!r}: {option} must be a table by task ({', '.join(tasks)}), "
            f"not {value!r:.80}"
        )
    return value.get(key)
