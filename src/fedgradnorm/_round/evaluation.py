"""A network and a head as they are: predictions for all rows, loss and metrics of a split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from fedgradnorm.models._input_rows import Inputs, call, in_chunks, leaves
from fedgradnorm.tasks._task import Task

ROWS_AT_ONCE = 4096  # in a forward pass over a whole split
NUMBERS_AT_ONCE = 2**19  # about, on a CPU, to stay in its cache
FEWEST_ROWS = 64  # but no fewer: products of fewer are slow


@torch.no_grad()
def evaluate(
    task: Task, network: nn.Module, head: nn.Module, x: Inputs, y: Tensor
) -> dict[str, float]:
    """Loss and metrics over a whole split, with dropout off and running statistics in use."""
    return task.measure(predict(network, head, x), y)


def predict(network: nn.Module, head: nn.Module, x: Inputs) -> Tensor:
    """Head outputs for all rows of ``x``, in evaluation mode."""
    return answers(head, represented(network, x))


def represented(network: nn.Module, x: Inputs) -> Iterator[Tensor]:
    """What the network makes of the rows of ``x``, part by part, in evaluation mode."""
    return (_evaluated(network, part) for part in in_parts(x))


def answers(head: nn.Module, features: Iterable[Tensor]) -> Tensor:
    """Head outputs for all parts of what a network made, in evaluation mode."""
    return torch.cat([_evaluated(head, part) for part in features])


@torch.no_grad()
def _evaluated(module: nn.Module, x: Inputs) -> Tensor:
    """The module's output, with dropout off and running statistics in use."""
    mode = module.training
    module.eval()
    try:
        return call(module, x)
    finally:
        module.train(mode)


def in_parts(x: Inputs) -> Iterable[Inputs]:
    """The rows of ``x``, as many at a time as a forward pass takes best."""
    rows, numbers = ROWS_AT_ONCE, sum(leaf.numel() for leaf in leaves(x).values())
    if numbers and x.device.type != "cuda":
        rows = min(rows, max(FEWEST_ROWS, NUMBERS_AT_ONCE // max(1, numbers // len(x))))
    return in_chunks(x, rows) if len(x) else [x]
