"""Class labels as they stand in files, and the class numbers they become."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

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
        distinct = set(labels)
        values = {_value(label) for label in distinct}
        numeric = None not in values
        if numeric:
            found = sorted(value for value in values if value is not None)
            if classes is not None and all(v.is_integer() and 0 <= v < classes for v in found):
                found = [float(i) for i in range(classes)]
            names = tuple(_name(value) for value in found)
        elif task == "ordinal":
            raise DataError(
                f"{source}: labels of an ordinal task must be numbers, which have an order, not "
                f"{min(distinct)!r}"
            )
        else:
            names = tuple(sorted(distinct))
        if len(names) < 2:
            raise DataError(
                f"{source}: the only training label is {names[0]!r}; a classification needs two"
            )
        if classes is not None and len(names) != classes:
            way_out = f"leave classes out, or number the labels 0 .. {classes - 1}"
            raise DataError(
                f"{source}: {classes} classes asked for, the training labels are {len(names)}: "
                f"{', '.join(names[:8])}{', ...' if len(names) > 8 else ''}; "
                + (way_out if task == "classification" else "use task='classification'")
            )
        return cls(names, numeric)

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
        """How a label is written in ``names``."""
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
