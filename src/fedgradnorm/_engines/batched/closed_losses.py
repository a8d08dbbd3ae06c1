"""The three usual losses with their derivatives written out: a third of autograd's kernels.

Outputs are [clients, batch, outputs]; a signal is d (row's loss) / d output, up to ``factor``.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from fedgradnorm.tasks._measures import (
    LossFunction,
    binary_cross_entropy,
    cross_entropy,
    squared_error,
)


class ClosedLoss(Protocol):
    """A loss whose derivative has a closed form; kernels know it by its ``kind``."""

    kind: int
    factor: float

    def signal(self, output: Tensor, targets: Tensor) -> Tensor:
        """d loss / d output of every row, to be multiplied by ``factor``."""

    def losses(self, output: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Each client's mean loss, and the signal."""


class ClosedCrossEntropy:
    """softmax(output) - 1 at the target."""

    kind = 0
    factor: float = 1.0

    def __init__(self, like: Tensor) -> None:
        self._minus_one = -torch.ones(1).to(like)  # here: a captured round may not copy to a GPU

    def signal(self, output: Tensor, targets: Tensor) -> Tensor:
        """d loss / d output."""
        return self._less_one(output.softmax(dim=2), targets.view(*output.shape[:2], 1))

    def losses(self, output: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Mean losses and signal."""
        log_p = output.log_softmax(dim=2)
        index = targets.view(*output.shape[:2], 1)
        mean = log_p.gather(2, index).mean(dim=(1, 2))
        return mean.neg_(), self._less_one(log_p.exp_(), index)

    def _less_one(self, p: Tensor, index: Tensor) -> Tensor:
        return p.scatter_add_(2, index, self._minus_one.expand(index.shape))


class ClosedSquaredError:
    """2 (output - target) / outputs."""

    kind = 1

    def __init__(self, outputs: int) -> None:
        self.factor = 2 / outputs

    def signal(self, output: Tensor, targets: Tensor) -> Tensor:
        """The gap."""
        return output - targets.view_as(output)

    def losses(self, output: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Mean losses and signal."""
        gap = self.signal(output, targets)
        return gap.square().mean(dim=(1, 2)), gap


class ClosedBinaryCrossEntropy:
    """(sigmoid(output) - target) / outputs."""

    kind = 2

    def __init__(self, outputs: int) -> None:
        self.factor = 1 / outputs

    def signal(self, output: Tensor, targets: Tensor) -> Tensor:
        """The gap between probability and target."""
        return output.sigmoid() - targets.view_as(output)

    def losses(self, output: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Mean losses and signal."""
        y = targets.view_as(output)
        each = F.softplus(output) - output * y  # -log p(y) = log(1 + e^o) - o y
        return each.mean(dim=(1, 2)), self.signal(output, targets)


def head_gradients(
    form: ClosedLoss, factor: Tensor, weight: Tensor, bias: Tensor, z: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of stacked linear heads on features ``z`` [clients, batch, F]."""
    output = torch.baddbmm(bias[:, None], z, weight.transpose(1, 2))
    signal = form.signal(output, targets).mul_(factor)
    return torch.bmm(signal.transpose(1, 2), z), signal.sum(dim=1)


def feature_signal(
    form: ClosedLoss, factor: Tensor, weight: Tensor, bias: Tensor, z: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean losses of stacked linear heads, d loss / d features, and d loss / d output."""
    output = torch.baddbmm(bias[:, None], z, weight.transpose(1, 2))
    losses, signal = form.losses(output, targets)
    signal *= factor
    return losses, torch.bmm(signal, weight), signal


def closed_form(loss: LossFunction, like: Tensor, outputs: int) -> ClosedLoss | None:
    """The loss in closed form, if it is one of the three."""
    if loss is cross_entropy:
        return ClosedCrossEntropy(like)
    if loss is binary_cross_entropy:
        return ClosedBinaryCrossEntropy(outputs)
    return ClosedSquaredError(outputs) if loss is squared_error else None
