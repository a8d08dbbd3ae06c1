"""The kinds of tasks: what each expects of targets, and how its outputs are read.

One of your own derives from :class:`Kind`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm._registry import Registry
from fedgradnorm.tasks._measures import (
    Metric,
    accuracy,
    binary_cross_entropy,
    cross_entropy,
    label_accuracy,
    mean_absolute_error,
    ordinal_accuracy,
    ordinal_cross_entropy,
    ordinal_distance,
    r_squared,
    squared_error,
    thresholds,
)
from fedgradnorm.tasks._targets import has_gaps, known


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


KINDS = Registry[Kind]("kind of task")
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


NARROWEST = 1e-3  # between two thresholds of ordered classes that a start puts apart


class Classification(Kind):
    """One of several classes a row: softmax and cross-entropy."""

    name, loss, loss_name = "classification", staticmethod(cross_entropy), "cross-entropy"
    metrics: ClassVar[Mapping[str, Metric]] = {"accuracy": accuracy}
    least, counted, family = 2, True, "multiclass"
    options: ClassVar[tuple[str, ...]] = ("classes", "labels", "class_weights")

    def classes(self, outputs: int) -> int | None:
        return outputs

    def target(self, where: str, y: Tensor, outputs: int) -> Tensor:
        return class_numbers(where, y, self.classes(outputs) or 0)

    def answer(self, output: Tensor) -> Tensor:
        return output.argmax(dim=1)

    def probability(self, output: Tensor) -> Tensor:
        """The probability of each class, [rows, classes]."""
        return output.softmax(dim=1)

    def baseline(self, y: Tensor, outputs: int, weights: Tensor | None) -> Tensor:
        """The logarithm of the classes' shares, weighted as the loss weighs them.

        Every class counts once more than it was seen, so that a class nobody saw has a share too.
        """
        seen = torch.bincount(y, minlength=outputs).double() + 1
        seen = seen if weights is None else seen * weights.double()
        return (seen / seen.sum()).log()

    def words(self, outputs: int) -> str:
        return f"{self.classes(outputs)} classes"

    def right(self, output: Tensor, target: Tensor) -> Tensor | None:
        return matches(self.answer(output), target)

    def shares(self, y: Tensor, outputs: int, names: Sequence[str] | None) -> str:
        counts = y.bincount(minlength=self.classes(outputs) or 0).tolist()
        return percent(names, [count / len(y) for count in counts])


class Binary(Classification):
    """0 or 1 a row, from one output: sigmoid and binary cross-entropy."""

    name, loss = "binary", staticmethod(binary_cross_entropy)
    loss_name = "binary cross-entropy"
    metrics: ClassVar[Mapping[str, Metric]] = {"accuracy": label_accuracy}
    least, family = 1, "binary"
    options = ("labels", "pos_weight", "positive", "above")

    def classes(self, outputs: int) -> int | None:  # noqa: ARG002
        return 2

    def answer(self, output: Tensor) -> Tensor:
        return (output[:, 0] > 0).to(torch.int64)

    def probability(self, output: Tensor) -> Tensor:
        """The probability of a 1, [rows]."""
        return output[:, 0].sigmoid()

    def baseline(self, y: Tensor, outputs: int, weights: Tensor | None) -> Tensor:
        return log_odds(y.reshape(-1, outputs), weights)


class Multilabel(Kind):
    """Several labels a row, each 0 or 1: a sigmoid for each, and binary cross-entropy."""

    name, loss = "multilabel", staticmethod(binary_cross_entropy)
    loss_name = "binary cross-entropy"
    metrics: ClassVar[Mapping[str, Metric]] = {"accuracy": label_accuracy}
    family, options = "multilabel", ("pos_weight",)

    def target(self, where: str, y: Tensor, outputs: int) -> Tensor:
        rows = numbers(where, y, outputs)
        wrong = (rows != 0) & (rows != 1) & known(rows)
        if wrong.any():
            place = tuple(wrong.nonzero()[0].tolist())
            raise DataError(
                f"{where}: y{list(place)} is {rows[place].item()}; each label must be 0 or 1"
            )
        return rows

    def answer(self, output: Tensor) -> Tensor:
        return (output > 0).to(torch.int64)

    def probability(self, output: Tensor) -> Tensor:
        """The probability of each label, [rows, labels]."""
        return output.sigmoid()

    def baseline(self, y: Tensor, outputs: int, weights: Tensor | None) -> Tensor:  # noqa: ARG002
        return log_odds(y, weights)

    def words(self, outputs: int) -> str:
        return "1 label" if outputs == 1 else f"{outputs} labels"

    def right(self, output: Tensor, target: Tensor) -> Tensor | None:
        return matches(self.answer(output), target)

    def shares(self, y: Tensor, outputs: int, names: Sequence[str] | None) -> str:  # noqa: ARG002
        return percent(names, y.double().nanmean(dim=0).tolist())


class Regression(Kind):
    """Real numbers: squared error."""

    name, loss, loss_name = "regression", staticmethod(squared_error), "squared error"
    metrics: ClassVar[Mapping[str, Metric]] = {"mae": mean_absolute_error, "r2": r_squared}
    real, family = True, "numbers"

    def baseline(self, y: Tensor, outputs: int, weights: Tensor | None) -> Tensor:  # noqa: ARG002
        return y.double().nanmean(dim=0) if has_gaps(y) else y.double().mean(dim=0)


class Ordinal(Classification):
    """One of several classes in an order, from one output fewer: is it above class k?"""

    name, loss = "ordinal", staticmethod(ordinal_cross_entropy)
    loss_name = "ordinal cross-entropy"
    metrics: ClassVar[Mapping[str, Metric]] = {
        "accuracy": ordinal_accuracy,
        "mae": ordinal_distance,
    }
    least, options = 1, ("classes", "labels")

    def classes(self, outputs: int) -> int | None:
        return outputs + 1

    def answer(self, output: Tensor) -> Tensor:
        """The class that is as likely below as above: the median."""
        return (thresholds(output) > 0).sum(dim=1)

    def probability(self, output: Tensor) -> Tensor:
        """The probability of each class, [rows, classes]: P(above k - 1) - P(above k)."""
        above = thresholds(output).sigmoid()
        ends = above.new_ones(len(above), 1), above.new_zeros(len(above), 1)
        return torch.cat([ends[0], above], dim=1) - torch.cat([above, ends[1]], dim=1)

    def baseline(self, y: Tensor, outputs: int, weights: Tensor | None) -> Tensor:  # noqa: ARG002
        """The outputs whose thresholds are the log odds of "above class k", each seen once more."""
        above = torch.stack([(y > k).sum() for k in range(outputs)]).double()
        logits = ((above + 1) / (len(y) - above + 1)).log()
        gaps = (logits[:-1] - logits[1:]).clamp_min(NARROWEST)
        return torch.cat([logits[:1], gaps.expm1().log()])  # softplus turned round
