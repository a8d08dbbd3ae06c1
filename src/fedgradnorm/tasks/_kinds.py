"""The kinds of tasks: what each expects of targets, and how its outputs are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from fedgradnorm._errors import DataError
from fedgradnorm.tasks._kind import (
    Kind,
    class_numbers,
    log_odds,
    matches,
    numbers,
    percent,
)
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
