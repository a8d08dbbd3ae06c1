"""What one client learns: its loss and its metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedgradnorm.errors import ConfigError

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> one loss per row."""

Metric = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) of a whole split -> one number."""


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of each row."""
    return F.cross_entropy(output, target, reduction="none")


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Squared error of each row, averaged over the row's outputs."""
    return (output - target).square().mean(dim=1)


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Share of rows whose largest output is the target class."""
    return (output.argmax(dim=1) == target).to(output.dtype).mean()


def mean_absolute_error(output: Tensor, target: Tensor) -> Tensor:
    """Mean absolute error over rows and outputs."""
    return (output - target).abs().mean()


def r_squared(output: Tensor, target: Tensor) -> Tensor:
    """Share of the targets' variance explained: 1 is perfect, 0 is the mean's own score."""
    spread = (target - target.mean(dim=0)).square().sum()
    return 1 - (output - target).square().sum() / spread.clamp_min(torch.finfo(output.dtype).tiny)


@dataclass(frozen=True)
class Task:
    """A client's task. Make one with :func:`classification` or :func:`regression`.

    ``loss_function`` gives one loss per row; a client's loss F_i is ``loss_scale`` times the mean
    over its rows. ``name`` lets several clients share a task (see ``key="task"`` in ``train``).
    """

    kind: Literal["classification", "regression"]
    outputs: int
    loss_function: LossFunction
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    loss_scale: float = 1.0
    name: str | None = None

    def __post_init__(self) -> None:
        least = 2 if self.kind == "classification" else 1
        if not isinstance(self.outputs, int) or self.outputs < least:
            raise ConfigError(
                f"a {self.kind} task needs at least {least} outputs, not {self.outputs!r}"
            )
        if not 0 < self.loss_scale < float("inf"):
            raise ConfigError(f"loss_scale must be a positive number, not {self.loss_scale!r}")

    def losses(self, output: Tensor, target: Tensor) -> Tensor:
        """One loss per row."""
        return self.loss_scale * self.loss_function(output, target)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """F_i: the mean loss over the rows."""
        return self.losses(output, target).mean()

    def predict(self, output: Tensor) -> Tensor:
        """What a user wants to see: the class of each row, or the values themselves."""
        return output.argmax(dim=1) if self.kind == "classification" else output


def classification(
    classes: int,
    *,
    loss: LossFunction | None = None,
    metrics: Mapping[str, Metric] | None = None,
    loss_scale: float = 1.0,
    name: str | None = None,
) -> Task:
    """One of ``classes`` labels 0 .. classes - 1 per row; cross-entropy unless ``loss`` is given.

    >>> classification(3).outputs
    3
    """
    extra = dict(metrics or {})
    return Task(
        "classification",
        classes,
        loss or cross_entropy,
        {"accuracy": accuracy, **extra},
        loss_scale,
        name,
    )


def regression(
    outputs: int = 1,
    *,
    loss: LossFunction | None = None,
    metrics: Mapping[str, Metric] | None = None,
    loss_scale: float = 1.0,
    name: str | None = None,
) -> Task:
    """``outputs`` real numbers per row; mean squared error unless ``loss`` is given.

    >>> sorted(regression(10).metrics)
    ['mae', 'r2']
    """
    extra = dict(metrics or {})
    return Task(
        "regression",
        outputs,
        loss or squared_error,
        {"mae": mean_absolute_error, "r2": r_squared, **extra},
        loss_scale,
        name,
    )
