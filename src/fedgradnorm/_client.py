"""A client: who it is, its task or tasks and its data, checked once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, overload

import numpy as np
import torch
from torch import Tensor, nn

from fedgradnorm._columns import check_names, is_frame, names_of, picked
from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm._task_rows import task_rows
from fedgradnorm.tasks._missing import labelled, numbers_with_gaps
from fedgradnorm.tasks._task import Task

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any] | Tensor
    Split = tuple[Array, Array]
    Splits = tuple[Array, Mapping[str, Array]]


class Scaler(Protocol):
    """Turns raw inputs into what the client was trained on, and its outputs back."""

    def scale_inputs(self, x: Tensor) -> Tensor:
        """Raw inputs as the network saw them."""

    def restore_targets(self, output: Tensor) -> Tensor:
        """Outputs in the units of the raw targets."""

    def state_dict(self) -> dict[str, Tensor]:
        """The scaler as tensors, saved with the run."""


SPLITS = ("train", "validation", "test")
_NONE: Any = None  # what a client with several tasks has as its one task


@dataclass(frozen=True)
class Client:
    """One participant: a name, a task, and its own data.

    Each split is a pair ``(x, y)`` of arrays or tensors with one row per sample: labels
    ``0 .. classes - 1`` for classification (0 and 1 for binary), one row of ``outputs`` numbers
    for regression, one row of zeros and ones for multilabel, and so on at each position of a task
    with a shape. NaN or None in ``y`` is a label that nobody gave: it counts for no loss and no
    metric. A client with one task learns from its labelled rows alone.

    ``head`` is any module from the representation to the task's outputs; by default one linear
    layer. ``scaling`` is what was already done to the data, so that predictions take raw values,
    ``labels`` are the classes' names and ``columns`` those of the inputs: by default those of the
    training data, where it comes as a DataFrame. Other DataFrames are then read by these names.
    The data is checked here, once, so that training never meets a bad row.

    With ``tasks``, a table of several by name, ``y`` is a table of targets by these names, and so
    are ``head``, ``labels`` and ``scaling`` where they are given. Such a client trains as one
    of its :attr:`rows` for each task, called ``name/task``: all read the same rows in every batch.

    >>> import numpy as np
    >>> from fedgradnorm import Client, classification, regression
    >>> x = np.random.default_rng(0).normal(size=(8, 4))
    >>> Client("a", classification(2), train=(x, np.arange(8) % 2)).size
    8
    >>> tasks = {"odd": classification(2), "sum": regression(1)}
    >>> both = Client("b", tasks=tasks, train=(x, {"odd": np.arange(8) % 2, "sum": x.sum(1)}))
    >>> [row.name for row in both.rows]
    ['b/odd', 'b/sum']
    """

    name: str
    task: Task = _NONE
    train: Split = _NONE
    test: Split | None = None
    validation: Split | None = None
    head: nn.Module | None = None
    scaling: Scaler | None = None
    labels: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    tasks: Mapping[str, Task] | None = None
    of: str | None = None

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            name: str,
            task: Task,
            train: Split,
            test: Split | None = None,
            validation: Split | None = None,
            head: nn.Module | None = None,
            scaling: Scaler | None = None,
            labels: tuple[str, ...] | None = None,
            columns: tuple[str, ...] | None = None,
            *,
            of: str | None = None,
        ) -> None: ...
        @overload
        def __init__(
            self,
            name: str,
            *,
            tasks: Mapping[str, Task],
            train: Splits,
            test: Splits | None = None,
            validation: Splits | None = None,
            head: Mapping[str, nn.Module] | None = None,
            scaling: Scaler | Mapping[str, Scaler] | None = None,
            labels: Mapping[str, tuple[str, ...]] | None = None,
            columns: tuple[str, ...] | None = None,
        ) -> None: ...
        def __init__(self, *args: Any, **options: Any) -> None: ...

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise DataError(f"a client's name must be a non-empty text, not {self.name!r}")
        if self.columns is None:
            object.__setattr__(self, "columns", _training_columns(self))
        if self.tasks is not None:
            object.__setattr__(self, "_rows", _several(self))
            return
        if not isinstance(self.task, Task):
            raise DataError(
                f"client {self.name!r}: task must be classification(...), binary(...), "
                f"multilabel(...) or regression(...), not {self.task!r}"
            )
        for split in SPLITS:
            pair = getattr(self, split)
            if pair is not None or split == "train":
                object.__setattr__(self, split, _checked(self, split, pair))
        _check_rows(self)
        if self.size < (self.task.classes or 0) and not self.task.shape:
            raise DataError(
                f"client {self.name!r}: {self.task.classes} classes but only {self.size} training "
                "rows; give it more data or fewer classes"
            )
        _check_labels(self)
        object.__setattr__(self, "task", _learned(self))

    @property
    def rows(self) -> tuple[Client, ...]:
        """The client for each of its tasks: itself, or one for each of several."""
        if self.tasks is None:
            return (self,)
        found: tuple[Client, ...] = vars(self)["_rows"]
        return found

    @property
    def owner(self) -> str:
        """Who it is that takes part, also where this is the row of one of several tasks."""
        return self.of or self.name

    @property
    def size(self) -> int:
        """Number of labelled training rows."""
        return int(labelled(torch.as_tensor(self.train[1])).sum())

    @property
    def drawn(self) -> int:
        """Number of training rows that batches are drawn from: see :meth:`learns_from`."""
        return len(self.train[0]) if self.of else self.size

    def learns_from(self) -> tuple[Tensor, Tensor]:
        """The training rows that batches are drawn from.

        Of a client with one task they are the labelled ones. Several tasks read the same batches,
        so there each leaves out what it has no label for.
        """
        x, y = (torch.as_tensor(part) for part in self.train)
        there = labelled(y)
        if self.of or bool(there.all()):
            return x, y
        return x[there], self.task.whole(y[there])

    @property
    def task_name(self) -> str:
        """The task's name; without one the client's own, or that among its several tasks."""
        own = self.name if self.of is None else self.name.removeprefix(f"{self.of}/")
        return self.task.name or own

    def fingerprint(self) -> str:
        """A hash of all splits: kinds of numbers, shapes and values.

        Stored with every run, so that a resumed run goes on with the same data, and so that only
        runs on the same data are compared.
        """
        digest = hashlib.blake2b(digest_size=16)
        for split in SPLITS:
            for part in getattr(self, split) or ():
                tensor = torch.as_tensor(part).contiguous()
                digest.update(f"{split} {tensor.dtype} {tuple(tensor.shape)} ".encode())
                digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()


def _several(client: Client) -> tuple[Client, ...]:
    """A client for each of several tasks, which hold the very same inputs."""
    if vars(client)["task"] is not None or client.of is not None:
        raise DataError(f"client {client.name!r}: task and tasks are both given; choose one")
    splits = {split: getattr(client, split) for split in SPLITS}
    for split, pair in splits.items():
        if pair is not None and isinstance(pair, (tuple, list)) and len(pair) == 2:
            where = f"client {client.name!r}, {split} data"
            splits[split] = as_tensor(where, picked(pair[0], client.columns, where), "x"), pair[1]
    given = {key: getattr(client, key) for key in ("head", "scaling", "labels")}
    assert client.tasks is not None
    return tuple(
        Client(**parts, columns=client.columns, of=client.name)
        for parts in task_rows(client.name, client.tasks, splits, given, as_tensor)
    )


def _check_labels(client: Client) -> None:
    """A DataError unless there is a name for each class."""
    count = client.task.label_count
    if (
        client.labels is not None
        and not client.task.has_real_targets
        and len(client.labels) != count
    ):
        raise DataError(
            f"client {client.name!r}: {len(client.labels)} labels for {client.task.words()}; give "
            "a name for each"
        )


def _learned(client: Client) -> Task:
    """The task with what it learns on the training targets."""
    try:
        return client.task.learned(client.learns_from()[1])
    except ConfigError as error:
        raise ConfigError(f"client {client.name!r}, task {client.task_name!r}: {error}") from error


def _training_columns(client: Client) -> tuple[str, ...] | None:
    pair = client.train
    if not isinstance(pair, (tuple, list)) or not pair or not is_frame(pair[0]):
        return None
    return names_of(pair[0], f"client {client.name!r}, train data")


def _check_rows(client: Client) -> None:
    """A DataError unless the rows of all splits look alike, and ``columns`` names their parts."""
    expected = tuple(client.train[0].shape[1:])
    if client.columns is not None:
        names = check_names(client.columns, expected, f"client {client.name!r}")
        object.__setattr__(client, "columns", names)
    for split in SPLITS[1:]:
        pair = getattr(client, split)
        if pair is not None and tuple(pair[0].shape[1:]) != expected:
            raise DataError(
                f"client {client.name!r}: a row of {split} x has shape "
                f"{tuple(pair[0].shape[1:])}, a training row {expected}; they must be equal"
            )


def _checked(client: Client, split: str, pair: Any) -> tuple[Tensor, Tensor]:
    """The split as tensors, or a DataError that names the client, the split and the value."""
    where = f"client {client.name!r}, {split} data"
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise DataError(f"{where}: expected a pair (x, y), not {type(pair).__name__}")
    x, y = picked(pair[0], client.columns, where), pair[1]
    x, y = (as_tensor(where, part, name) for part, name in zip((x, y), "xy", strict=True))
    if x.ndim == 0 or len(x) == 0:
        raise DataError(f"{where}: x is empty; a client needs at least one row")
    if y.ndim == 0 or len(x) != len(y):
        rows = 0 if y.ndim == 0 else len(y)
        raise DataError(f"{where}: x has {len(x)} rows but y has {rows}; they must be equal")
    _finite(where, x, "x")
    _finite(where, y.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf), "y")
    y = client.task.target(where, y)
    if not labelled(y).any():
        raise DataError(
            f"{where}: none of its {len(y)} rows has a label; give it some, or leave "
            f"{'the client' if split == 'train' else split} out"
        )
    return x, y


def as_tensor(where: str, values: Any, name: str) -> Tensor:
    """``values`` as a tensor on the CPU, or a DataError unless they are numbers of one shape."""
    if type(values) is Tensor and values.device.type == "cpu" and not values.requires_grad:
        tensor = values  # itself, so that clients given one test set hold one
    elif isinstance(values, Tensor):
        tensor = values.detach().cpu()
    else:
        tensor = torch.from_numpy(_array(where, values, name))
    if tensor.is_complex():
        raise DataError(
            f"{where}: {name} holds complex numbers; give real and imaginary part as two columns"
        )
    if tensor.dtype in (torch.uint8, torch.bool, torch.float16):
        tensor = tensor.to(torch.float32)
    return tensor if tensor.is_floating_point() else tensor.to(torch.int64)


def _array(where: str, values: Any, name: str) -> NDArray[Any]:
    """A copy of ``values`` that torch can take: native byte order, at most 64 bits a number."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DataError(f"{where}: the rows of {name} differ in shape") from error
    if array.dtype.kind == "O" and name == "y":
        array = numbers_with_gaps(array)
    if array.dtype.kind not in "fiubc":
        raise DataError(f"{where}: {name} must hold numbers, not {array.dtype}")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    return array.astype(array.dtype.newbyteorder("="), order="C")


def _finite(where: str, values: Tensor, name: str) -> None:
    # A finite sum has finite parts. Asking so needs no table as large as the data, which costs
    # memory where a thousand clients hold one test set and each is checked.
    if torch.isfinite(values.sum()):
        return
    bad = ~torch.isfinite(values)
    if bad.any():
        place = tuple(bad.nonzero()[0].tolist())
        raise DataError(
            f"{where}: {name}{list(place)} is {values[place].item()}; "
            "remove or fill the rows that are not finite"
        )
