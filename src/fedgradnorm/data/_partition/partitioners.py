"""Ways to share one data set out among several clients.

Names and meaning follow flwr-datasets where the idea is the same. Every partitioner gives
disjoint, sorted row numbers, the same ones for the same seed.

| partitioner    | each part gets                                        | covers every row |
|----------------|-------------------------------------------------------|------------------|
| `Iid`          | an equal number of random rows, give or take one      | yes              |
| `Size`         | the number of random rows you say                     | if the sizes do  |
| `Linear`       | 1, 2, 3, ... units of random rows; the last, the rest | yes              |
| `Dirichlet`    | a share of each class drawn from Dirichlet(alpha)     | yes              |
| `Pathological` | rows of exactly so many classes                       | if all are drawn |
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError, DataError, choose
from fedgradnorm.data._arrays import random_generator, rows_of
from fedgradnorm.data._partition.by_label import Dirichlet, Pathological
from fedgradnorm.data._partition.partitioner_base import Partitioner, row_count, sorted_parts, whole
from fedgradnorm.models._streamed.rows import all_targets

if TYPE_CHECKING:
    from fedgradnorm.data._partition.partitioner_base import Labels, Rows

__all__ = [
    "Dirichlet",
    "Iid",
    "Linear",
    "Partitioner",
    "Pathological",
    "Size",
    "partition_client",
    "partitioner",
]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Iid(Partitioner):
    """Equal numbers of random rows, give or take one. Covers every row.

    Args:
        parts: how many clients, 1 or more.

    >>> [part.tolist() for part in Iid(2).split(5, seed=0)]
    [[2, 3, 4], [0, 1]]
    """

    parts: int
    name: ClassVar[str] = "iid"

    def __post_init__(self) -> None:
        whole("parts", self.parts)

    def split(self, labels_or_n: Labels | int, seed: int) -> list[Rows]:
        """See :class:`Partitioner`."""
        rows = row_count(labels_or_n)
        if rows < self.parts:
            raise DataError(f"Iid: {rows} rows cannot fill {self.parts} parts; ask for fewer parts")
        return sorted_parts(np.array_split(random_generator(seed).permutation(rows), self.parts))


@dataclass(frozen=True)
class Size(Partitioner):
    """Random rows in the sizes given; rows beyond their sum go to no part.

    Args:
        sizes: rows of each client, each 1 or more.

    >>> [len(part) for part in Size((3, 1)).split(5, seed=0)]
    [3, 1]
    """

    sizes: Sequence[int]
    name: ClassVar[str] = "size"

    def __post_init__(self) -> None:
        sizes = tuple(self.sizes)
        if not sizes:
            raise ConfigError("sizes must name at least one part")
        for size in sizes:
            whole("each of sizes", size)
        object.__setattr__(self, "sizes", sizes)

    def split(self, labels_or_n: Labels | int, seed: int) -> list[Rows]:
        """See :class:`Partitioner`."""
        rows, wanted = row_count(labels_or_n), sum(self.sizes)
        if wanted > rows:
            raise DataError(
                f"Size: the sizes add up to {wanted} but there are {rows} rows; make them smaller"
            )
        if wanted < rows:
            log.warning("Size: %d of %d rows go to no part", rows - wanted, rows)
        order = random_generator(seed).permutation(rows)[:wanted]
        return sorted_parts(np.split(order, np.cumsum(self.sizes)[:-1]))


@dataclass(frozen=True)
class Linear(Partitioner):
    """Part i (from 1) gets i units of random rows, the last one also the rest. Covers every row.

    Args:
        parts: how many clients, 1 or more.

    >>> [len(part) for part in Linear(3).split(61, seed=0)]
    [10, 20, 31]
    """

    parts: int
    name: ClassVar[str] = "linear"

    def __post_init__(self) -> None:
        whole("parts", self.parts)

    def split(self, labels_or_n: Labels | int, seed: int) -> list[Rows]:
        """See :class:`Partitioner`."""
        rows, units = row_count(labels_or_n), self.parts * (self.parts + 1) // 2
        if rows < units:
            raise DataError(
                f"Linear: {self.parts} parts need at least {units} rows, there are {rows}; "
                "ask for fewer parts"
            )
        sizes = [rows * part // units for part in range(1, self.parts)]
        order = random_generator(seed).permutation(rows)
        return sorted_parts(np.split(order, np.cumsum(sizes, dtype=np.int64)))


def partitioner(description: Mapping[str, Any]) -> Partitioner:
    """The partitioner that :meth:`Partitioner.describe` described.

    >>> partitioner({"name": "iid", "parts": 3})
    Iid(parts=3)
    """
    kinds = {kind.name: kind for kind in (Iid, Size, Linear, Dirichlet, Pathological)}
    settings = dict(description)
    kind = kinds[choose(str(settings.pop("name", "")), kinds, "partitioner")]
    try:
        return kind(**settings)
    except TypeError as error:
        raise ConfigError(f"partitioner {kind.name!r}: {error}") from error


def partition_client(client: Client, partitioner: Partitioner, seed: int) -> list[Client]:
    """Clients ``name-0``, ``name-1``, ... that share out one client's training rows.

    Each keeps the whole validation and test data, and all carry one task name, so that they can
    share a weight (``weight_per="task"`` in ``train``). Rows without a label go to nobody.

    >>> from fedgradnorm import regression
    >>> whole = Client("a", regression(1), train=(np.ones((4, 2)), np.ones(4)))
    >>> [(part.name, part.size, part.task_name) for part in partition_client(whole, Iid(2), 0)]
    [('a-0', 2, 'a'), ('a-1', 2, 'a')]
    """
    if client.tasks is not None or client.of is not None:
        raise DataError(
            f"client {client.owner!r} has several tasks, and its rows cannot be shared out; make "
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
