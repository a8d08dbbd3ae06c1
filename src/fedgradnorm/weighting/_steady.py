"""FedGradNorm's weights from averages over all rounds of a client.

With G_i a client's gradient norm (``grad_norm``) and F_i / F_i,0 its loss ratio,

    p_i ~ R_i^gamma / A_i        A_i = sqrt(mean of G_i^2),   R_i = mean of F_i / F_i,0

where means run over all rounds in which the client participated, with equal weight.

The direct rule uses the last rounds alone. A small client that overfits has gradients and losses
near zero there, which fluctuate from batch to batch, and so does its weight. Here one round changes
a mean by a share of 1 / (rounds so far). Batch noise averages out, and R^gamma / A cannot grow
faster than the square root of the number of rounds. The scale of a client's loss still cancels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedgradnorm._checks import bounded
from fedgradnorm.weighting._base import (
    SMALLEST,
    VANISHED,
    Needs,
    Signals,
    Weighting,
    active_mean,
    only,
)


class Steady(Weighting):
    """Weights that even out gradient norms and pace, from means over all rounds of a client.

    ``gamma`` is the strength of the pull toward one common pace, as in ``GradNorm``. There is no
    learning rate and no smoothing to choose. A client whose gradient was never more than rounding
    error gets the mean weight of the others, and ``frozen`` marks it.

    Args:
        gamma: strength of the pull toward one common pace, 0 or more.

    >>> weighting = Steady()
    >>> weighting.bind(["minor", "dominant"])
    >>> ones = torch.ones(2)
    >>> weighting.update(Signals(ones > 0, ones, ones, ones, torch.tensor([1.0, 3.0]))).tolist()
    [1.5, 0.5]
    """

    needs = Needs.LOSS | Needs.NORM
    losses: ClassVar[tuple[str, ...]] = ("loss_ratio",)
    beyond_sums = ""
    starts: ClassVar[Mapping[str, float]] = dict.fromkeys(
        ("square", "ratio", "rounds", "frozen"), 0.0
    )

    def __init__(self, gamma: float = 0.5) -> None:
        super().__init__()
        self.gamma = bounded("Steady's gamma", gamma)

    @property
    def spread(self) -> float:
        """Small: the weights even out gradient norms from the first round on."""
        return 20.0

    def weigh(self, signals: Signals) -> Tensor:
        """R^gamma / A of every row."""
        active, rows = signals.active, self.rows
        rows["rounds"] += active
        part = active / rows["rounds"].clamp_min(1)
        rows["square"] += part * (only(active, signals.grad_norm).square() - rows["square"])
        rows["ratio"] += part * (only(active, signals.loss_ratio) - rows["ratio"])
        length = rows["square"].sqrt()
        live = active & (length > VANISHED * only(active, length).sum())
        torch.gt(active, live, out=rows["frozen"])
        weight = rows["ratio"].clamp_min(SMALLEST).pow(self.gamma) / torch.where(live, length, 1)
        return torch.where(live, weight, torch.where(live.any(), active_mean(weight, live), 1.0))
