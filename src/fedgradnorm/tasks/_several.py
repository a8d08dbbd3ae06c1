"""A client with several tasks, taken apart into one row of parts for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedgradnorm._errors import DataError
from fedgradnorm.models._given_inputs import as_tensor
from fedgradnorm.models._input_rows import Inputs
from fedgradnorm.tasks._labels.text_labels import names_for, numbered
from fedgradnorm.tasks._targets import labelled
from fedgradnorm.tasks._task import Task

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
