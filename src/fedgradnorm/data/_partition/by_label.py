"""Partitioners that go by class label: Dirichlet and Pathological."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from fedgradnorm._errors import ConfigError, DataError, choose
from fedgradnorm.data._arrays import random_generator
from fedgradnorm.data._partition.partitioner_base import (
    Partitioner,
    class_labels,
    sorted_parts,
    whole,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedgradnorm.data._partition.partitioner_base import Labels, Rows

log = logging.getLogger(__name__)

TRIES = 100
"""Random draws made before a request is given up."""

MOST_PARTS = 100_000
"""More parts than this, and than rows, are refused before a draw is made for them."""


@dataclass(frozen=True)
class Dirichlet(Partitioner):
    """Each class is shared out in proportions drawn from Dirichlet(alpha). Covers every row.

    A small ``alpha`` gives parts that differ much, a large one parts that look alike; a sequence
    gives one value per part. Proportions are drawn again, at most ``TRIES`` times, until every
    part has ``min_size`` rows.

    Args:
        parts: how many clients, 1 or more.
        alpha: above 0; the smaller, the more the parts differ; a list has one for each part.
        min_size: rows that every part has at least, 1 or more.

    >>> parts = Dirichlet(3, alpha=1.0).split([0, 1] * 50, seed=0)
    >>> sum(len(part) for part in parts), min(len(part) for part in parts) >= 10
    (100, True)
    """

    parts: int
    alpha: float | Sequence[float]
    min_size: int = 10
    name: ClassVar[str] = "dirichlet"

    def __post_init__(self) -> None:
        whole("parts", self.parts)
        whole("min_size", self.min_size)
        values: tuple[float, ...]
        if isinstance(self.alpha, (int, float)):
            values = (self.alpha,)
        else:
            values = tuple(self.alpha)
            object.__setattr__(self, "alpha", values)
            if len(values) != self.parts:
                raise ConfigError(f"alpha has {len(values)} values for {self.parts} parts")
        for value in values:
            # Below 1e-6 the proportions underflow to all zero; above 1e6 they are even anyway.
            if isinstance(value, bool) or not 1e-6 <= value <= 1e6:
                raise ConfigError(f"alpha must be between 1e-6 and 1e6, not {value!r}")

    def _alphas(self) -> tuple[float, ...]:
        return (
            (self.alpha,) * self.parts
            if isinstance(self.alpha, (int, float))
            else tuple(self.alpha)
        )

    def split(self, labels_or_n: Labels | int, seed: int) -> list[Rows]:
        """See :class:`Partitioner`; needs a label per row."""
        labels = class_labels(labels_or_n, "Dirichlet")
        needed = self.parts * self.min_size
        if len(labels) < needed:
            raise DataError(
                f"Dirichlet: {self.parts} parts of at least {self.min_size} rows need {needed} "
                f"rows, there are {len(labels)}; ask for fewer parts or a lower min_size"
            )
        rng = random_generator(seed)
        best = 0
        for _ in range(TRIES):
            parts = self._draw(labels, rng)
            smallest = min(len(part) for part in parts)
            if smallest >= self.min_size:
                return sorted_parts(parts)
            best = max(best, smallest)
        raise DataError(
            f"Dirichlet: in {TRIES} draws the smallest part never had more than {best} of the "
            f"{self.min_size} rows asked for; raise alpha ({self.alpha}) or lower min_size"
        )

    def _draw(self, labels: NDArray[Any], rng: np.random.Generator) -> list[Rows]:
        shares: list[list[Rows]] = [[] for _ in range(self.parts)]
        for label in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == label))
            cuts = np.cumsum(rng.dirichlet(self._alphas()))[:-1] * len(rows)
            for share, piece in zip(shares, np.split(rows, cuts.astype(np.int64)), strict=True):
                share.append(piece)
        return [np.concatenate(share) for share in shares]


@dataclass(frozen=True)
class Pathological(Partitioner):
    """Each part holds rows of exactly ``classes_per_part`` classes, a class's rows shared evenly.

    ``assignment``: ``"random"``; ``"first-deterministic"``, where part i surely holds class i
    (modulo the number of classes) and the rest is random; ``"deterministic"``, where part i holds
    classes i, i + 1, ... A class that no part holds is left out, and the log says so.

    Args:
        parts: how many clients, 1 or more.
        classes_per_part: classes that a part holds, 1 or more.
        assignment: which classes a part holds: one of the three above.

    >>> labels = np.repeat([0, 1, 2], 4)
    >>> parts = Pathological(3, 2, assignment="deterministic").split(labels, seed=0)
    >>> [sorted(set(labels[part].tolist())) for part in parts]
    [[0, 1], [1, 2], [0, 2]]
    """

    parts: int
    classes_per_part: int
    assignment: Literal["random", "first-deterministic", "deterministic"] = "random"
    name: ClassVar[str] = "pathological"

    def __post_init__(self) -> None:
        whole("parts", self.parts)
        whole("classes_per_part", self.classes_per_part)
        choose(self.assignment, ("random", "first-deterministic", "deterministic"), "assignment")

    def split(self, labels_or_n: Labels | int, seed: int) -> list[Rows]:
        """See :class:`Partitioner`; needs a label per row."""
        labels = class_labels(labels_or_n, "Pathological")
        classes, counts = np.unique(labels, return_counts=True)
        if self.classes_per_part > len(classes):
            raise DataError(
                f"Pathological: {self.classes_per_part} classes per part asked for, the data has "
                f"{len(classes)}; lower classes_per_part"
            )
        if self.parts > max(len(labels), MOST_PARTS):
            raise DataError(
                f"Pathological: {len(labels)} rows cannot fill {self.parts} parts; lower parts"
            )
        rng = random_generator(seed)
        for _ in range(1 if self.assignment == "deterministic" else TRIES):
            holds = self._assign(len(classes), rng)
            takers = holds.sum(axis=0)
            if (takers <= counts).all():
                return self._share_out(labels, classes, holds, rng)
        short = int(np.argmax(takers - counts))
        raise DataError(
            f"Pathological: class {classes[short]!s} has {counts[short]} rows for the "
            f"{takers[short]} parts that would hold it; lower parts or classes_per_part"
        )

    def _assign(self, classes: int, rng: np.random.Generator) -> NDArray[np.bool_]:
        """holds[part, class]: who holds what."""
        holds = np.zeros((self.parts, classes), dtype=np.bool_)
        for part in range(self.parts):
            if self.assignment == "deterministic":
                chosen = (part + np.arange(self.classes_per_part)) % classes
            elif self.assignment == "first-deterministic":
                others = np.delete(np.arange(classes), part % classes)
                more = rng.choice(others, self.classes_per_part - 1, replace=False)
                chosen = np.append(more, part % classes)
            else:
                chosen = rng.choice(classes, self.classes_per_part, replace=False)
            holds[part, chosen] = True
        return holds

    def _share_out(
        self,
        labels: NDArray[Any],
        classes: NDArray[Any],
        holds: NDArray[np.bool_],
        rng: np.random.Generator,
    ) -> list[Rows]:
        shares: list[list[Rows]] = [[] for _ in range(self.parts)]
        for label, held in zip(classes, holds.T, strict=True):
            rows = rng.permutation(np.flatnonzero(labels == label))
            takers = np.flatnonzero(held)
            if len(takers) == 0:
                log.warning("Pathological: class %s (%d rows) goes to no part", label, len(rows))
                continue
            for part, piece in zip(takers, np.array_split(rows, len(takers)), strict=True):
                shares[part].append(piece)
        return sorted_parts([np.concatenate(share) for share in shares])
