"""One file with the targets of several tasks: read once for each of them, joined row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedgradnorm._columns import is_frame
from fedgradnorm._errors import choose
from fedgradnorm.data._arrays import Loaded, Standardize, several_from_arrays
from fedgradnorm.data._dropped import tell_unlabelled
from fedgradnorm.data._files.encoded_rows import encoded
from fedgradnorm.data._files.file_labels import class_numbers, label_map, tell_untrained
from fedgradnorm.data._files.file_parts import Division, dropped_rows, tell_dropped
from fedgradnorm.data._files.file_source import FileSource
from fedgradnorm.data._files.read_rows import FileRows
from fedgradnorm.data._files.target import Target
from fedgradnorm.tasks._kind import KINDS
from fedgradnorm.tasks._labels.label_map import LabelMap
from fedgradnorm.tasks._task import Task


def load_several(
    name: str,
    source: FileSource,
    files: Mapping[str, Any],
    asked: Mapping[str, Target],
    division: Division,
    standardize: Standardize,
) -> Loaded:
    """A client with several tasks, whose targets are in the same files."""
    for key, one in asked.items():
        choose(str(one.task), KINDS, f"task of {name}/{key}")
        one.check(f"{name}/{key}")
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
        known = label_map(read[key], one) if one.counted else None
        for part, (file, at) in parts.items():
            rows = _same_file(read[key], first, file)
            splits[part][1][key] = (
                np.asarray(rows.y)[at] if known is None else class_numbers(rows, at, known, one)
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


def _made(one: Target, known: LabelMap | None, row: Sequence[int]) -> tuple[Task, tuple[str, ...]]:
    """The task, and the names of its classes or labels."""
    if known is not None:
        return one.make(len(known.names)), known.names
    return one.make(one.outputs_in(row)), one.columns if one.task == "multilabel" else ()


def _join(parts: Sequence[FileRows]) -> None:
    """A row that cannot be used for one task is left out of all, so that rows stay the same.

    A missing label is nothing of the kind: that row counts for the other tasks.
    """
    reasons = {row: why for rows in parts for row, why in rows.bad.reasons.items()}
    for rows in parts:
        rows.bad.reasons.update(reasons)


def _targets(asked: Mapping[str, Target], source: FileSource, path: Any) -> tuple[str, ...]:
    """All target columns of a table: none of them is an input of any task."""
    if not is_frame(path) and source.form.suffix(path) == ".npz":
        return ()
    return tuple(dict.fromkeys(column for task in asked.values() for column in task.columns))


def _for_task(source: FileSource, one: Target, aside: tuple[str, ...]) -> FileSource:
    """How the files are read for one of the tasks."""
    key = one.y_key or source.y_key
    own = replace(source, targets=one.columns, y_key=key, aside=aside)
    return replace(own, labels=one.reads_texts, shape=one.form)
