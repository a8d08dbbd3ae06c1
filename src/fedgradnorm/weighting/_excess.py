"""ExcessMTL: weights from the excess risk of each task, estimated from its gradient's length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedgradnorm._checks import bounded
from fedgradnorm.weighting._base import Needs, Signals, only
from fedgradnorm.weighting._loss_based import ByLog

LARGEST_RATIO = 100.0  # so that one round cannot decide all later ones


class ExcessMTL(ByLog):
    r"""Tasks that are furthest from their own optimum count most; noise in labels adds nothing.

    .. math:: p_i \leftarrow p_i \exp(\eta \, E_i / E_i^0), \qquad
              E_i = G_i^2 / \sqrt{\textstyle\sum_t G_i(t)^2}

    E_i is the paper's second-order estimate g^T H^-1 g of the excess risk, with H from the squared
    gradients so far. The paper has a curvature per parameter; here a client has one for its norm
    layer, so it sends one number. The first round leaves the weights alone, as in the paper; a
    ratio above 100 counts as 100.
    Source: He, Zhou, Zhang, Yun, Xu, Zeng, Chilimbi, Zhao, "Robust multi-task learning with excess
    risks" (2024), arXiv 2402.02009, algorithm 1.

    Args:
        step: step size of the weights (eta), 0 or more.
    """

    needs = Needs.NORM
    starts: ClassVar[Mapping[str, float]] = {"log_weight": 0.0, "length": 0.0, "first": 0.0}

    def __init__(self, step: float = 0.01) -> None:
        super().__init__()
        self.step = bounded("ExcessMTL's step", step)

    def log_weight(self, signals: Signals) -> Tensor:
        """The logarithm after this round's multiplicative step."""
        rows, norm = self.rows, only(signals.active, signals.grad_norm)
        known = rows["first"] > 0
        live = signals.active & (norm > 0)
        length = torch.where(live, torch.hypot(rows["length"], norm), rows["length"])
        ratio = (norm / torch.where(known, rows["first"], 1)) * (norm / length.clamp_min(1e-300))
        step = self.step * ratio.clamp_max(LARGEST_RATIO)
        rows["log_weight"] += torch.where(live & known, step, 0)
        rows["length"].copy_(length)
        rows["first"].copy_(torch.where(live & ~known, norm, rows["first"]))
        return rows["log_weight"]
