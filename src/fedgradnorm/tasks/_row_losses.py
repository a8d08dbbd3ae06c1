"""One loss a row where a row's target has gaps or a shape.

A target is taken apart into single numbers: a class, a label, a value, at every position of its
shape. A row's loss is the mean over those of them that are known, and 0 where none is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from fedgradnorm._errors import ConfigError
from fedgradnorm.tasks._measures import (
    LossFunction,
    binary_cross_entropy,
    cross_entropy,
    ordinal_cross_entropy,
    squared_error,
)
from fedgradnorm.tasks._missing import known, mean_of_labelled, positions, without_gaps
from fedgradnorm.tasks._weighted_losses import WeightedLoss


def _cross_entropies(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, reduction="none")[:, None]


def _binary_cross_entropies(output: Tensor, target: Tensor) -> Tensor:
    y = target.to(output.dtype).view_as(output)
    return F.binary_cross_entropy_with_logits(output, y, reduction="none")


def _ordinal_cross_entropies(output: Tensor, target: Tensor) -> Tensor:
    return ordinal_cross_entropy(output, target)[:, None]


def _squared_errors(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square()


_SINGLE: dict[LossFunction, Callable[[Tensor, Tensor], Tensor]] = {
    cross_entropy: _cross_entropies,
    binary_cross_entropy: _binary_cross_entropies,
    ordinal_cross_entropy: _ordinal_cross_entropies,
    squared_error: _squared_errors,
}
"""The usual losses of single numbers, [rows, numbers of a row]."""


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
        single = _SINGLE[loss](flat, goal)
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
    there = known(target)
    if (
        counted
        or there.ndim < 2
        or bool((there.flatten(1).any(1) == there.flatten(1).all(1)).all())
    ):
        return None
    row, *place = ((~there) & there.flatten(1).any(1).view(-1, *[1] * (there.ndim - 1))).nonzero()[
        0
    ]
    return (
        f"y{[int(row), *map(int, place)]} is missing, but not all of its row, and the loss is your "
        "own, which is given whole rows; remove the row, or make all of its targets NaN"
    )
