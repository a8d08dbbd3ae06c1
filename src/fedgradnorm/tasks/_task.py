"""What one client learns: its loss and its metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedgradnorm._errors import ConfigError, choose
from fedgradnorm.tasks._kinds import KINDS, Kind
from fedgradnorm.tasks._measures import LossFunction, Metric, ModuleLoss
from fedgradnorm.tasks._weighted_losses import WeightedLoss

TaskKind = Literal["classification", "regression", "binary", "multilabel"]


@dataclass(frozen=True)
class Task:
    """A client's task.

    Make one with :func:`classification`, :func:`binary`, :func:`multilabel` or :func:`regression`.

    ``loss_function`` gives one loss per row, or one number for all rows that it is given; a
    client's loss F_i is ``loss_scale`` times the mean over its rows, or times that number.
    ``name`` lets several clients share a task (see ``key``, ``heads`` in ``train``). ``labels``
    are the names of the classes, in the order of their numbers, where they are listed.
    """

    kind: TaskKind
    outputs: int
    loss_function: LossFunction
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    loss_scale: float = 1.0
    name: str | None = None
    labels: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        least = KINDS[choose(self.kind, KINDS, "kind of task")].least
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
        check_metrics(self.metrics)

    @property
    def has_own_loss(self) -> bool:
        """Whether the loss is not one of ours, and so may be wrong."""
        ours = self.loss_function is self._kind.loss
        return not ours and not isinstance(self.loss_function, WeightedLoss)

    @property
    def loss_name(self) -> str:
        """What the loss is called, where it is the usual one of its kind; else "loss"."""
        return self._kind.loss_name if self.loss_function is self._kind.loss else "loss"

    @property
    def classes(self) -> int | None:
        """How many classes there are, where a row has one of several; else None."""
        return self._kind.classes(self.outputs)

    @property
    def label_count(self) -> int:
        """How many names its classes or labels have."""
        return self._kind.names(self.outputs)

    @property
    def has_real_targets(self) -> bool:
        """Whether targets are numbers of any size, which can be standardised."""
        return self._kind.real

    @property
    def _kind(self) -> Kind:
        return KINDS[self.kind]

    def target(self, where: str, y: Tensor) -> Tensor:
        """Targets as the loss takes them, or a DataError that begins with ``where``."""
        return self._kind.target(where, y, self.outputs)

    def learned(self, target: Tensor) -> Task:
        """The task for a client with these training targets: class weights are learned on them."""
        if not isinstance(self.loss_function, WeightedLoss):
            return self
        return replace(self, loss_function=self.loss_function.learned(target))

    def class_weights(self) -> dict[str, Any]:
        """The weights of classes as they were ``given`` and are ``used``; empty without any."""
        loss = self.loss_function
        if not isinstance(loss, WeightedLoss):
            return {}
        given = loss.given if isinstance(loss.given, str) else list(loss.given)
        return {"given": given, "used": [list(row) for row in loss.weights or ()]}

    def trivial(self, y: Tensor) -> Tensor:
        """The outputs with the least usual loss that are the same for all rows."""
        loss = self.loss_function
        weights = loss.table(torch.zeros(1).double()) if isinstance(loss, WeightedLoss) else None
        return self._kind.trivial(y, self.outputs, weights)

    def right(self, output: Tensor, target: Tensor) -> Tensor | None:
        """The share of each row that is right; None where there is no right and wrong."""
        return self._kind.right(output, target)

    def words(self) -> str:
        """What a row's target is, such as "3 classes"."""
        return self._kind.words(self.outputs)

    def shares(self, y: Tensor, names: Sequence[str] | None) -> str:
        """Training targets in a few words: how frequent each class is, or mean and deviation."""
        return self._kind.shares(y, self.outputs, names)

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
                f"its loss returns {_shape(losses)} for {rows} rows; it must return one number a "
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
        """What a user wants to see: the class of each row, zeros and ones, or the values."""
        return self._kind.answer(output)


def check_metrics(metrics: Any) -> Mapping[str, Metric]:
    """The table of metrics; a ConfigError unless it holds functions by name."""
    found = {} if metrics is None else metrics
    if not isinstance(found, Mapping) or not all(map(callable, found.values())):
        raise ConfigError(
            "metrics must be a list of names, such as ['f1'], or functions by name, such as "
            "{'bias': lambda output, target: (output - target).mean()}, "
            f"not {metrics!r}; accuracy (of classes), mae and r2 (of numbers) are always there"
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
            f"metric {name!r} returns {_shape(value)}; it must return one number"
        ) from error


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _shape(value: Any) -> str:
    """What a value is, for a message: a tensor's shape, or the type."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"shape {tuple(value.shape)}" if value.ndim else "a single number"


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
