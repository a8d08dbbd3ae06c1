"""What one client learns: its loss and its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedgradnorm._errors import ConfigError
from fedgradnorm.tasks._measures import (
    LossFunction,
    Metric,
    ModuleLoss,
    accuracy,
    cross_entropy,
    mean_absolute_error,
    r_squared,
    squared_error,
)

LOSSES: dict[str, LossFunction] = {
    "classification": cross_entropy,
    "regression": squared_error,
}
"""The loss of a task that is given none."""


@dataclass(frozen=True)
class Task:
    """A client's task. Make one with :func:`classification` or :func:`regression`.

    ``loss_function`` gives one loss per row, or one number for all rows that it is given; a
    client's loss F_i is ``loss_scale`` times the mean over its rows, or times that number.
    ``name`` lets several clients share a task (see ``key``, ``heads`` in ``train``).
    """

    kind: Literal["classification", "regression"]
    outputs: int
    loss_function: LossFunction
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    loss_scale: float = 1.0
    name: str | None = None

    def __post_init__(self) -> None:
        least = 2 if self.kind == "classification" else 1
        whole = isinstance(self.outputs, int) and not isinstance(self.outputs, bool)
        if not whole or self.outputs < least:
            raise ConfigError(
                f"a {self.kind} task needs at least {least} outputs, not {self.outputs!r}"
            )
        if not _is_number(self.loss_scale) or not 0 < self.loss_scale < float("inf"):
            raise ConfigError(f"loss_scale must be a positive number, not {self.loss_scale!r}")
        if not callable(self.loss_function):
            raise ConfigError(
                "loss must be a function (outputs, targets) -> one loss per row, or one number, "
                f"not {self.loss_function!r}"
            )
        if isinstance(self.loss_function, nn.Module):
            object.__setattr__(self, "loss_function", ModuleLoss(self.loss_function))
        if self.name is not None and not isinstance(self.name, str):
            raise ConfigError(f"a task's name must be a text, not {self.name!r}")
        _check_metrics(self.metrics)

    @property
    def has_own_loss(self) -> bool:
        """Whether the loss is not the usual one of its kind, and so may be wrong."""
        return self.loss_function is not LOSSES[self.kind]

    def losses(self, output: Tensor, target: Tensor) -> Tensor:
        """One loss per row, or the one number that the loss gives for all of them."""
        return self.loss_scale * self.loss_function(output, target)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """F_i: the mean loss over the rows."""
        return self.losses(output, target).mean()

    def joins_rows(self, target: Tensor) -> bool:
        """Whether the loss gives one number for all rows, tried on the first of ``target``.

        Only rows of one client may then be in one call.
        """
        if not self.has_own_loss:
            return False
        some = target[:3].cpu()
        output = torch.zeros(len(some), self.outputs, dtype=torch.get_default_dtype())
        some = some.to(output) if some.is_floating_point() else some
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            return self.losses(output, some).ndim == 0

    def check_loss(self, output: Tensor, target: Tensor) -> None:
        """A ConfigError unless the loss gives one number, or one a row; ``output`` is of some."""
        rows = len(output)
        try:
            losses = self.loss_function(output, target)
        except Exception as error:  # code of others may raise anything
            raise ConfigError(f"its loss fails: {_reason(error)}; correct the loss") from error
        if not isinstance(losses, Tensor) or tuple(losses.shape) not in ((), (rows,)):
            raise ConfigError(
                f"its loss returns {_kind(losses)} for {rows} rows; it must return one number a "
                'row (use reduction="none", and .mean(dim=1) where a row has several), or their '
                "mean"
            )

    def measure(self, output: Tensor, target: Tensor) -> dict[str, float]:
        """The loss and every metric of a split; a ConfigError names the one that fails."""
        values: dict[str, Any] = {"loss": self.loss(output, target)}
        for name, metric in self.metrics.items():
            try:
                values[name] = metric(output, target)
            except Exception as error:  # code of others may raise anything
                raise ConfigError(
                    f"metric {name!r} fails: {_reason(error)}; correct the metric"
                ) from error
        return {name: _one_number(name, value) for name, value in values.items()}

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
    return Task(
        "classification",
        classes,
        cross_entropy if loss is None else loss,
        {"accuracy": accuracy, **_check_metrics(metrics)},
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
    return Task(
        "regression",
        outputs,
        squared_error if loss is None else loss,
        {"mae": mean_absolute_error, "r2": r_squared, **_check_metrics(metrics)},
        loss_scale,
        name,
    )


def _check_metrics(metrics: Any) -> Mapping[str, Metric]:
    """The table of metrics; a ConfigError unless it holds functions by name."""
    found = {} if metrics is None else metrics
    if not isinstance(found, Mapping) or not all(map(callable, found.values())):
        raise ConfigError(
            "metrics must be functions by name, such as {'bias': lambda output, target: (output - "
            f"target).mean()}}, not {metrics!r}; accuracy (classification), mae and r2 "
            "(regression) are always there"
        )
    for name in found:
        if not isinstance(name, str) or not name.strip() or set(name) & set(',"\r\n'):
            raise ConfigError(
                "a metric's name must be a text without commas, quotes or line breaks, "
                f"not {name!r}"
            )
    return found


def _one_number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"metric {name!r} returns {_kind(value)}; it must return one number"
        ) from error


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    """What a value is, for a message: a tensor's shape, or the type."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"shape {tuple(value.shape)}" if value.ndim else "a single number"


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
