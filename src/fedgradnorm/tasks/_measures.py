"""Losses, one number a row, and metrics, one number a split."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

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
