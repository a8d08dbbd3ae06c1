"""What a kind of task has to say for itself; one of your own derives from this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm._registry import Registry
from fedgradnorm.tasks._measures import Metric
from fedgradnorm.tasks._targets import known


class Kind:
    """What differs between kinds of tasks; everything else asks the task, never its kind.

    A kind of your own needs a ``name`` and a ``loss`` (one number a row, or one for all). The other
    answers here are those of numbers without bounds: give those that differ. A class with a name
    is known by it as soon as it is defined: ``of_kind("name", outputs)`` makes a task of it, as
    ``task = "name"`` does in a config file.
    """

    name: ClassVar[str] = ""
    loss_name: ClassVar[str] = "loss"
    metrics: ClassVar[Mapping[str, Metric]] = {}
    least: ClassVar[int] = 1  # outputs
    real: ClassVar[bool] = False  # whether targets are numbers that can be standardized
    counted: ClassVar[bool] = False  # whether a target is one class number, not ``outputs`` numbers
    family: ClassVar[str] = ""  # whose metrics it has: multiclass, binary, multilabel or numbers
    options: ClassVar[tuple[str, ...]] = ()  # of a client's file that are for this kind alone

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in vars(cls):
            return
        if cls.loss is Kind.loss:
            raise ConfigError(f"kind of task {cls.__name__} needs a loss(output, target)")
        KINDS.register(cls.name, cls(), getattr(cls, "__module__", "__main__"))

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """One loss for each row of ``output`` [rows, outputs], or one number for all of them."""
        raise NotImplementedError

    def classes(self, outputs: int) -> int | None:  # noqa: ARG002
        """How many classes there are, where a row has one of several; else None."""
        return None

    def names(self, outputs: int) -> int:
        """How many names its classes or labels have."""
        return self.classes(outputs) or outputs

    def target(self, where: str, y: Tensor, outputs: int) -> Tensor:
        """Targets as the loss takes them, or a DataError that begins with ``where``.

        NaN stays: that label is missing.
        """
        return numbers(where, y, outputs)

    def answer(self, output: Tensor) -> Tensor:
        """What a user wants to see: the class of each row, 0 or 1 for labels, or the values."""
        return output

    def probability(self, output: Tensor) -> Tensor:  # noqa: ARG002
        """The probability of each class (softmax), or of a 1 (sigmoid)."""
        raise ConfigError(f"a {self.name} task has no probabilities; use kind='output'")

    def baseline(self, y: Tensor, outputs: int, weights: Tensor | None) -> Tensor:  # noqa: ARG002
        """The outputs with the least usual loss that are the same for all rows.

        ``y`` are labels alone: [labels] of classes, else [labels, outputs], with NaN where single
        ones are missing.
        """
        raise ConfigError(
            f"nothing is known of the baseline of a {self.name} task; give the kind a "
            "function baseline(y, outputs, weights)"
        )

    def words(self, outputs: int) -> str:
        """What a row's target is."""
        return "1 number" if outputs == 1 else f"{outputs} numbers"

    def right(self, output: Tensor, target: Tensor) -> Tensor | None:  # noqa: ARG002
        """The share of each row that is right; None where there is no right and wrong."""
        return None

    def shares(self, y: Tensor, outputs: int, names: Sequence[str] | None) -> str:  # noqa: ARG002
        """The training targets in a few words: mean and deviation."""
        there = y[known(y)].double()
        return f"{float(there.mean()):.3g} ± {float(there.std(unbiased=False)):.3g}"


KINDS = Registry[Kind]("kind of task", ["fedgradnorm.tasks._kinds"])
"""Every kind of task by its name, which is what a run stores."""


def matches(answer: Tensor, target: Tensor) -> Tensor:
    """The share of each row's labels that is right, of those that are known."""
    there = known(target)
    right = ((answer == target) & there).double().reshape(len(target), -1)
    return right.sum(dim=1) / there.reshape(len(target), -1).sum(dim=1).clamp_min(1)


def class_numbers(where: str, y: Tensor, classes: int) -> Tensor:
    """Labels 0 .. classes - 1: whole numbers, or floating-point ones if some are missing."""
    if not y.is_floating_point() and y.numel():
        low, high = map(int, y.aminmax())
        if low >= 0 and high < classes:
            return y
    there, labels = known(y), y
    if y.is_floating_point():
        labels = y.nan_to_num(nan=0.0).to(torch.int64)
    wrong = there & ((labels != y) | (labels < 0) | (labels >= classes))
    if wrong.any():
        place = wrong.nonzero()[0].tolist()
        value = y[tuple(place)].item()
        shifted = there.any() and y[there].min() >= 1 and y[there].max() == classes
        way = "; yours begin at 1: give y - 1" if shifted else ""
        if bool(labels[wrong].ne(y[wrong]).any()):
            way = "; numbers that are no classes are learned by fgn.regression"
        raise DataError(f"{where}: y{place} is {value}; labels must be 0 .. {classes - 1}{way}")
    return labels if bool(there.all()) else y


def numbers(where: str, y: Tensor, outputs: int) -> Tensor:
    """Targets [rows, outputs] as floating-point numbers; those with a shape stay as they are."""
    y = y if y.ndim >= 2 else y.reshape(len(y), -1)
    if y.shape[1] != outputs:
        raise DataError(
            f"{where}: y has {y.shape[1]} numbers per row, and the task {outputs} outputs; make "
            "them equal"
        )
    return y if y.is_floating_point() else y.to(torch.float32)


def log_odds(y: Tensor, weights: Tensor | None) -> Tensor:
    """log (ones / zeros) of each label, each seen once more, weighted as the loss weighs them."""
    ones = y.double().nansum(dim=0)
    zeros = known(y).sum(dim=0) - ones
    odds = (ones + 1) / (zeros + 1)
    return (odds if weights is None else odds * (weights[:, 1] / weights[:, 0]).double()).log()


def percent(names: Sequence[str] | None, shares: Sequence[float]) -> str:
    named = names or tuple(map(str, range(len(shares))))
    return ", ".join(f"{n} {100 * s:.1f}%" for n, s in zip(named, shares, strict=True))
