"""Losses, one number a row, and metrics, one number a split."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgradnorm._errors import ConfigError
from fedgradnorm.tasks._targets import has_gaps, known, mean_of_labelled, positions, without_gaps

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> one loss per row, or one number for all of them."""

Metric = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) of a whole split -> one number."""


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, reduction="none")


def binary_cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy of each row, from logits, averaged over the row's labels."""
    y = target.to(output.dtype).view_as(output)
    return F.binary_cross_entropy_with_logits(output, y, reduction="none").mean(dim=1)


def thresholds(output: Tensor) -> Tensor:
    """Logits of "above class k" for k = 0 .. C - 2, which never grow with k.

    l_0 = o_0 and l_k = l_{k-1} - softplus(o_k), so the probabilities of classes, which are their
    differences, are never negative, whatever a head gives.
    """
    first, rest = output[:, :1], output[:, 1:]
    return torch.cat([first, first - F.softplus(rest).cumsum(dim=1)], dim=1)


def ordinal_cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Mean binary cross-entropy of each row over the questions "is it above class k?".

    The loss of CORAL (Cao, Mirjalili, Raschka 2020): an answer two classes away costs more than one
    that is the neighbor.
    """
    logits = thresholds(output)
    above = target[:, None] > torch.arange(logits.shape[1], device=target.device)
    loss = F.binary_cross_entropy_with_logits(logits, above.to(logits.dtype), reduction="none")
    return loss.mean(dim=1)


def ordinal_accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Share of rows whose class is the target."""
    return ((thresholds(output) > 0).sum(dim=1) == target).to(output.dtype).mean()


def ordinal_distance(output: Tensor, target: Tensor) -> Tensor:
    """Mean number of classes between answer and target."""
    return ((thresholds(output) > 0).sum(dim=1) - target).abs().to(output.dtype).mean()


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Squared error of each row, averaged over the row's outputs."""
    return (output - target).square().mean(dim=1)


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Share of rows whose largest output is the target class."""
    return (output.argmax(dim=1) == target).to(output.dtype).mean()


def label_accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Share of labels, over rows and outputs, whose logit has the right sign."""
    y = target.view_as(output)
    right = ((output > 0) == (y > 0)).to(output.dtype)
    return right[known(y)].mean() if has_gaps(y) else right.mean()


def mean_absolute_error(output: Tensor, target: Tensor) -> Tensor:
    """Mean absolute error over rows and outputs."""
    away = (output - target).abs()
    return away.nanmean() if has_gaps(target) else away.mean()


def r_squared(output: Tensor, target: Tensor) -> Tensor:
    """Share of the targets' variance explained: 1 is perfect, 0 is the mean's own score.

    NaN where all targets are equal: there is no variance to explain. scikit-learn reports 0 there,
    or 1 for a perfect answer (``force_finite``), so that scores can be ranked; but such a 0 looks
    like a model that learned nothing and pulls means down. NaN is left out of tables and means.
    """
    if has_gaps(target):
        centre, left = target.nanmean(dim=0), (output - target).square().nansum()
        spread = (target - centre).square().nansum()
    else:
        centre, left = target.mean(dim=0), (output - target).square().sum()
        spread = (target - centre).square().sum()
    # A mean is rounded, so the spread of targets that are all equal need not be 0.
    first = target.nan_to_num(nan=-torch.inf).amax(dim=0)
    constant = (target.isnan() | (target == first)).all()
    return torch.where(constant | (spread <= 0), torch.nan, 1 - left / spread)


OURS: frozenset[Metric] = frozenset(
    {
        accuracy,
        label_accuracy,
        mean_absolute_error,
        ordinal_accuracy,
        ordinal_distance,
        r_squared,
    }
)
"""Metrics of rows, whatever a row is."""


class ModuleLoss:
    """A loss that is a module, such as nn.CrossEntropyLoss(weight=...), wherever the outputs are.

    The module given is never changed: each device and each precision has a copy of its own.
    """

    def __init__(self, module: nn.Module) -> None:
        self._given = module
        self._placed: dict[tuple[torch.device, torch.dtype], nn.Module] = {}

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        place = output.device, output.dtype
        if place not in self._placed:
            self._placed[place] = copy.deepcopy(self._given).to(*place)
        losses: Tensor = self._placed[place](output, target)
        return losses


Given = Literal["balanced"] | tuple[float, ...]
Places = dict[tuple[torch.device, torch.dtype], Tensor]


@dataclass(frozen=True)
class WeightedLoss:
    """Cross-entropy with a weight for each of ``count`` classes, learned on training targets.

    A row's loss is w[y] times its usual loss. The weights v that were asked for are scaled to a
    mean of 1 over the n training rows, w_c = v_c n / sum_j v[y_j], so that their loss is torch's
    weighted mean:

        F = sum_j v[y_j] l_j / sum_j v[y_j].

    It does not depend on the scale of v, and a model that knows nothing has the same loss as
    without weights: log C for C classes. "balanced" means v_c = 1 / n_c, with n_c the training
    rows of class c: F is the loss of a draw in which every class is as frequent as every other.
    C counts the classes that have training rows; a class that has none has weight 1.

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

    A target with gaps or a shape is taken apart into single numbers: a class, a label, a value, at
    every position. A row's loss is the mean over those that are known, and 0 where none is.
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


def auc(output: Tensor, target: Tensor) -> Tensor:
    """Area under the ROC curve of a two-class task: how often a 1 is ranked above a 0.

    A tie counts one half (Hanley and McNeil 1982). Where a split holds one class alone there is
    nothing to rank, and the area is that of a guess, 0.5.

    >>> scores = torch.tensor([[0.0, -1.0], [0.0, 2.0], [0.0, 0.5], [0.0, 2.0]])
    >>> auc(scores, torch.tensor([0, 1, 1, 0])).item()
    0.625
    """
    score = output[:, 1] - output[:, 0]
    ones, zeros = score[target == 1], score[target == 0].sort().values
    if not len(ones) or not len(zeros):
        return score.new_tensor(0.5)
    below = torch.searchsorted(zeros, ones)
    not_above = torch.searchsorted(zeros, ones, right=True)
    return (below + not_above).to(score.dtype).mean() / (2 * len(zeros))
