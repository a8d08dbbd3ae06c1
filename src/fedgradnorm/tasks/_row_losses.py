"""One loss a row: where some classes count more, and where a row's target has gaps or a shape.

A target with gaps or a shape is taken apart into single numbers: a class, a label, a value, at
every position of its shape. A row's loss is the mean over those of them that are known, and 0 where
none is.

Weights of classes are learned on training targets. A row's loss is then w[y] times its usual loss.
The weights v that were asked for are scaled to a mean of 1 over the n training rows:
w_c = v_c n / sum_j v[y_j]. The loss over all training rows is then

    F = sum_j v[y_j] l_j / sum_j v[y_j],

which is torch's weighted mean. It does not depend on the scale of v, and a model that knows nothing
has the same loss as without weights: log C for C classes. "balanced" means v_c = 1 / n_c, with n_c
the training rows of class c; then w_c = n / (C n_c), and F is the loss of a draw in which every
class is as frequent as every other. C counts the classes that have training rows; a class that has
none has weight 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedgradnorm._errors import ConfigError
from fedgradnorm.tasks._measures import LossFunction
from fedgradnorm.tasks._targets import known, mean_of_labelled, positions, without_gaps

Given = Literal["balanced"] | tuple[float, ...]
Places = dict[tuple[torch.device, torch.dtype], Tensor]


@dataclass(frozen=True)
class WeightedLoss:
    """Cross-entropy with a weight for each of ``count`` classes.

    Where it is ``binary`` there are ``count`` labels instead, each with a weight for 0 and for 1.
    """

    given: Given
    count: int
    binary: bool = False
    weights: tuple[tuple[float, ...], ...] | None = None  # a row for all classes, or each label
    _placed: Places = field(default_factory=dict, compare=False, repr=False)

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return self.weighed(output, target, self.table(output)[None])

    def weighed(self, output: Tensor, target: Tensor, table: Tensor) -> Tensor:
        """One loss per row, by weights [rows or 1, groups, classes]: those of a row's client."""
        return self.single(output, target, table).mean(dim=1)

    def single(self, output: Tensor, target: Tensor, table: Tensor) -> Tensor:
        """The same for each number of a row's target, [rows, numbers]."""
        if self.binary:
            y = target.to(output.dtype).view_as(output)
            weight = torch.where(y > 0, table[..., 1], table[..., 0])
            return weight * F.binary_cross_entropy_with_logits(output, y, reduction="none")
        weight = table[:, 0].expand(len(output), -1).gather(1, target[:, None])
        return weight * F.cross_entropy(output, target, reduction="none")[:, None]

    def _counts(self, target: Tensor) -> Tensor:
        """How many labeled training rows each class has; of labels, their zeros and ones."""
        if not self.binary:
            classes = target[known(target)].to(torch.int64)
            return torch.bincount(classes, minlength=self.count)[None]
        flat = target.reshape(-1, 1) if self.count == 1 else positions(target)
        ones = without_gaps(flat).double().sum(dim=0)
        return torch.stack([known(flat).sum(dim=0) - ones, ones], dim=1)

    def learned(self, target: Tensor) -> WeightedLoss:
        """The loss with its weights, from training targets."""
        counts = self._counts(target).double()
        seen = counts > 0
        if self.given == "balanced":
            v = torch.where(seen, 1 / counts.clamp_min(1), 0)
        else:
            asked = counts.new_tensor(self.given)
            v = torch.stack([torch.ones_like(asked), asked], dim=1) if self.binary else asked[None]
        total = (v * counts).sum(dim=1, keepdim=True)
        # Only where every training row has weight 0 is the total 0.
        w = v * counts.sum(dim=1, keepdim=True) / total.clamp_min(torch.finfo(v.dtype).tiny)
        if self.given == "balanced":
            w = torch.where(seen, w, 1)
        if bool((total == 0).any()):
            raise ConfigError(
                "all training rows have weight 0; give a class that has rows a weight above 0"
            )
        return replace(self, weights=tuple(map(tuple, w.tolist())), _placed={})

    def table(self, like: Tensor) -> Tensor:
        """The weights on ``like``'s device; kept, as a captured round may not copy to a GPU."""
        if self.weights is None:
            raise ConfigError("class weights are learned on a client's rows; make an fgn.Client")
        place = like.device, like.dtype
        if place not in self._placed:
            self._placed[place] = torch.tensor(self.weights, dtype=torch.float64).to(like)
        return self._placed[place]


def checked_weights(name: str, given: Any, count: int) -> Given:
    if isinstance(given, str) and given == "balanced":
        return "balanced"
    numbers: Any = given.tolist() if hasattr(given, "tolist") else given  # an array, a tensor
    numbers = (numbers,) if isinstance(numbers, (int, float)) and count == 1 else numbers
    plain = isinstance(numbers, Sequence) and not isinstance(numbers, str)
    if not plain or len(numbers) != count or not all(map(_usable, numbers)) or not any(numbers):
        words = "a number" if count == 1 else f"{count} numbers"
        raise ConfigError(f"{name} must be 'balanced' or {words} >= 0, not all 0, not {given!r}")
    return tuple(float(number) for number in numbers)


def _usable(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and 0 <= value < float("inf")


def by_number(
    loss: LossFunction, output: Tensor, target: Tensor, table: Tensor | None, counted: bool
) -> Tensor:
    """One loss a row of one of our losses; ``output`` is [rows, outputs, *shape].

    ``table`` holds the weights of classes, [rows or 1, groups, classes]; ``counted`` says that
    targets are classes, one for each position.
    """
    rows, there = len(output), known(target)
    filled = without_gaps(target)
    flat = positions(output)
    goal = filled.reshape(-1) if counted else positions(filled)
    goal = goal.to(torch.int64) if counted else goal
    if isinstance(loss, WeightedLoss):
        weights = loss.table(output)[None] if table is None else table
        if len(weights) > 1:
            weights = weights.repeat_interleave(len(flat) // rows, dim=0)
        single = loss.single(flat, goal, weights)
    else:
        # A row for each number: the mean over its one number is itself.
        single = loss(flat, goal) if counted else loss(flat.reshape(-1, 1), goal.reshape(-1, 1))
    single = single.reshape(rows, -1)
    there = there.reshape(rows, -1) if counted else positions(there).reshape(rows, -1)
    return mean_of_labelled(single, there)


def by_row(loss: LossFunction, output: Tensor, target: Tensor, counted: bool) -> Tensor:
    """One loss a row of a loss of others, which is given rows without gaps.

    Where a row has no label its output is cut off, so that whatever the loss makes of the 0 in its
    place is in no gradient either.
    """
    there = known(target)
    rows = there.flatten(1).any(dim=1) if there.ndim > 1 else there
    shaped = rows.reshape(-1, *[1] * (output.ndim - 1))
    filled = without_gaps(target)
    filled = filled.to(torch.int64) if counted else filled
    found = loss(torch.where(shaped, output, output.detach()), filled)
    if found.ndim == 0:
        raise ConfigError(
            "its loss gives one number for all rows, and some of them have no label; use "
            'reduction="none"'
        )
    if found.ndim > 1:
        same = there if there.shape == found.shape else rows.reshape(-1, *[1] * (found.ndim - 1))
        return mean_of_labelled(found.flatten(1), same.expand_as(found).flatten(1))
    return torch.where(rows, found, 0)


def own_loss_problem(target: Tensor, counted: bool) -> str | None:
    """Why a loss of others cannot be given these targets, if it cannot."""
    there = known(target).reshape(len(target), -1)
    partly = there.any(dim=1) & ~there.all(dim=1)
    if counted or not bool(partly.any()):
        return None
    return (
        f"y[{int(partly.nonzero()[0])}] has missing numbers and others, and the loss is your own, "
        "which is given whole rows; remove the row, or make all of its targets NaN"
    )
