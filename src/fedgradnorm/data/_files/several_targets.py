"""One file with the targets of several tasks: read once for each of them, joined row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedgradnorm._errors import ConfigError, choose
from fedgradnorm.data._arrays import Loaded, several_from_arrays
from fedgradnorm.data._dropped import tell_unlabelled
from fedgradnorm.data._files.class_labels import LabelMap
from fedgradnorm.data._files.client_files import (
    COUNTED,
    KINDS,
    FileSource,
    label_map,
    read_splits,
    tell_dropped,
    tell_untrained,
    usable_rows,
)
from fedgradnorm.data._files.read_rows import FileRows
from fedgradnorm.data._files.task_plan import TaskPlan
from fedgradnorm.tasks._task import Task

OPTIONS = (
    "task",
    "targets",
    "y_key",
    "classes",
    "positive",
    "class_weights",
    "pos_weight",
    "metrics",
    "task_name",
)
"""What a task of several may say of itself; everything else is the client's."""


@dataclass(frozen=True)
class Asked:
    """One of several tasks, as a config describes it."""

    plan: TaskPlan
    targets: tuple[str, ...]
    y_key: str | None
    labels: bool


def load_several(
    name: str,
    source: FileSource,
    files: Mapping[str, Path],
    tables: Any,
    options: Mapping[str, Any],
    single: Mapping[str, Any],
) -> Loaded:
    """A client with several tasks, whose targets are in the same files.

    ``single`` are options of a client with one task, of which none may be given.
    """
    asked = _asked_tasks(name, tables, single)
    aside = _targets(asked, files["train"])
    read = {key: read_splits(_for_task(source, one, aside), files) for key, one in asked.items()}
    for split in files:
        _join([rows[split] for rows in read.values()])
    known = {
        key: label_map(read[key], one.plan) if one.labels else None for key, one in asked.items()
    }
    splits: dict[str, tuple[Any, dict[str, Any]]] = {}
    for key, found in read.items():
        for split, rows in found.items():
            x, y = usable_rows(rows, known[key])
            splits.setdefault(split, (x, {}))[1][key] = y
        tell_unlabelled(f"{name}/{key}", [table[key] for _, table in splits.values()])
    first = next(iter(read.values()))
    tell_dropped(name, first.values())
    tasks, names = {}, dict[str, tuple[str, ...]]()
    for key, one in asked.items():
        tasks[key], own = _made(one, known[key], splits["train"][1][key].shape[-1])
        names |= {key: own} if own else {}
    held = {"validation": splits.get("validation"), "test": splits.get("test"), **options}
    client = several_from_arrays(
        name, tasks, splits["train"], labels=names, columns=first["train"].inputs, **held
    )
    for row in client.rows:
        tell_untrained(row)
    dropped = {rows.bad.source: tuple(sorted(rows.bad.reasons)) for rows in first.values()}
    return Loaded(client, dropped={file: rows for file, rows in dropped.items() if rows})


def _made(one: Asked, known: LabelMap | None, width: int) -> tuple[Task, tuple[str, ...]]:
    """The task, and the names of its classes or labels."""
    if known is not None:
        return one.plan.make(len(known.names)), known.names
    return one.plan.make(width), one.targets if one.plan.kind == "multilabel" else ()


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
    plan = TaskPlan(kind, *named, options)
    plan.check(what)
    targets = table.get("targets") or ()
    columns = (targets,) if isinstance(targets, str) else tuple(targets)
    return Asked(plan, columns, table.get("y_key"), kind in COUNTED)


def _join(parts: Sequence[FileRows]) -> None:
    """A row that cannot be used for one task is left out of all, so that rows stay the same.

    A missing label is nothing of the kind: that row counts for the other tasks.
    """
    reasons = {row: why for rows in parts for row, why in rows.bad.reasons.items()}
    for rows in parts:
        rows.bad.reasons.update(reasons)


def _targets(asked: Mapping[str, Asked], path: Path) -> tuple[str, ...]:
    """All target columns of a table: none of them is an input of any task."""
    if path.suffix.lower() == ".npz":
        return ()
    return tuple(dict.fromkeys(column for task in asked.values() for column in task.targets))


def _for_task(source: FileSource, one: Asked, aside: tuple[str, ...]) -> FileSource:
    """How the files are read for one of the tasks."""
    key = one.y_key or source.y_key
    return replace(source, targets=one.targets, labels=one.labels, y_key=key, aside=aside)
