"""Predictions of a network and a head, and the loss and metrics of a split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from fedgradnorm._client import Scaler
from fedgradnorm.models._input_rows import Inputs, call, in_chunks, leaves
from fedgradnorm.models._streamed import Streamed, Targets, pieces
from fedgradnorm.tasks._task import Task

ROWS_AT_ONCE = 4096  # in a forward pass over a whole split
NUMBERS_AT_ONCE = 2**19  # about, on a CPU, to stay in its cache
NUMBERS_READ = 2**24  # about, of a split that is read for a GPU
FEWEST_ROWS = 64  # but no fewer: products of fewer are slow


@torch.no_grad()
def evaluate(
    task: Task,
    network: nn.Module,
    head: nn.Module,
    x: Inputs,
    y: Targets,
    scaling: Scaler | None = None,
) -> dict[str, float]:
    """Loss and metrics over a whole split, with dropout off and running statistics in use.

    Of a streamed split at most two pieces of inputs are in memory, and all outputs and targets: on
    the host, unless a custom loss or metric may need them where they were made.
    """
    if isinstance(x, Streamed):
        outputs, targets = list[Tensor](), list[Tensor]()
        for part, own in pieces(x, y, rows_at_once(x)):
            output = answers(head, [_evaluated(network, part)])
            outputs.append(output.cpu() if task.measures_anywhere else output)
            targets.append(own.cpu() if task.measures_anywhere else own)
        return task.measure(torch.cat(outputs), torch.cat(targets), scaling)
    assert isinstance(y, Tensor)
    return task.measure(predict(network, head, x), y, scaling)


def predict(network: nn.Module, head: nn.Module, x: Inputs) -> Tensor:
    """Head outputs for all rows of ``x``, in evaluation mode."""
    return answers(head, represented(network, x))


def represented(network: nn.Module, x: Inputs) -> Iterator[Tensor]:
    """The network's features of the rows of ``x``, part by part, in evaluation mode."""
    return (_evaluated(network, part) for part in in_parts(x))


def answers(head: nn.Module, features: Iterable[Tensor]) -> Tensor:
    """Head outputs for all parts of a network's features, in evaluation mode.

    Other heads may read the same features, and a head may begin in place: it gets a copy.
    """
    plain = type(head) is nn.Linear
    return torch.cat([_evaluated(head, part if plain else part.clone()) for part in features])


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
    """The rows of ``x`` in chunks of :func:`rows_at_once`."""
    return in_chunks(x, rows_at_once(x)) if len(x) else [x]


def rows_at_once(x: Inputs) -> int:
    read = isinstance(x, Streamed)
    numbers = sum(leaf.numel() for leaf in leaves(x).values())
    each = numbers if read else numbers // max(1, len(x))
    if numbers and x.device.type != "cuda":
        most = NUMBERS_AT_ONCE
    elif read:
        most = NUMBERS_READ
    else:
        return ROWS_AT_ONCE
    return min(ROWS_AT_ONCE, max(FEWEST_ROWS, most // max(1, each)))
