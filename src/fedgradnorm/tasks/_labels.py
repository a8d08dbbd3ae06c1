"""Labels as people write them, and the numbers they become."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from fedgradnorm._checks import shown
from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm.tasks._targets import is_na
from fedgradnorm.tasks._task import Task


@dataclass(frozen=True)
class LabelMap:
    """Labels in the order of their class numbers; whole numbers match however they are written.

    >>> LabelMap.fit(["dog", "cat", "dog"], None, "train.csv").names
    ('cat', 'dog')
    >>> LabelMap.fit(["10", "2.0"], None, "train.csv").names
    ('2', '10')
    """

    names: tuple[str, ...]
    numeric: bool

    @classmethod
    def seen(cls, labels: Iterable[str]) -> LabelMap:
        """The distinct ones, sorted, as numbers where all are."""
        distinct = set(labels)
        values = {_value(label) for label in distinct}
        if None in values:
            return cls(tuple(sorted(distinct)), False)
        return cls(
            tuple(_name(value) for value in sorted(v for v in values if v is not None)), True
        )

    @classmethod
    def listed(cls, labels: Any, what: str, least: int = 2) -> LabelMap:
        """In the order given; a ConfigError unless they are distinct texts or numbers.

        >>> LabelMap.listed(["no", "yes"], "labels").codes(["yes", "perhaps"])
        [1, None]
        """
        plain = isinstance(labels, Sequence) and not isinstance(labels, str)
        if not plain or not all(isinstance(v, str | int | float) for v in labels):
            raise ConfigError(f"{what} must be a list of texts, not {shown(labels)}")
        texts = [str(label).strip() for label in labels]
        values = [_value(text) for text in texts]
        numeric = None not in values
        names = tuple(_name(v) for v in values if v is not None) if numeric else tuple(texts)
        if len(names) < least or "" in names:
            raise ConfigError(f"{what} must be at least {least} texts, not {shown(labels)}")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(f"{what} names {twice!r} more than once")
        return cls(names, numeric)

    @classmethod
    def fit(
        cls,
        labels: Sequence[str],
        classes: int | None,
        source: str,
        task: str = "classification",
    ) -> LabelMap:
        """Learn from training labels, sorted (as numbers where all are).

        With ``classes``, labels that already are 0 .. classes - 1 keep their numbers.
        """
        whole = isinstance(classes, int) and not isinstance(classes, bool)
        if classes is not None and not (whole and classes >= 2):
            raise ConfigError(f"classes must be at least 2, not {classes!r}")
        found = cls.seen(labels)
        if task == "ordinal" and not found.numeric:
            raise DataError(
                f"{source}: labels of an ordinal task must be numbers, which have an order, not "
                f"{found.names[0]!r}; or list them in their order: labels = [...]"
            )
        values = [float(name) for name in found.names] if found.numeric else [-1.0]
        if classes is not None and all(v.is_integer() and 0 <= v < classes for v in values):
            found = replace(found, names=tuple(map(str, range(classes))))
        names = found.names
        if len(names) < 2:
            raise DataError(
                f"{source}: the only training label is {names[0]!r}; a classification needs two, "
                f"or a list of them: labels = [{names[0]!r}, ...]"
            )
        if classes is not None and len(names) != classes:
            way_out = f"leave classes out, or number the labels 0 .. {classes - 1}"
            if task == "binary":
                way_out = "use task='classification'"
                if found.numeric:
                    middle = names[len(names) // 2]
                    way_out = f"say from where on it is 1, such as above = {middle}, or {way_out}"
            raise DataError(
                f"{source}: {classes} classes asked for, the training labels are {len(names)}: "
                f"{', '.join(names[:8])}{', ...' if len(names) > 8 else ''}; " + way_out
            )
        return found

    def codes(self, labels: Sequence[str]) -> list[int | None]:
        """The class number of each label, None where it is unknown."""
        numbers = {name: i for i, name in enumerate(self.names)}
        return [numbers.get(self._key(label)) for label in labels]

    def extended(self, labels: Sequence[str]) -> LabelMap:
        """The same classes, and after them one for each label that was unknown."""
        unknown = {self._key(label) for label in labels} - set(self.names)
        return replace(self, names=(*self.names, *sorted(unknown)))

    def ending_with(self, label: str, source: str) -> LabelMap:
        """The same two classes, with ``label`` as class 1."""
        last = self._key(label)
        if last not in self.names:
            raise DataError(
                f"{source}: positive is {label!r}, the training labels are {', '.join(self.names)}"
            )
        return replace(self, names=(*(name for name in self.names if name != last), last))

    def _key(self, label: str) -> str:
        value = _value(label) if self.numeric else None
        return label if value is None else _name(value)


def _value(label: str) -> float | None:
    try:
        value = float(label)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _name(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)


SHOWN = 10  # labels that a message lists


def texts_of(y: Any) -> list[str] | None:
    """Targets that are texts, as a list of them; None if they are anything else.

    What nobody labeled (None, NaN, an empty text) is an empty text.
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
    texts = ["" if label is None or label != label or is_na(label) else label for label in array]
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
