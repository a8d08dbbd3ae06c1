"""The task of a client whose files are still to be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedgradnorm._errors import ConfigError
from fedgradnorm.tasks._making import binary, classification, multilabel, ordinal, regression
from fedgradnorm.tasks._task import Task


@dataclass(frozen=True)
class TaskPlan:
    """A client's task, as far as it is known before its files are read."""

    kind: str
    name: str | None
    classes: int | None
    positive: str | int | None
    options: Mapping[str, Any]

    def check(self, client: str) -> None:
        """A ConfigError for options of another kind of task."""
        for key, fits in _FITTING.items():
            given = getattr(self, key, self.options.get(key))
            if given is not None and self.kind not in fits:
                kinds = " or ".join(fits)
                raise ConfigError(f"client {client!r}: {key} is for a {kinds}; leave it out")

    def make(self, outputs: int) -> Task:
        """The task, with so many classes, labels or numbers."""
        given = {key: value for key, value in self.options.items() if value is not None}
        if self.kind == "binary":
            return binary(**given, name=self.name)
        return _MAKERS[self.kind](outputs, **given, name=self.name)


_MAKERS: dict[str, Callable[..., Task]] = {
    "classification": classification,
    "multilabel": multilabel,
    "ordinal": ordinal,
    "regression": regression,
}


_FITTING: dict[str, tuple[str, ...]] = {
    "classes": ("classification", "ordinal"),
    "class_weights": ("classification",),
    "pos_weight": ("binary", "multilabel"),
    "positive": ("binary",),
}
"""The kinds of task that an option is for."""
