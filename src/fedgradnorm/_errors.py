"""Everything the library raises on purpose.

FedGradNormError
├── ConfigError       a setting: unknown, out of range, or in conflict with another
├── DataError         data: missing, damaged, or not what the task needs
├── ModelError        a network, head or norm layer that does not fit
├── RunFolderError    a run folder or saved run: missing, damaged, or already in use
└── TrainingError     training cannot continue (for example, every client failed)

Each message is one line that names the client, the stage, the value and the way out.
``Interrupted`` is a KeyboardInterrupt that carries what had been trained so far.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedgradnorm._runs.run import Run


class FedGradNormError(Exception):
    """Base of all errors the library raises on purpose."""

    def __str__(self) -> str:
        """One line, also where a name in it has several."""
        return " ".join(super().__str__().splitlines())


class ConfigError(FedGradNormError):
    """A setting is unknown, out of range, or in conflict with another."""


class DataError(FedGradNormError):
    """Data is missing, damaged, or not what the task needs."""


class ModelError(FedGradNormError):
    """A network, head or norm layer does not fit."""


class RunFolderError(FedGradNormError):
    """A run folder or saved run is missing, damaged or already in use."""


class TrainingError(FedGradNormError):
    """Training cannot continue."""


class RankLost(TrainingError):
    """A rank has died or does not answer: the others cannot continue."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during training; ``run`` holds everything trained so far."""

    def __init__(self, message: str, run: Run) -> None:
        super().__init__(message)
        self.run = run


def choose(value: str, allowed: Iterable[str], what: str) -> str:
    """Return ``value`` if it is one of ``allowed``, else raise with the nearest valid name."""
    names = list(allowed)
    if value in names:
        return value
    raise ConfigError(
        f"unknown {what} {value!r}{did_you_mean(value, names)} (one of: {listed(names)})"
    )


def did_you_mean(value: object, names: Sequence[str], cutoff: float = 0.4) -> str:
    """A hint at the nearest of ``names``; empty where none is near."""
    near = difflib.get_close_matches(str(value), names, n=1, cutoff=cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""


def listed(names: Sequence[str], most: int = 50) -> str:
    """Names with commas between them; of very many the first, and how many there are.

    >>> listed(["ann", "bob", "cy"], most=2)
    'ann, bob, ... (3 in all)'
    """
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])}, ... ({len(names):,} in all)"
