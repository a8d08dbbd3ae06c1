"""Your own arrays as a client, with seeded hold-out shares and standardization."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from fedgradnorm._checks import number, whole
from fedgradnorm._client import SPLITS, Client
from fedgradnorm._errors import ConfigError, DataError, choose
from fedgradnorm.data._files.encoding import Encoding
from fedgradnorm.data._scaling import Scaling, moments_with_gaps
from fedgradnorm.models._input_rows import Inputs
from fedgradnorm.models._streamed import Streamed, all_targets, changed, subset
from fedgradnorm.tasks._task import Task

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from fedgradnorm._client import Split

    Pair = tuple[Any, Any]


Standardize = bool | Literal["inputs", "targets"] | Mapping[str, Any]


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
) -> Client:
    """Make a client from arrays or tensors ``(x, y)``; it can hold out and standardize examples.

    ``validation_share`` and ``test_share`` are the shares of the training examples to hold out,
    drawn with ``seed``; the examples keep their order. With ``standardize=True``, inputs and
    regression targets are scaled with statistics of the remaining training examples; with
    ``"inputs"`` or ``"targets"``, only one of them. A client with ``privacy`` needs public
    constants instead: ``{"mean": [...], "std": [...]}``, and for a regression's targets
    ``target_mean`` and ``target_std``. The client remembers its ``scaling``, so ``predict`` takes
    raw values.

    >>> from fedgradnorm import regression
    >>> x = np.arange(20.0).reshape(10, 2)
    >>> client = client_from_arrays("a", regression(1), (x, x[:, 0]), test_share=0.2)
    >>> client.size, len(client.test[0])
    (8, 2)
    """
    inputs, targets = _sides(name, task, standardize)
    client = Client(name, task, train, test, validation)
    there = [split for split in SPLITS if getattr(client, split) is not None]
    shares = {"validation": validation_share, "test": test_share}
    drawn = held_out(name, len(client.train[0]), shares, there, seed)
    if drawn:
        moved = {split: rows_of(client.train, rows) for split, rows in drawn.items()}
        client = with_splits(client, moved)
    if not (inputs or targets):
        return client
    x = client.train[0]
    plain = isinstance(x.first if isinstance(x, Streamed) else x, torch.Tensor)
    if inputs and not plain:
        raise ConfigError(
            f"client {name!r}: named inputs and sequences are not standardized where they are "
            "arrays; scale them beforehand, and use standardize='targets' for the targets"
        )
    try:
        rows = client.train[0] if plain else torch.zeros(len(client.train[0]), 1)
        y = client.train[1] if plain else all_targets(client.train[1])
        if isinstance(standardize, Mapping):
            scaling = Scaling.constant(standardize)
        else:
            scaling = Scaling.fit(rows, y, inputs=inputs, targets=targets)
    except DataError as error:
        raise DataError(f"client {name!r}, training data: {error}") from error
    scaled: dict[str, Any] = {}
    for split in SPLITS:
        if (pair := getattr(client, split)) is None:
            continue
        x, y = pair
        if isinstance(x, Streamed):  # a batch will be scaled when it is read
            of_x = scaling.scale_inputs if plain and scaling.input_mean is not None else None
            of_y = scaling.scale_targets if scaling.target_mean is not None else None
            scaled[split] = changed(x, y, of_x, of_y)
        else:
            scaled[split] = scaling.scale_inputs(x) if plain else x, scaling.scale_targets(y)
    return replace(with_splits(client, scaled), scaling=scaling)


def client_of(name: str, task: Task, pairs: Mapping[str, Any], **more: Any) -> Client:
    """A client from its splits by their names."""
    return Client(name, task, pairs["train"], pairs.get("test"), pairs.get("validation"), **more)


def single_precision(pair: Split) -> Pair:
    """A checked split with its fractions in float32."""

    def single(values: Any) -> Any:
        if not isinstance(values, torch.Tensor):
            return values.to("cpu", torch.float32)
        return values.float() if values.is_floating_point() else values

    x, y = pair
    if isinstance(x, Streamed):
        return changed(x, y, lambda part: single(part).float(), single)
    return single(x), single(y)


def rows_of(pair: Split, rows: NDArray[Any]) -> Pair:
    index = torch.from_numpy(rows)
    x, y = pair
    if isinstance(x, Streamed):
        return subset(x, y, rows)
    return x[index], torch.as_tensor(y)[index]


def with_splits(client: Client, splits: Mapping[str, tuple[Inputs, Tensor]]) -> Client:
    new = {split: splits.get(split, getattr(client, split)) for split in SPLITS}
    return replace(client, train=new["train"], validation=new["validation"], test=new["test"])


def random_generator(seed: int) -> np.random.Generator:
    """NumPy's generator, or a ConfigError for what cannot be a seed."""
    return np.random.default_rng(whole("seed", seed, 0))


def _sides(name: str, task: Task, standardize: Standardize) -> tuple[bool, bool]:
    regression = task.has_real_targets
    if isinstance(standardize, Mapping):
        if "target_mean" in standardize and not regression:
            raise ConfigError(f"client {name!r}: class labels cannot be standardized")
        return "mean" in standardize, "target_mean" in standardize
    if standardize is True or standardize is False:
        return standardize, standardize and regression
    if standardize not in ("inputs", "targets"):
        raise ConfigError(
            f"client {name!r}: standardize must be True, False, 'inputs' or 'targets', not "
            f"{standardize!r}; 'pooled' needs several clients: [[data.clients]] of a config"
        )
    if standardize == "targets" and not regression:
        raise ConfigError(
            f"client {name!r}: class labels cannot be standardized; use standardize='inputs'"
        )
    return standardize == "inputs", standardize == "targets"


def held_out(
    name: str, size: int, shares: Mapping[str, float], there: Collection[str], seed: int
) -> dict[str, NDArray[np.int64]]:
    """Which of ``size`` training rows go to each split that asks for some; empty if none does.

    Rows keep their order. ``there`` are splits that have rows of their own already.
    """
    order = random_generator(seed).permutation(size)
    moved: dict[str, NDArray[np.int64]] = {}
    start = 0
    for split, given in shares.items():
        where = f"client {name!r}: {split}_share"
        share = number(where, given)
        if not 0 <= share < 1:
            raise ConfigError(f"{where} must be at least 0 and below 1, not {share!r}")
        if share == 0:
            continue
        if split in there:
            raise ConfigError(f"{where} and {split} data are both given; choose one")
        count = round(share * size)
        if count == 0:
            raise DataError(f"{where} {share} of {size} rows selects none; raise it or set it to 0")
        moved[split] = np.sort(order[start : start + count])
        start += count
    if moved and start >= size:
        raise DataError(
            f"client {name!r}: holding out {start} of {size} rows leaves none to train on; "
            "lower validation_share or test_share"
        )
    return {**moved, "train": np.sort(order[start:])} if moved else {}


def split_shares(who: str, test_share: float, validation_share: float) -> dict[str, float]:
    """The share of each split, checked."""
    test = number(f"{who}: test_share", test_share)
    validation = number(f"{who}: validation_share", validation_share)
    if not (test >= 0 and validation >= 0 and test + validation < 1):
        raise ConfigError(
            f"{who}: test_share {test!r} and validation_share {validation!r} must be 0 or more and "
            "leave a part for training"
        )
    return {"train": 1 - (validation + test), "validation": validation, "test": test}


How = Literal["pooled", "own", "none"]


def scaled(clients: Sequence[Client], how: How) -> list[Client]:
    """The clients with inputs of mean 0 and deviation 1, in single precision.

    ``"pooled"`` learns means and deviations on the training rows of all of them together, so that
    a number means the same to each; ``"own"`` on each client's own; ``"none"`` changes nothing.
    """
    choose(how, ("pooled", "own", "none"), "scaling")
    if how == "none":
        return [_rescaled(client, None) for client in clients]
    if how == "own":
        return [_rescaled(client, Scaling.fit(*client.train)) for client in clients]
    return standardized_together(clients)


def standardized_together(clients: Sequence[Client]) -> list[Client]:
    """Clients with inputs standardized by the training rows of all of them.

    A column that a client does not have counts for nothing, and is 0 there. Targets stay as each
    client's own scaling left them.
    """
    tables = [client.train[0] for client in clients]
    for client, x in zip(clients, tables, strict=True):
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            raise ConfigError(
                f"client {client.name!r}: standardize = 'pooled' is for one table, image or signal "
                "of numbers in memory; use standardize = true"
            )
        if x.shape[1:] != tables[0].shape[1:]:
            raise DataError(
                f"client {client.name!r}: its inputs have shape {tuple(x.shape[1:])} a row, those "
                f"of {clients[0].name!r} {tuple(tables[0].shape[1:])}; standardize = 'pooled' "
                "needs the same inputs at all clients"
            )
    # Which numbers of a row come from columns that a client does not have.
    shape = tables[0].shape[1:]
    gone = torch.zeros(len(clients), shape[0], *[1] * (len(shape) - 1), dtype=torch.bool)
    for own, client in zip(gone, clients, strict=True):
        if isinstance(client.encoding, Encoding):
            columns = client.encoding.columns
            own[:] = torch.tensor([column.absent for column in columns for _ in column.names()])
    unknown = gone & ~gone.all(0)  # at others there are values
    known = [torch.where(own, torch.nan, x) for own, x in zip(unknown, tables, strict=True)]
    mean, deviation = moments_with_gaps(torch.cat(known), "x")
    return [
        _rescaled(client, Scaling(mean.where(~own, 0.0), deviation.where(~own, 1.0)))
        for client, own in zip(clients, gone, strict=True)
    ]


def _rescaled(client: Client, inputs: Scaling | None) -> Client:
    """The client with its inputs scaled in this way, in single precision."""

    def merged(own: Any) -> Any:
        if own is None or inputs is None:
            return own or inputs
        return replace(own, input_mean=inputs.input_mean, input_std=inputs.input_std)

    splits = {}
    for split in SPLITS:
        if (pair := getattr(client, split)) is not None:
            x = torch.as_tensor(pair[0])
            x = x if inputs is None else inputs.scale_inputs(x)
            splits[split] = x.float(), pair[1]
    own: Any = client.scaling  # of several tasks, a table by task
    if client.tasks is None:
        scaling = merged(own)
    else:
        scaling = {key: merged((own or {}).get(key)) for key in client.tasks}
    return replace(with_splits(client, splits), scaling=scaling)


def chosen(what: str, given: Any, known: Sequence[Any]) -> list[Any]:
    """Some of what a data set has, by name or number; None means all."""
    names = [given] if isinstance(given, str) else known if given is None else given
    if not isinstance(names, Sequence) or not names:
        raise ConfigError(
            f"{what} must be a list of at least one, from {known[0]!r} to {known[-1]!r}, "
            f"not {given!r}"
        )
    for one in names:
        if isinstance(known[0], str):
            choose(str(one), known, what.removesuffix("s"))
        elif isinstance(one, bool | float) or one not in known:
            raise ConfigError(f"{what}: {one!r} is none of {known[0]} .. {known[-1]}")
    if len(set(names)) < len(names):
        raise ConfigError(f"{what}: {list(names)} lists one twice; name each once")
    return list(names)
