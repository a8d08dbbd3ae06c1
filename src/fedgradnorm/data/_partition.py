"""Ways to divide one data set among several clients.

Names and meaning follow flwr-datasets where the idea is the same. Every partitioner returns
disjoint, sorted row numbers, the same ones for the same seed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedgradnorm._checks import bounded, whole
from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError, DataError, choose
from fedgradnorm._options import check_options, options_of
from fedgradnorm.data._arrays import random_generator, rows_of
from fedgradnorm.models._streamed import all_targets

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    Rows = NDArray[np.int64]
    Labels = NDArray[Any] | Tensor | Sequence[Any]

log = logging.getLogger(__name__)

TRIES = 100  # random draws made before a request is given up
MOST_PARTS = 100_000  # more, and more than rows, are refused before a draw is made for them


@dataclass(frozen=True)
class Partitioner:
    """Base class: a subclass divides rows in ``_parts``."""

    counts: ClassVar[tuple[str, ...]] = ()  # the fields that are whole numbers of at least 1
    by_label: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in self.counts:  # a config may have 3.0
            object.__setattr__(self, name, whole(name, getattr(self, name), 1))

    def split(self, labels_or_n: Labels | int, seed: int) -> list[Rows]:
        """Disjoint, sorted row numbers of each part, from a label per row or their number."""
        who, given = type(self).__name__, labels_or_n
        labels = np.zeros(given) if isinstance(given, (int, np.integer)) else np.asarray(given)
        if not self.by_label:
            if not len(labels):
                raise DataError(f"{who}: there are 0 rows; nothing to divide")
        elif isinstance(given, (int, np.integer)):
            raise DataError(f"{who} divides by class and needs a label per row; use iid or size")
        else:
            labels = labels.astype(str) if labels.dtype.kind == "O" else labels
            if labels.ndim != 1 or not len(labels):
                shape = labels.shape
                raise DataError(f"{who} needs one label per row, not an array of shape {shape}")
            real = labels.dtype.kind == "f"
            if real and not (np.isfinite(labels) & (labels == np.rint(labels))).all():
                raise DataError(f"{who} needs class labels, not real numbers; use iid or size")
        parts = self._parts(labels, random_generator(seed))
        return [np.sort(part).astype(np.int64) for part in parts]

    def _parts(self, labels: NDArray[Any], rng: np.random.Generator) -> Sequence[NDArray[Any]]:
        raise NotImplementedError


@dataclass(frozen=True)
class Iid(Partitioner):
    """Equal numbers of random rows, give or take one. Covers every row.

    Args:
        parts: how many clients, 1 or more.

    >>> [part.tolist() for part in Iid(2).split(5, seed=0)]
    [[2, 3, 4], [0, 1]]
    """

    parts: int
    counts: ClassVar[tuple[str, ...]] = ("parts",)

    def _parts(self, labels: NDArray[Any], rng: np.random.Generator) -> Sequence[NDArray[Any]]:
        if len(labels) < self.parts:
            raise DataError(
                f"Iid: {len(labels)} rows cannot fill {self.parts} parts; ask for fewer parts"
            )
        return np.array_split(rng.permutation(len(labels)), self.parts)


@dataclass(frozen=True)
class Size(Partitioner):
    """Random rows in the sizes given; rows beyond their sum go to no part.

    Args:
        sizes: the number of examples of each client, each 1 or more.

    >>> [len(part) for part in Size((3, 1)).split(5, seed=0)]
    [3, 1]
    """

    sizes: Sequence[int]

    def __post_init__(self) -> None:
        sizes = tuple(whole("sizes", size, 1) for size in self.sizes)
        if not sizes:
            raise ConfigError("sizes must name at least one part")
        object.__setattr__(self, "sizes", sizes)

    def _parts(self, labels: NDArray[Any], rng: np.random.Generator) -> Sequence[NDArray[Any]]:
        rows, wanted = len(labels), sum(self.sizes)
        if wanted > rows:
            raise DataError(
                f"Size: the sizes add up to {wanted} but there are {rows} rows; make them smaller"
            )
        if wanted < rows:
            log.warning("Size: %d of %d rows go to no part", rows - wanted, rows)
        return np.split(rng.permutation(rows)[:wanted], np.cumsum(self.sizes)[:-1])


@dataclass(frozen=True)
class Dirichlet(Partitioner):
    """Each class is divided in proportions drawn from Dirichlet(alpha). Covers every row.

    A small ``alpha`` gives parts that differ much, a large one parts that look alike. Proportions
    are drawn again, at most 100 times, until every part has ``min_size`` rows.

    Args:
        parts: how many clients, 1 or more.
        alpha: above 0; the smaller, the more clients differ.
        min_size: the least number of examples per client, 1 or more.

    >>> parts = Dirichlet(3, alpha=1.0).split([0, 1] * 50, seed=0)
    >>> sum(len(part) for part in parts), min(len(part) for part in parts) >= 10
    (100, True)
    """

    parts: int
    alpha: float
    min_size: int = 10
    counts: ClassVar[tuple[str, ...]] = ("parts", "min_size")
    by_label: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        # Below 1e-6 the proportions underflow to all zero; above 1e6 they are even anyway.
        bounded("alpha", self.alpha, 1e-6, 1e6)

    def _parts(self, labels: NDArray[Any], rng: np.random.Generator) -> Sequence[NDArray[Any]]:
        needed, best = self.parts * self.min_size, 0
        if len(labels) < needed:
            raise DataError(
                f"Dirichlet: {self.parts} parts of at least {self.min_size} rows need {needed} "
                f"rows, there are {len(labels)}; ask for fewer parts or a lower min_size"
            )
        for _ in range(TRIES):
            pieces = []
            for _, rows in _classes(labels, rng):
                cuts = np.cumsum(rng.dirichlet([self.alpha] * self.parts))[:-1] * len(rows)
                pieces.append(np.split(rows, cuts.astype(np.int64)))
            parts = [np.concatenate(own) for own in zip(*pieces, strict=True)]
            smallest = min(len(part) for part in parts)
            if smallest >= self.min_size:
                return parts
            best = max(best, smallest)
        raise DataError(
            f"Dirichlet: in {TRIES} draws the smallest part never had more than {best} of the "
            f"{self.min_size} rows asked for; raise alpha ({self.alpha}) or lower min_size"
        )


@dataclass(frozen=True)
class Pathological(Partitioner):
    """Each part has rows of ``classes_per_part`` random classes, a class's rows divided evenly.

    A class that no part holds is left out, with a line in the log.

    Args:
        parts: how many clients, 1 or more.
        classes_per_part: the number of classes of each client, 1 or more.

    >>> labels = np.repeat([0, 1, 2], 4)
    >>> parts = Pathological(3, 2).split(labels, seed=0)
    >>> [len(set(labels[part].tolist())) for part in parts]
    [2, 2, 2]
    """

    parts: int
    classes_per_part: int
    counts: ClassVar[tuple[str, ...]] = ("parts", "classes_per_part")
    by_label: ClassVar[bool] = True

    def _parts(self, labels: NDArray[Any], rng: np.random.Generator) -> Sequence[NDArray[Any]]:
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
        for _ in range(TRIES):
            holds = np.zeros((self.parts, len(classes)), dtype=np.bool_)
            for part in holds:
                part[rng.choice(len(classes), self.classes_per_part, replace=False)] = True
            takers = holds.sum(axis=0)
            if (takers <= counts).all():
                break
        else:
            short = int(np.argmax(takers - counts))
            raise DataError(
                f"Pathological: class {classes[short]!s} has {counts[short]} rows for the "
                f"{takers[short]} parts that would hold it; lower parts or classes_per_part"
            )
        shares: list[list[Rows]] = [[] for _ in range(self.parts)]
        for (label, rows), held in zip(_classes(labels, rng), holds.T, strict=True):
            if not held.any():
                log.warning("Pathological: class %s (%d rows) goes to no part", label, len(rows))
                continue
            pieces = np.array_split(rows, held.sum())
            for taker, piece in zip(np.flatnonzero(held), pieces, strict=True):
                shares[taker].append(piece)
        return [np.concatenate(share) for share in shares]


PARTITIONERS: dict[str, type[Partitioner]] = {
    kind.__name__.lower(): kind for kind in (Iid, Size, Dirichlet, Pathological)
}


def partitioner(description: Mapping[str, Any]) -> Partitioner:
    """The partitioner that a config's table describes.

    >>> partitioner({"name": "iid", "parts": 3})
    Iid(parts=3)
    """
    settings = dict(description)
    name = choose(str(settings.pop("name", "")), PARTITIONERS, "partitioner")
    check_options(f"partitioner {name!r}", settings, options_of(PARTITIONERS[name]))
    try:
        return PARTITIONERS[name](**settings)
    except TypeError as error:
        raise ConfigError(f"partitioner {name!r}: {error}") from error


def partition_client(client: Client, how: str, *, seed: int = 0, **options: Any) -> list[Client]:
    """Divide one client's training examples among clients ``name-0``, ``name-1``, ...

    Each of them keeps the whole validation and test data. All have the same task name, so that they
    can share a weight (``weight_per="task"``) or a head (``heads="task"``). Examples without a
    label are left out.

    Args:
        client: the client whose training examples to divide.
        how: "iid", "size", "dirichlet" or "pathological".
        seed: determines which client gets which examples.
        options: options of ``how``, as in ``[data.partition.CLIENT]`` of a config: ``parts``;
            ``sizes`` for "size"; also ``alpha`` and ``min_size`` for "dirichlet", and
            ``classes_per_part`` for "pathological".

    >>> from fedgradnorm import regression
    >>> whole = Client("a", regression(1), train=(np.ones((4, 2)), np.ones(4)))
    >>> [(part.name, part.size, part.task_name) for part in partition_client(whole, "iid", parts=2)]
    [('a-0', 2, 'a'), ('a-1', 2, 'a')]
    """
    return divided(client, partitioner({**options, "name": how}), seed)


def divided(client: Client, partitioner: Partitioner, seed: int) -> list[Client]:
    """The clients among whom a partitioner divides one client's training rows."""
    if client.tasks is not None or client.of is not None:
        raise DataError(
            f"client {client.owner!r} has several tasks, and its rows cannot be divided; make "
            "clients of parts of its arrays"
        )
    train, task = client.learns_from(), client.task
    labels = client.size if task.classes is None or task.shape else all_targets(train[1])
    try:
        parts = partitioner.split(labels, seed)
    except DataError as error:
        raise DataError(f"client {client.name!r}: {error}") from error
    task = replace(task, name=client.task_name)
    return [
        replace(client, name=f"{client.name}-{i}", task=task, train=rows_of(train, rows))
        for i, rows in enumerate(parts)
    ]


def _classes(labels: NDArray[Any], rng: np.random.Generator) -> Iterator[tuple[Any, Rows]]:
    """Each class with its rows in random order."""
    for label in np.unique(labels):
        yield label, rng.permutation(np.flatnonzero(labels == label))
