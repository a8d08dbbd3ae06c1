"""Adam's step of heads that are rows of a few tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedgradnorm import _optimizers as optimizers

BEYOND = ("amsgrad", "differentiable", "decoupled_weight_decay")
"""Options with which the step is left to torch's own optimiser."""


def steps_in_rows(optimizer: torch.optim.Optimizer) -> bool:
    """Whether :class:`AdamRows` can take this optimiser's steps."""
    (group,) = optimizer.param_groups
    plain = optimizers.is_adam(optimizer) and bool(group.get("fused"))
    return plain and not any(group.get(option) for option in BEYOND)


class Rows:
    """A stacked parameter: its rows, and those of its gradient and moments; all rows' counts."""

    def __init__(self, x: Tensor, gradient: Tensor, moments: Mapping[str, Tensor]) -> None:
        tables = x, gradient, moments["exp_avg"], moments["exp_avg_sq"]
        self.x, self.gradient, self.mean, self.square = (list(t.unbind()) for t in tables)
        self.counts = moments["step"]
        self.count = list(self.counts.unbind())


class AdamRows:
    """The kernel of torch.optim.Adam on rows that are known beforehand: the same numbers.

    torch's own step looks up the gradient and the moments of every parameter, and counts its steps
    one by one. That takes longer than the kernel. Here lists are made once, and all rows are
    counted in one call.
    """

    def __init__(self, parts: Sequence[Rows]) -> None:
        self._parts = parts

    @torch.no_grad()
    def step(self, first: int, how: Mapping[str, Any]) -> None:
        """The ``first`` rows take a step with the options of an optimiser's group."""
        beta1, beta2 = how["betas"]
        for part in self._parts:
            part.counts[:first] += 1
            torch._fused_adam_(
                part.x[:first],
                part.gradient[:first],
                part.mean[:first],
                part.square[:first],
                [],
                part.count[:first],
                lr=how["lr"],
                beta1=beta1,
                beta2=beta2,
                weight_decay=how["weight_decay"],
                eps=how["eps"],
                amsgrad=False,
                maximize=how["maximize"],
            )
