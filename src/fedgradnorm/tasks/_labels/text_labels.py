"""Targets that are texts, as people write them, and the class numbers they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fedgradnorm._checks import shown
from fedgradnorm._errors import DataError
from fedgradnorm.tasks._labels.label_map import LabelMap
from fedgradnorm.tasks._task import Task

SHOWN = 10  # labels that a message lists


def texts_of(y: Any) -> list[str] | None:
    """Targets that are texts, as a list of them; None if they are anything else.

    What nobody labelled (None, NaN, an empty text) is an empty text.
    """
    if isinstance(y, Tensor) or not hasattr(y, "__len__"):
        return None
    try:
        array = np.asarray(y)
    except ValueError:  # rows of several lengths
        return None
    if array.dtype.kind not in "UO":
        return None
    array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    if array.ndim != 1 or not any(isinstance(label, str) for label in array):
        return None
    texts = ["" if _is_nothing(label) else label for label in array]
    return [text.strip() for text in texts] if all(isinstance(t, str) for t in texts) else None


def names_for(task: Task, y: Any, where: str) -> tuple[str, ...] | None:
    """The names of the classes: those that the task lists, or the texts of training targets."""
    if task.labels is not None or task.classes is None:
        return task.labels
    texts = [text for text in texts_of(y) or () if text]
    return LabelMap.fit(texts, task.classes, where, task.kind).names if texts else None


def numbered(task: Task, names: Sequence[str] | None, y: Any, where: str) -> Any:
    """Text labels as class numbers, NaN where there is none; anything else as it is."""
    texts = None if task.classes is None or names is None else texts_of(y)
    if texts is None or names is None:
        return y
    codes = LabelMap.listed(names, f"{where}: labels").codes(texts)
    for i, (text, code) in enumerate(zip(texts, codes, strict=True)):
        if text and code is None:
            raise DataError(
                f"{where}: y[{i}] is {shown(text)}, none of its labels "
                f"({', '.join(map(repr, names[:SHOWN]))}); correct it, or list all labels: "
                "classification(labels=[...])"
            )
    return np.array([np.nan if code is None else code for code in codes])


def named_tables(
    tasks: Mapping[str, Task], splits: Mapping[str, Any], labels: Any, client: str
) -> tuple[dict[str, Any], Any]:
    """The splits of a client with several tasks, with texts as numbers, and its tables of names.

    What has not the form of such a client is left as it is, for others to refuse.
    """
    train = splits.get("train")
    given = {} if labels is None else labels
    if (
        train is None
        or not _is_pair(train)
        or not isinstance(tasks, Mapping)
        or not isinstance(given, Mapping)
    ):
        return dict(splits), labels
    known = {key: task for key, task in tasks.items() if isinstance(task, Task)}
    names = dict(given)
    for key, task in known.items():
        where = f"client {client!r}, train data, task {key!r}"
        if key not in names and (found := names_for(task, train[1].get(key), where)):
            names[key] = found
    made = dict(splits)
    for split, pair in splits.items():
        if _is_pair(pair):
            where = f"client {client!r}, {split} data, task"
            table = {
                key: numbered(known[key], names.get(key), y, f"{where} {key!r}")
                if key in known
                else y
                for key, y in pair[1].items()
            }
            made[split] = pair[0], table
    return made, names or None


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[1], Mapping)


def _is_nothing(value: object) -> bool:
    return value is None or value != value or type(value).__name__ in ("NAType", "NaTType")
