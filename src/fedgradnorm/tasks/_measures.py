"""Losses, one number a row, and metrics, one number a split."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgradnorm.tasks._targets import has_gaps, known

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
