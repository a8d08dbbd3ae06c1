"""FedGradNorm's weights: every task should learn at a similar pace.

The server part of Algorithm 2 in Mortaheb, Vahapoglu, Ulukus, "FedGradNorm" (2022). Client i has
the weight p_i, the gradient norm G_i (``grad_norm``) and the loss ratio F_i / F_i,0. Means and
sums run over the clients of a round:

    r_i      = (F_i / F_i,0) / mean_j(F_j / F_j,0)      relative training rate
    target_i = mean_j(p_j G_j) * r_i^gamma              a constant for the next lines
    F_grad   = sum_i |p_i G_i - target_i|               the loss of the weights
    dF_grad / dp_i = sign(p_i G_i - target_i) * G_i
    p <- one optimizer step on F_grad with learning rate ``lr``, the paper's alpha
    p <- max(p, ``floor``)                              ours, not the paper's
    p <- N p / sum_j p_j
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from fedgradnorm._checks import bounded, one_of, whole
from fedgradnorm.weighting._base import (
    MOMENTS,
    SMALLEST,
    VANISHED,
    Needs,
    Signals,
    Weighting,
    active_mean,
    adam,
    bounded_exp,
    only,
)

Rule = Literal["absolute", "squared", "relative", "direct"]
Optimizer = Literal["adam", "sgd"]
TINY = torch.finfo(torch.float64).tiny


class GradNorm(Weighting):
    """FedGradNorm's weights, updated by one of four rules.

    - ``absolute``: the paper. One optimizer step on F_grad, the floor, then rescaling. With a
      constant learning rate the weights oscillate around their limit by about ``lr``.
    - ``squared``: the same on 1/2 sum_i (p_i G_i - target_i)^2, whose steps shrink near the limit.
    - ``relative``: p_i <- s p_i + (1 - s) target_i / G_i with s = ``smoothing``.
    - ``direct``: the rules above approach q_i ~ r_i^gamma / G_i slowly. This rule jumps there,
      smoothed in log space: log p <- s log p + (1 - s) log q, with s = 0 in a client's first round.
      It needs no optimizer and no floor, and the scale of a client's loss cancels.

    A client's weight is frozen while its gradient vanishes, that is, while its gradient norm is
    below ``guard`` times its largest so far, or below rounding error compared with all clients.
    Otherwise every rule would give such a client more and more weight to no effect. ``frozen``
    marks these clients. In a client's first ``warmup`` rounds, its weight stays at 1.

    When only some clients participate, the rules update *levels*. The levels of all clients sum to
    N, and a round's weights are the active clients' levels, rescaled to sum to their number; with
    full participation levels and weights are the same. Updating the rescaled weights instead would
    shrink the weights of clients with small gradients in every round that a dominant client misses,
    and grow the dominant client's weight in every round that it joins.

    The floor is our addition. Without it (``floor=None``), weights are the paper's and can become
    zero or negative, in particular with plain SGD and a task with large gradients. They are then
    not clamped, and a step that would leave them without a positive sum is skipped. A private
    federation needs positive weights and therefore refuses ``floor=None``.

    Args:
        gamma: how strongly clients that lag behind are favored, 0 or more; 0 means not at all.
        rule: how the weights are updated: absolute (the paper's), relative, squared or direct.
        lr: learning rate of the weights, the paper's alpha; used by the rules absolute and squared.
        optimizer: optimizer of the weights, adam or sgd; used by the rules absolute and squared.
        floor: smallest weight before rescaling, 0 to 1, or None; unused by the rule direct.
        smoothing: share of the old weight that remains, 0 to 1; used by relative and direct.
        guard: freeze the weight if the gradient norm is below this share of the client's largest.
        warmup: number of rounds of a client before its weight is first updated.

    >>> weighting = GradNorm(gamma=0.9, rule="direct")
    >>> weighting.bind(["minor", "dominant"])
    >>> ones = torch.ones(2)
    >>> signals = Signals(ones > 0, ones, ones, ones, torch.tensor([1.0, 3.0]))
    >>> weighting.update(signals).round(decimals=12).tolist()
    [1.5, 0.5]
    """

    needs = Needs.LOSS | Needs.NORM
    losses: ClassVar[tuple[str, ...]] = ("loss_ratio",)
    beyond_sums = ""
    gathers: ClassVar[bool] = True
    starts: ClassVar[Mapping[str, float]] = {
        **MOMENTS, "level": 1.0, "peak": 0.0, "frozen": 0.0, "rounds": 0.0
    }  # fmt: skip

    def __init__(
        self,
        gamma: float = 0.9,
        rule: Rule = "absolute",
        *,
        lr: float = 0.004,
        optimizer: Optimizer = "adam",
        floor: float | None = 1e-3,
        smoothing: float = 0.95,
        guard: float = 1e-4,
        warmup: int = 0,
    ) -> None:
        super().__init__()
        one_of("GradNorm rule", rule, get_args(Rule))
        one_of("GradNorm optimizer", optimizer, get_args(Optimizer))
        self.rule, self.optimizer = rule, optimizer
        self.gamma = bounded("GradNorm's gamma", gamma)
        self.lr = bounded("GradNorm's lr", lr)
        self.floor = None if floor is None else bounded("GradNorm's floor", floor, 0, 1)
        self.smoothing = bounded("GradNorm's smoothing", smoothing, 0, 1)
        self.guard = bounded("GradNorm's guard", guard, 0, 1)
        self.warmup = whole("GradNorm's warmup", warmup, 0)
        if floor is None and rule in ("absolute", "squared"):
            self.positive = False
            self.beyond_sums = "weights above 0, which floor = None does not guarantee"

    @property
    def spread(self) -> float:
        """Small for the direct rule, which evens out gradient norms from the first round on."""
        return 20.0 if self.rule == "direct" and not self.warmup else super().spread

    def weigh(self, signals: Signals) -> Tensor:
        """One round of the algorithm, over the rows whose weight is not frozen."""
        p, norm = self.rows["level"], only(signals.active, signals.grad_norm)  # p_i and G_i
        free = self.find_free(norm, signals.active, norm.sum())
        ratio = only(free, signals.loss_ratio)  # F_i / F_i,0
        if self.rule == "direct":
            log_q = self.log_fixed_point(norm, ratio)
            # Rescaling cancels a shift of log q, unless some clients are new and take q itself:
            # bring q to the scale of p, over the others.
            known = free & (self.rows["steps"] > 0)
            shift = active_mean(p.log() - log_q, torch.where(known.any(), known, free))
            moved = self.direct(log_q + shift)
        else:
            target = self.target(active_mean(p * norm, free), ratio, active_mean(ratio, free))
            moved = self.step(norm, target, free)
        self.rows["steps"] += free
        return self.rescale(moved, free, only(free, p).sum(), only(free, moved).sum())

    def find_free(self, norm: Tensor, active: Tensor, norm_sum: Tensor) -> Tensor:
        """Active rows whose gradient has not vanished and whose warm-up is over."""
        rows = self.rows
        torch.maximum(rows["peak"], norm, out=rows["peak"])
        # inactive rows have norm 0, which is above neither bound
        free = norm > torch.maximum(self.guard * rows["peak"], VANISHED * norm_sum)
        torch.gt(active, free, out=rows["frozen"])
        if self.warmup:
            free &= rows["rounds"] >= self.warmup
        rows["rounds"] += active
        return free

    def target(self, mean_weighted_norm: Tensor, ratio: Tensor, mean_ratio: Tensor) -> Tensor:
        """target_i = mean_j(p_j G_j) * r_i^gamma, with r_i = ratio_i / mean_j(ratio_j)."""
        rate = (ratio / mean_ratio.clamp_min(SMALLEST)).clamp_min(SMALLEST)
        return mean_weighted_norm * rate.pow(self.gamma)

    def step(self, norm: Tensor, target: Tensor, free: Tensor) -> Tensor:
        """p after one step by the absolute, squared or relative rule, and the floor."""
        p, s = self.rows["level"], self.smoothing
        if self.rule == "relative":
            p = s * p + (1 - s) * (target / torch.where(free, norm, 1))
        else:
            gap = p * norm - target
            gradient = (gap.sign() if self.rule == "absolute" else gap) * norm
            if self.optimizer == "adam":
                p = p - adam(self.rows, gradient, free, self.lr)
            else:
                p = p - self.lr * gradient
        return p if self.floor is None else p.clamp_min(self.floor)

    def log_fixed_point(self, norm: Tensor, ratio: Tensor) -> Tensor:
        """log q_i up to a constant: q_i ~ ratio_i^gamma / G_i."""
        return self.gamma * ratio.clamp_min(SMALLEST).log() - norm.clamp_min(TINY).log()

    def direct(self, log_q: Tensor) -> Tensor:
        """log p <- s log p + (1 - s) log q; s = 0 in a client's first round."""
        s = self.smoothing * (self.rows["steps"] > 0).to(log_q.dtype)
        return bounded_exp(s * self.rows["level"].log() + (1 - s) * log_q)

    def rescale(self, moved: Tensor, free: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """The new levels: free rows keep their joint sum, so frozen ones neither gain nor lose."""
        p = self.rows["level"]
        scaled = moved * (before / after)
        if self.positive:
            scaled = scaled.clamp_min(SMALLEST)
        return p.copy_(torch.where(free & (before > 0) & (after > 0), scaled, p))
