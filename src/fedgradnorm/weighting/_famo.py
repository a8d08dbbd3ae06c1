"""FAMO: all losses are to fall at one rate, seen from the losses alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedgradnorm._checks import bounded
from fedgradnorm.weighting._arithmetic import MOMENTS, adam, from_log
from fedgradnorm.weighting._base import Needs, Signals, Weighting

TINY_LOSS = 1e-8  # keeps the logarithm of a loss of zero finite, as in the authors' code


class FAMO(Weighting):
    """Fast adaptive multitask optimisation.

        p_i = z_i / F_i,   z = softmax(w),   w <- Adam step (logit_lr, decay) along J_z^T delta,
        delta_i = log(F_i before the step) - log(F_i after it)

    The paper evaluates F twice on one batch, before and after the network's step. A federated
    server sees one loss a round, so delta_i is between a client's last two rounds.
    ``decay`` is the paper's 1e-3; the authors' code has 1e-5.
    Source: Liu, Feng, Stone, Liu, "FAMO: Fast adaptive multitask optimization" (2023),
    arXiv 2306.03792, algorithm 1 and equations 10 to 12.

    Args:
        logit_lr: Adam's step on w, 0 or more.
        decay: pull of w toward 0, 0 or more.
    """

    needs = Needs.LOSS
    starts: ClassVar[Mapping[str, float]] = {"logit": 0.0, "last": 0.0, "rounds": 0.0, **MOMENTS}
    beyond_sums = "all clients' logits at once, for their softmax"

    def __init__(self, logit_lr: float = 0.025, decay: float = 1e-3) -> None:
        super().__init__()
        self.logit_lr = bounded("FAMO's logit_lr", logit_lr)
        self.decay = bounded("FAMO's decay", decay)

    def weigh(self, signals: Signals) -> Tensor:
        """z_i / F_i, with z stepped by what the last step did to the losses."""
        active, rows = signals.active, self.rows
        log_loss = (torch.where(active, signals.loss.double(), 1) + TINY_LOSS).log()
        self._step(rows["last"] - log_loss, active & (rows["rounds"] > 0))
        rows["last"].copy_(torch.where(active, log_loss, rows["last"]))
        rows["rounds"] += active
        return from_log(rows["logit"] - log_loss, active)

    def _step(self, delta: Tensor, live: Tensor) -> None:
        w = self.rows["logit"]
        z = torch.where(live, w, -torch.inf).softmax(0).nan_to_num(0)
        delta = torch.where(live, delta, 0)
        gradient = z * (delta - (z * delta).sum()) + self.decay * w
        w.copy_(torch.where(live, w - adam(self.rows, gradient, live, self.logit_lr), w))
        self.rows["steps"] += live
