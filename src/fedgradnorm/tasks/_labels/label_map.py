"""Labels as people write them, and the numbers they become."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedgradnorm._checks import shown
from fedgradnorm._errors import ConfigError, DataError


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
        if classes is not None and found._counts_below(classes):
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

    def _counts_below(self, classes: int) -> bool:
        """Whether all are whole numbers from 0 to below ``classes``."""
        values = [float(name) for name in self.names] if self.numeric else [-1.0]
        return all(v.is_integer() and 0 <= v < classes for v in values)

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
