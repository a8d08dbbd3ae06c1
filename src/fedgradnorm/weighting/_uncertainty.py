"""Weights that are learned with the networks: one log-scale s_i per client, stepped by Adam."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedgradnorm._checks import bounded
from fedgradnorm.weighting._arithmetic import MOMENTS, adam
from fedgradnorm.weighting._base import Needs, Signals
from fedgradnorm.weighting._loss_based import ByLog


class Uncertainty(ByLog):
    """Uncertainty weighting: s_i is the log-variance of client i's task.

        minimise over s:  sum_i 1/2 exp(-s_i) F_i + 1/2 s_i,     p_i = exp(-s_i)

    s is the server's and takes one Adam step (``scale_lr``) a round; at its limit p_i = 1 / F_i.
    Every task has the regression's form (equation 7), as is usual; the paper's equation 10 counts
    a classification twice, which would only double its weight.
    Source: Kendall, Gal, Cipolla, "Multi-task learning using uncertainty to weigh losses for scene
    geometry and semantics" (2018), arXiv 1705.07115, with the log-variance learned, as they advise.

    Args:
        scale_lr: Adam's step on s, 0 or more.
    """

    needs = Needs.LOSS
    starts: ClassVar[Mapping[str, float]] = {"log_scale": 0.0, **MOMENTS}
    sign: ClassVar[int] = -1
    factor: ClassVar[float] = 0.5

    def __init__(self, scale_lr: float = 0.01) -> None:
        super().__init__()
        self.scale_lr = bounded(f"{type(self).__name__}'s scale_lr", scale_lr)

    def log_weight(self, signals: Signals) -> Tensor:
        """-s_i, after one step on s."""
        active, s = signals.active, self.rows["log_scale"]
        loss = torch.where(active, signals.loss.double(), 1)
        # With u = -s (UW) or u = s (IMTL-L): d/du of exp(u) F - u is exp(u) F - 1.
        gradient = self.sign * self.factor * ((self.sign * s).exp() * loss - 1)
        s.copy_(torch.where(active, s - adam(self.rows, gradient, active, self.scale_lr), s))
        self.rows["steps"] += active
        return self.sign * s


class IMTLL(Uncertainty):
    """IMTL-L: s_i rescales client i's loss so that all losses become one size.

        minimise over s:  sum_i exp(s_i) F_i - s_i,     p_i = exp(s_i)

    This is twice uncertainty weighting's objective with the sign of s turned, so Adam makes the two
    the same. Both are here because published tables have both.
    Source: Liu, Li, Kuang et al., "Towards impartial multi-task learning" (2021), equation 6.

    Args:
        scale_lr: Adam's step on s, 0 or more.
    """

    sign = 1
    factor = 1.0
