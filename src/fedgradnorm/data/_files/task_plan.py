"""The task of a client whose files are still to be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fedgradnorm._checks import bounded
from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm.tasks._kind import KINDS
from fedgradnorm.tasks._labels.label_map import LabelMap
from fedgradnorm.tasks._making import (
    binary,
    classification,
    multilabel,
    of_kind,
    ordinal,
    regression,
)
from fedgradnorm.tasks._task import Task


@dataclass(frozen=True)
class TaskPlan:
    """A client's task, as far as it is known before its files are read."""

    kind: str
    name: str | None
    classes: int | None
    positive: str | int | None
    options: Mapping[str, Any]
    labels: Sequence[str] | None = None
    above: float | None = None
    shape: tuple[int, ...] = ()

    def check(self, client: str) -> None:
        """A ConfigError for options of another kind of task, or two that say the same."""
        for key in dict.fromkeys(option for one in KINDS.values() for option in one.options):
            given = getattr(self, key, self.options.get(key))
            if given is not None and key not in KINDS[self.kind].options:
                kinds = " or ".join(name for name, one in KINDS.items() if key in one.options)
                raise ConfigError(f"client {client!r}: {key} is for a {kinds}; leave it out")
        for one, other in (("labels", "classes"), ("labels", "positive"), ("above", "positive")):
            if getattr(self, one) is not None and getattr(self, other) is not None:
                raise ConfigError(
                    f"client {client!r}: {one} and {other} are both given; leave {other} out"
                )
        if self.above is not None:
            bounded(f"client {client!r}: above", self.above, low=float("-inf"))
        self.label_map(f"client {client!r}: ")

    @property
    def counted(self) -> bool:
        """Whether a row has one label."""
        return bool(self.kind) and KINDS[self.kind].counted

    @property
    def reads_texts(self) -> bool:
        """Whether the target column holds labels, not numbers."""
        return self.counted and self.above is None

    @property
    def class_count(self) -> int | None:
        """How many classes there must be, where that is said."""
        return 2 if self.kind == "binary" else self.classes

    def is_public(self, names: Sequence[str]) -> bool:
        """Whether these classes were said beforehand, and not read from the training data."""
        numbers = self.class_count is not None and list(names) == [*map(str, range(len(names)))]
        return self.labels is not None or self.above is not None or numbers

    def label_map(self, whose: str = "") -> LabelMap | None:
        """The labels that are listed; a ConfigError for a list that cannot be."""
        if self.labels is None:
            return None
        listed = LabelMap.listed(self.labels, f"{whose}labels")
        if self.kind == "binary" and len(listed.names) != 2:
            raise ConfigError(
                f"{whose}labels of a binary task are two, that of 0 and that of 1, not "
                f"{len(listed.names)}; use task='classification'"
            )
        return listed

    def make(self, outputs: int) -> Task:
        """The task, with so many classes, labels or numbers."""
        given = {key: value for key, value in self.options.items() if value is not None}
        given |= {"shape": self.shape} if self.shape else {}
        if self.kind == "binary":
            return binary(**given, name=self.name)
        make = _MAKERS.get(self.kind) or partial(of_kind, self.kind)
        return make(outputs, **given, name=self.name)

    def outputs_in(self, row: Sequence[int]) -> int:
        """How many numbers each place of a target has whose rows have this shape."""
        size = tuple(row)
        if not self.shape:
            return size[-1]
        if size == self.shape:
            return 1
        last, first = size[:-1] == self.shape, size[1:] == self.shape
        if not (last or first):
            raise DataError(f"targets of shape {size} a row do not fit shape = {list(self.shape)}")
        return size[-1] if last and (len(self.shape) == 1 or not first) else size[0]


_MAKERS: dict[str, Callable[..., Task]] = {
    "classification": classification,
    "multilabel": multilabel,
    "ordinal": ordinal,
    "regression": regression,
}
