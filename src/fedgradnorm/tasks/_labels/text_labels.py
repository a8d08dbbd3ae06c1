"""Targets that are texts, as people write them, and the class numbers they become."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from fedgradnorm._checks import shown
from fedgradnorm._errors import DataError
from fedgradnorm.tasks._labels.label_map import LabelMap
from fedgradnorm.tasks._task import Task

SHOWN = 10  # labels that a message lists


def texts_of(y: Any) -> list[str] | None:
    """Targets that are texts, as a list of them; None if they are anything else.

    What nobody labelled (None, NaN, an empty text) is an empty text.
    """
    if isinstance(y, Tensor | Dataset) or not hasattr(y, "__len__"):
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


def _is_nothing(value: object) -> bool:
    return value is None or value != value or type(value).__name__ in ("NAType", "NaTType")
