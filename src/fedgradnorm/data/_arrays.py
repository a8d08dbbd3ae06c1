"""Your own arrays as a client, with seeded hold-out shares and standardisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from fedgradnorm._client import SPLITS, Client
from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm.data._scaling import Scaling
from fedgradnorm.tasks._task import Task

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from fedgradnorm._client import Split

    Pair = tuple[Tensor, Tensor]

Standardize = bool | Literal["inputs", "targets"]


@dataclass(frozen=True)
class Loaded:
    """A client made from your own data, and what was learned about that data on the way.

    The client carries ``scaling`` and ``label_names`` too, so a run's ``predict`` takes raw values.
    ``label_names[i]`` is the label that class ``i`` had in the file; ``dropped`` gives the data
    rows (counted from 1, header not counted) left out of each file under ``on_bad="drop"``.
    """

    client: Client
    scaling: Scaling | None = None
    label_names: tuple[str, ...] | None = None
    dropped: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def client_from_arrays(
    name: str,
    task: Task,
    train: Split,
    *,
    validation: Split | None = None,
    test: Split | None = None,
    validation_share: float = 0.0,
    test_share: float = 0.0,
    standardize: Standardize = False,
    seed: int = 0,
) -> Loaded:
    """A client from arrays or tensors ``(x, y)``.

    ``validation_share`` and ``test_share`` hold out that part of the training rows, drawn with
    ``seed``; the rows keep their order. ``standardize`` is learned on the rows that remain for
    training: True means inputs, and targets of a regression; ``"inputs"`` or ``"targets"`` one.

    >>> from fedgradnorm import regression
    >>> x = np.arange(20.0).reshape(10, 2)
    >>> loaded = client_from_arrays("a", regression(1), (x, x[:, 0]), test_share=0.2)
    >>> loaded.client.size, len(loaded.client.test[0])
    (8, 2)
    """
    inputs, targets = _sides(name, task, standardize)
    client = Client(name, task, train, test, validation)
    client = _hold_out(client, {"validation": validation_share, "test": test_share}, seed)
    if not (inputs or targets):
        return Loaded(client)
    plain = isinstance(client.train[0], torch.Tensor)
    if inputs and not plain:
        raise ConfigError(
            f"client {name!r}: named inputs and sequences are not standardised; scale them "
            "beforehand, and use standardize='targets' for the targets"
        )
    try:
        rows = client.train[0] if plain else torch.zeros(client.size, 1)
        scaling = Scaling.fit(rows, client.train[1], inputs=inputs, targets=targets)
    except DataError as error:
        raise DataError(f"client {name!r}, training data: {error}") from error
    scaled = {
        split: (
            scaling.scale_inputs(pair[0]) if plain else pair[0],
            scaling.scale_targets(pair[1]),
        )
        for split in SPLITS
        if (pair := getattr(client, split)) is not None
    }
    return Loaded(replace(with_splits(client, scaled), scaling=scaling), scaling)


def rows_of(pair: Split, rows: NDArray[Any]) -> Pair:
    """Some rows of a checked split."""
    index = torch.from_numpy(rows)
    x, y = pair
    return x[index], torch.as_tensor(y)[index]


def with_splits(client: Client, splits: Mapping[str, Pair]) -> Client:
    """The client with some of its splits replaced."""
    new = {split: splits.get(split, getattr(client, split)) for split in SPLITS}
    return replace(client, train=new["train"], validation=new["validation"], test=new["test"])


def random_generator(seed: int) -> np.random.Generator:
    """NumPy's generator, or a ConfigError for what cannot be a seed."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ConfigError(f"seed must be a whole number of at least 0, not {seed!r}")
    return np.random.default_rng(int(seed))


def _sides(name: str, task: Task, standardize: Standardize) -> tuple[bool, bool]:
    """Whether inputs and whether targets are to be standardised."""
    regression = task.has_real_targets
    if standardize is True or standardize is False:
        return standardize, standardize and regression
    if standardize not in ("inputs", "targets"):
        raise ConfigError(
            f"client {name!r}: standardize must be True, False, 'inputs' or 'targets', "
            f"not {standardize!r}"
        )
    if standardize == "targets" and not regression:
        raise ConfigError(
            f"client {name!r}: class labels cannot be standardised; use standardize='inputs'"
        )
    return standardize == "inputs", standardize == "targets"


def _hold_out(client: Client, shares: Mapping[str, float], seed: int) -> Client:
    """Move a seeded share of the training rows into each split that asks for one."""
    order = random_generator(seed).permutation(client.size)
    moved: dict[str, Pair] = {}
    start = 0
    for split, share in shares.items():
        count = _held_out_rows(client, split, share)
        if count:
            moved[split] = rows_of(client.train, np.sort(order[start : start + count]))
            start += count
    if not moved:
        return client
    if start >= client.size:
        raise DataError(
            f"client {client.name!r}: holding out {start} of {client.size} rows leaves none to "
            "train on; lower validation_share or test_share"
        )
    moved["train"] = rows_of(client.train, np.sort(order[start:]))
    return with_splits(client, moved)


def _held_out_rows(client: Client, split: str, share: float) -> int:
    where = f"client {client.name!r}: {split}_share"
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < 1:
        raise ConfigError(f"{where} must be at least 0 and below 1, not {share!r}")
    if share == 0:
        return 0
    if getattr(client, split) is not None:
        raise ConfigError(f"{where} and {split} data are both given; choose one")
    count = round(share * client.size)
    if count == 0:
        raise DataError(f"{where} {share} of {client.size} rows is no row; raise it or set it to 0")
    return count
