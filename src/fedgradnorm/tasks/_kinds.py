"""The kinds of tasks: what each expects of targets, and how its outputs are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm.tasks._measures import (
    LossFunction,
    Metric,
    accuracy,
    binary_cross_entropy,
    cross_entropy,
    label_accuracy,
    mean_absolute_error,
    r_squared,
    squared_error,
)


class Kind(ABC):
    """What differs between kinds of tasks; everything else asks the task, never its kind."""

    name: str
    loss: LossFunction
    loss_name: str
    metrics: Mapping[str, Metric]
    least = 1  # outputs
    real = False  # whether targets are numbers of any size, which can be standardised

    def classes(self, outputs: int) -> int | None:  # noqa: ARG002
        """How many classes there are, where a row has one of several; else None."""
        return None

    def names(self, outputs: int) -> int:
        """How many names its classes or labels have."""
        return self.classes(outputs) or outputs

    @abstractmethod
    def target(self, where: str, y: Tensor, outputs: int) -> Tensor:
        """Targets as the loss takes them, or a DataError that begins with ``where``."""

    @abstractmethod
    def answer(self, output: Tensor) -> Tensor:
        """What a user wants to see: the class of each row, 0 or 1 for labels, or the values."""

    @abstractmethod
    def probability(self, output: Tensor) -> Tensor:
        """Of each class (softmax), or of a 1 (sigmoid)."""

    @abstractmethod
    def trivial(self, y: Tensor, outputs: int, weights: Tensor | None) -> Tensor:
        """The outputs with the least usual loss that are the same for all rows."""

    @abstractmethod
    def words(self, outputs: int) -> str:
        """What a row's target is."""

    def right(self, output: Tensor, target: Tensor) -> Tensor | None:
        """The share of each row that is right; None where there is no right and wrong."""
        return (self.answer(output) == target).double().reshape(len(target), -1).mean(dim=1)

    def shares(self, y: Tensor, outputs: int, names: Sequence[str] | None) -> str:
        """The training targets in a few words."""
        counts = y.bincount(minlength=self.classes(outputs) or 0).tolist()
        return _percent(names, [count / len(y) for count in counts])


class Classification(Kind):
    """One of several classes a row: softmax and cross-entropy."""

    name, loss, loss_name = "classification", staticmethod(cross_entropy), "cross-entropy"
    metrics: Mapping[str, Metric] = {"accuracy": accuracy}
    least = 2

    def classes(self, outputs: int) -> int | None:
        """One for each output."""
        return outputs

    def target(self, where: str, y: Tensor, outputs: int) -> Tensor:
        """A class number a row."""
        if y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
        if y.ndim != 1:
            shape = tuple(y.shape)
            raise DataError(f"{where}: class labels must be one number a row, y has shape {shape}")
        labels, last = y.to(torch.int64), (self.classes(outputs) or 0) - 1
        wrong = (labels != y) | (labels < 0) | (labels > last)
        if wrong.any():
            row = int(wrong.nonzero()[0])
            raise DataError(f"{where}: y[{row}] is {y[row].item()}; labels must be 0 .. {last}")
        return labels

    def answer(self, output: Tensor) -> Tensor:
        """The class with the largest output."""
        return output.argmax(dim=1)

    def probability(self, output: Tensor) -> Tensor:
        """Of each class, [rows, classes]."""
        return output.softmax(dim=1)

    def trivial(self, y: Tensor, outputs: int, weights: Tensor | None) -> Tensor:
        """The logarithm of the classes' shares, weighted as the loss weighs them.

        Every class counts once more than it was seen, so that a class nobody saw has a share too.
        """
        seen = torch.bincount(y, minlength=outputs).double() + 1
        seen = seen if weights is None else seen * weights.double()
        return (seen / seen.sum()).log()

    def words(self, outputs: int) -> str:
        """So many classes."""
        return f"{outputs} classes"


class Binary(Classification):
    """0 or 1 a row, from one output: sigmoid and binary cross-entropy."""

    name, loss = "binary", staticmethod(binary_cross_entropy)
    loss_name = "binary cross-entropy"
    metrics: Mapping[str, Metric] = {"accuracy": label_accuracy}
    least = 1

    def classes(self, outputs: int) -> int | None:  # noqa: ARG002
        """0 and 1."""
        return 2

    def answer(self, output: Tensor) -> Tensor:
        """1 where it is more likely than 0."""
        return (output[:, 0] > 0).to(torch.int64)

    def probability(self, output: Tensor) -> Tensor:
        """Of a 1, [rows]."""
        return output[:, 0].sigmoid()

    def trivial(self, y: Tensor, outputs: int, weights: Tensor | None) -> Tensor:
        """The log odds of a 1."""
        return _log_odds(y.reshape(-1, outputs), weights)

    def words(self, outputs: int) -> str:  # noqa: ARG002
        """As of any two classes."""
        return "2 classes"


class Multilabel(Kind):
    """Several labels a row, each 0 or 1: a sigmoid for each, and binary cross-entropy."""

    name, loss = "multilabel", staticmethod(binary_cross_entropy)
    loss_name = "binary cross-entropy"
    metrics: Mapping[str, Metric] = {"accuracy": label_accuracy}

    def target(self, where: str, y: Tensor, outputs: int) -> Tensor:
        """A row of zeros and ones for each row."""
        rows = _numbers(where, y, outputs)
        wrong = (rows != 0) & (rows != 1)
        if wrong.any():
            place = tuple(wrong.nonzero()[0].tolist())
            raise DataError(
                f"{where}: y{list(place)} is {rows[place].item()}; each label must be 0 or 1"
            )
        return rows

    def answer(self, output: Tensor) -> Tensor:
        """1 for each label that is more likely than not."""
        return (output > 0).to(torch.int64)

    def probability(self, output: Tensor) -> Tensor:
        """Of each label, [rows, labels]."""
        return output.sigmoid()

    def trivial(self, y: Tensor, outputs: int, weights: Tensor | None) -> Tensor:  # noqa: ARG002
        """Each label's log odds."""
        return _log_odds(y, weights)

    def words(self, outputs: int) -> str:
        """So many labels."""
        return "1 label" if outputs == 1 else f"{outputs} labels"

    def shares(self, y: Tensor, outputs: int, names: Sequence[str] | None) -> str:  # noqa: ARG002
        """How often each label is 1."""
        return _percent(names, y.double().mean(dim=0).tolist())


class Regression(Kind):
    """Real numbers: squared error."""

    name, loss, loss_name = "regression", staticmethod(squared_error), "squared error"
    metrics: Mapping[str, Metric] = {"mae": mean_absolute_error, "r2": r_squared}
    real = True

    def target(self, where: str, y: Tensor, outputs: int) -> Tensor:
        """A row of numbers for each row."""
        return _numbers(where, y, outputs)

    def answer(self, output: Tensor) -> Tensor:
        """The values themselves."""
        return output

    def probability(self, output: Tensor) -> Tensor:  # noqa: ARG002
        """There is none."""
        raise ConfigError("a regression has no probabilities; use kind='output'")

    def trivial(self, y: Tensor, outputs: int, weights: Tensor | None) -> Tensor:  # noqa: ARG002
        """The mean."""
        return y.double().mean(dim=0)

    def words(self, outputs: int) -> str:
        """So many numbers."""
        return "1 number" if outputs == 1 else f"{outputs} numbers"

    def right(self, output: Tensor, target: Tensor) -> Tensor | None:  # noqa: ARG002
        """A number is never right."""
        return None

    def shares(self, y: Tensor, outputs: int, names: Sequence[str] | None) -> str:  # noqa: ARG002
        """Mean and deviation."""
        return f"{float(y.mean()):.3g} ± {float(y.double().std(unbiased=False)):.3g}"


KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (Classification(), Regression(), Binary(), Multilabel())
}
"""Every kind of task, by the name that a run stores."""


def _numbers(where: str, y: Tensor, outputs: int) -> Tensor:
    """Targets [rows, outputs] as floating-point numbers."""
    y = y if y.ndim == 2 else y.reshape(len(y), -1)
    if y.shape[1] != outputs:
        raise DataError(f"{where}: y has {y.shape[1]} numbers a row, the task {outputs}")
    return y if y.is_floating_point() else y.to(torch.float32)


def _log_odds(y: Tensor, weights: Tensor | None) -> Tensor:
    """log (ones / zeros) of each label, each seen once more, weighted as the loss weighs them."""
    ones = y.double().sum(dim=0)
    odds = (ones + 1) / (len(y) - ones + 1)
    return (odds if weights is None else odds * (weights[:, 1] / weights[:, 0]).double()).log()


def _percent(names: Sequence[str] | None, shares: Sequence[float]) -> str:
    named = names or tuple(map(str, range(len(shares))))
    return ", ".join(f"{n} {100 * s:.1f}%" for n, s in zip(named, shares, strict=True))
