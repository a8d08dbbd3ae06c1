"""One file with the targets of several tasks: read once for each of them, joined row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedgradnorm._columns import is_frame
from fedgradnorm._errors import ConfigError, choose
from fedgradnorm.data._arrays import Loaded, Standardize, several_from_arrays
from fedgradnorm.data._dropped import tell_unlabelled
from fedgradnorm.data._files.encoded_rows import encoded
from fedgradnorm.data._files.file_labels import class_numbers, label_map, tell_untrained
from fedgradnorm.data._files.file_parts import Division, dropped_rows, tell_dropped
from fedgradnorm.data._files.file_source import FileSource
from fedgradnorm.data._files.read_rows import FileRows
from fedgradnorm.data._files.task_plan import TaskPlan
from fedgradnorm.tasks._kind import KINDS
from fedgradnorm.tasks._labels.label_map import LabelMap
from fedgradnorm.tasks._positions import checked_shape
from fedgradnorm.tasks._task import Task

OPTIONS = (
    "task",
    "targets",
    "y_key",
    "classes",
    "positive",
    "labels",
    "above",
    "class_weights",
    "pos_weight",
    "metrics",
    "task_name",
    "shape",
)
"""What a task of several may say of itself; everything else is the client's."""


@dataclass(frozen=True)
class Asked:
    """One of several tasks, as a config describes it."""

    plan: TaskPlan
    targets: tuple[str, ...]
    y_key: str | None


def load_several(
    name: str,
    source: FileSource,
    files: Mapping[str, Any],
    tables: Any,
    division: Division,
    standardize: Standardize,
    single: Mapping[str, Any],
) -> Loaded:
    """A client with several tasks, whose targets are in the same files.

    ``single`` are options of a client with one task, of which none may be given.
    """
    asked = _asked_tasks(name, tables, single)
    aside = _targets(asked, source, files["train"])
    read = {k: _for_task(source, one, aside).read_all(files) for k, one in asked.items()}
    for split in files:
        _join([rows[split] for rows in read.values()])
    first = next(iter(read.values()))
    parts = division.parts(name, first)
    for split in files:
        _join([rows[split] for rows in read.values()])
    tell_dropped(name, first.values())
    made = encoded(name, source.columns, parts, standardize)
    encoding, x = made.encoding, made.x
    splits: dict[str, tuple[Any, dict[str, Any]]] = {part: (x[part], {}) for part in parts}
    tasks, names = {}, dict[str, tuple[str, ...]]()
    for key, one in asked.items():
        known = label_map(read[key], one.plan) if one.plan.counted else None
        for part, (file, at) in parts.items():
            rows = _same_file(read[key], first, file)
            splits[part][1][key] = (
                np.asarray(rows.y)[at]
                if known is None
                else class_numbers(rows, at, known, one.plan)
            )
        tell_unlabelled(f"{name}/{key}", [table[key] for _, table in splits.values()])
        tasks[key], own = _made(one, known, splits["train"][1][key].shape[1:])
        names |= {key: own} if own else {}
    columns = first["train"].inputs if encoding is None else encoding.features
    client = several_from_arrays(
        name,
        tasks,
        splits["train"],
        validation=splits.get("validation"),
        test=splits.get("test"),
        standardize=made.standardize,
        labels=names,
        columns=columns if made.flat else None,
        encoding=encoding,
        scaled=made.scaling,
    )
    for row in client.rows:
        tell_untrained(row)
    return Loaded(client, dropped=dropped_rows(first.values()))


def _same_file(
    own: Mapping[str, FileRows], first: Mapping[str, FileRows], file: FileRows
) -> FileRows:
    """The rows that a task has of a file that was read for the first task."""
    return own[next(split for split, rows in first.items() if rows is file)]


def _made(one: Asked, known: LabelMap | None, row: Sequence[int]) -> tuple[Task, tuple[str, ...]]:
    """The task, and the names of its classes or labels."""
    if known is not None:
        return one.plan.make(len(known.names)), known.names
    return one.plan.make(
        one.plan.outputs_in(row)
    ), one.targets if one.plan.kind == "multilabel" else ()


def _asked_tasks(client: str, tables: Any, shared: Mapping[str, Any]) -> dict[str, Asked]:
    """The tasks of a client, checked; ``shared`` are options that a single task would have."""
    given = next((key for key, value in shared.items() if value is not None), None)
    if given is not None:
        raise ConfigError(
            f"client {client!r}: {given} and tasks are both given; give each of the tasks its own"
        )
    if not isinstance(tables, Mapping) or not tables:
        raise ConfigError(f"client {client!r}: tasks must be a table of tasks by name")
    found = {}
    for key, table in tables.items():
        what = f"{client}/{key}"
        if not isinstance(table, Mapping) or "task" not in table:
            raise ConfigError(
                f'{what}: give a table such as {{task = "regression", targets = "hours"}}'
            )
        for option in table:
            choose(str(option), OPTIONS, f"option of {what}")
        found[str(key)] = _asked(what, table)
    return found


def _asked(what: str, table: Mapping[str, Any]) -> Asked:
    kind = choose(str(table["task"]), KINDS, f"task of {what}")
    options = {key: table.get(key) for key in ("class_weights", "pos_weight", "metrics")}
    named = table.get("task_name"), table.get("classes"), table.get("positive")
    form = checked_shape(table.get("shape", ()))
    plan = TaskPlan(kind, *named, options, table.get("labels"), table.get("above"), form)
    plan.check(what)
    targets = table.get("targets") or ()
    columns = (targets,) if isinstance(targets, str) else tuple(targets)
    return Asked(plan, columns, table.get("y_key"))


def _join(parts: Sequence[FileRows]) -> None:
    """A row that cannot be used for one task is left out of all, so that rows stay the same.

    A missing label is nothing of the kind: that row counts for the other tasks.
    """
    reasons = {row: why for rows in parts for row, why in rows.bad.reasons.items()}
    for rows in parts:
        rows.bad.reasons.update(reasons)


def _targets(asked: Mapping[str, Asked], source: FileSource, path: Any) -> tuple[str, ...]:
    """All target columns of a table: none of them is an input of any task."""
    if not is_frame(path) and source.form.suffix(path) == ".npz":
        return ()
    return tuple(dict.fromkeys(column for task in asked.values() for column in task.targets))


def _for_task(source: FileSource, one: Asked, aside: tuple[str, ...]) -> FileSource:
    """How the files are read for one of the tasks."""
    key = one.y_key or source.y_key
    own = replace(source, targets=one.targets, y_key=key, aside=aside)
    return replace(own, labels=one.plan.reads_texts, shape=one.plan.shape)
