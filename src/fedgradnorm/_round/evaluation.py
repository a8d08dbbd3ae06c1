"""A network and a head as they are: predictions for all rows, loss and metrics of a split."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedgradnorm.tasks._task import Task

ROWS_AT_ONCE = 4096  # in a forward pass over a whole split
NUMBERS_AT_ONCE = 2**19  # about, on a CPU, to stay in its cache
FEWEST_ROWS = 64  # but no fewer: products of fewer are slow


@torch.no_grad()
def evaluate(
    task: Task, network: nn.Module, head: nn.Module, x: Tensor, y: Tensor
) -> dict[str, float]:
    """Loss and metrics over a whole split, with dropout off and running statistics in use."""
    return task.measure(predict(network, head, x), y)


@torch.no_grad()
def predict(network: nn.Module, head: nn.Module, x: Tensor) -> Tensor:
    """Head outputs for all rows of ``x``, in evaluation mode."""
    modes = network.training, head.training
    network.eval()
    head.eval()
    try:
        return torch.cat([head(network(part)) for part in in_parts(x)])
    finally:
        network.train(modes[0])
        head.train(modes[1])


def in_parts(x: Tensor) -> Sequence[Tensor]:
    """The rows of ``x``, as many at a time as a forward pass takes best."""
    rows = ROWS_AT_ONCE
    if x.numel() and not x.is_cuda:
        rows = min(rows, max(FEWEST_ROWS, NUMBERS_AT_ONCE // x[0].numel()))
    parts: tuple[Tensor, ...] = x.split(rows)
    return parts
