"""A client: who it is, its task and its data, checked once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedgradnorm._columns import check_names, is_frame, names_of, picked
from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm._privacy.terms import Privacy, privacy_of
from fedgradnorm.tasks._task import Task

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any] | Tensor
    Split = tuple[Array, Array]


class Scaler(Protocol):
    """Turns raw inputs into what the client was trained on, and its outputs back."""

    def scale_inputs(self, x: Tensor) -> Tensor:
        """Raw inputs as the network saw them."""

    def restore_targets(self, output: Tensor) -> Tensor:
        """Outputs in the units of the raw targets."""

    def state_dict(self) -> dict[str, Tensor]:
        """The scaler as tensors, saved with the run."""


SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Client:
    """One participant: a name, a task, and its own data.

    Each split is a pair ``(x, y)`` of arrays or tensors with one row per sample: labels
    ``0 .. classes - 1`` for classification (0 and 1 for binary), one row of ``outputs`` numbers
    for regression, one row of zeros and ones for multilabel.
    ``head`` is any module from the representation to the task's outputs; by default one linear
    layer. ``scaling`` is what was already done to the data, so that predictions take raw values,
    ``labels`` are the classes' names and ``columns`` those of the inputs: by default those of the
    training data, where it comes as a DataFrame. Other DataFrames are then read by these names.
    ``privacy`` is what the client promises its training rows, see :class:`fedgradnorm.Privacy`.
    The data is checked here, once, so that training never meets a bad row.

    >>> import numpy as np
    >>> from fedgradnorm import Client, classification
    >>> x = np.random.default_rng(0).normal(size=(8, 4))
    >>> Client("a", classification(2), train=(x, np.arange(8) % 2)).size
    8
    """

    name: str
    task: Task
    train: Split
    test: Split | None = None
    validation: Split | None = None
    head: nn.Module | None = None
    scaling: Scaler | None = None
    labels: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    privacy: Privacy | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise DataError(f"a client's name must be a non-empty text, not {self.name!r}")
        if not isinstance(self.task, Task):
            raise DataError(
                f"client {self.name!r}: task must be classification(...), binary(...), "
                f"multilabel(...) or regression(...), not {self.task!r}"
            )
        if self.columns is None:
            object.__setattr__(self, "columns", _training_columns(self))
        for split in SPLITS:
            pair = getattr(self, split)
            if pair is not None or split == "train":
                object.__setattr__(self, split, _checked(self, split, pair))
        _check_rows(self)
        if self.size < (self.task.classes or 0):
            raise DataError(
                f"client {self.name!r}: {self.task.classes} classes but only {self.size} training "
                "rows; give it more data or fewer classes"
            )
        _check_labels(self)
        object.__setattr__(self, "task", _learned(self))
        object.__setattr__(self, "privacy", _privacy(self))

    @property
    def size(self) -> int:
        """Number of training rows."""
        return len(self.train[0])

    @property
    def task_name(self) -> str:
        """The task's name, or the client's own where the task has none."""
        return self.task.name or self.name

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
        return client.task.learned(torch.as_tensor(client.train[1]))
    except ConfigError as error:
        raise ConfigError(f"client {client.name!r}, task {client.task_name!r}: {error}") from error


def _privacy(client: Client) -> Privacy | None:
    """What it promises; a table is read."""
    try:
        found: Privacy | None = privacy_of(client.privacy)
        return found
    except ConfigError as error:
        raise ConfigError(f"client {client.name!r}: {error}") from None


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
    _finite(where, y, "y")
    return x, client.task.target(where, y)


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
