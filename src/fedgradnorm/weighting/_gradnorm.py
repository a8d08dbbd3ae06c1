"""FedGradNorm's weights: every task is to learn at a similar pace.

p_i is a client's weight. G_i is the length of its gradient on the gauge (``gauge_norm``). r_i is
its loss ratio over the mean loss ratio. Over the active clients of a round:

    target_i = mean_j(p_j G_j) * r_i^gamma           taken as a constant
    F_grad   = sum_i |p_i G_i - target_i|            the paper's loss of the weights

Source: Mortaheb, Vahapoglu, Ulukus, "FedGradNorm" (2022), Algorithm 2, server part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from fedgradnorm._checks import bounded, one_of, whole
from fedgradnorm.weighting._arithmetic import (
    MOMENTS,
    SMALLEST,
    VANISHED,
    adam,
    from_own_log,
)
from fedgradnorm.weighting._base import Needs, Signals, Summed, only

Rule = Literal["absolute", "squared", "relative", "direct"]
Optimizer = Literal["adam", "sgd"]


class GradNorm(Summed):
    """FedGradNorm's weights, by one of four rules.

    - ``absolute``: the paper. One optimiser step (``lr``, ``optimizer``) on F_grad, ``floor``,
      then rescaling. With a constant step p oscillates around its limit by about ``lr``.
    - ``squared``: the same with 1/2 (p_i G_i - target_i)^2, whose step shrinks near the limit.
    - ``relative``: p_i <- s p_i + (1 - s) target_i / G_i with s = ``smoothing``.
    - ``direct``: the paper's weights move slowly toward q_i ~ r_i^gamma / G_i. This rule goes there
      at once, smoothed in log space: log p <- s log p + (1 - s) log q. A client's first round takes
      q itself. It has no optimiser and no floor. The scale of a client's loss does not matter.

    ``gamma`` is the strength of the pull toward one common pace. A client is held when its gauge
    norm has vanished: when it is under ``guard`` times its largest so far, or no more than rounding
    beside the sum of all. The rule would give it more and more weight for nothing. ``held`` names
    these clients. For its first ``warmup`` rounds a client's weight is left alone too: it stays 1.

    What the rule moves is a client's level; the levels of all clients sum to N. A round's weights
    are the active clients' levels, scaled to sum to their number. With everybody active the two are
    the same. Scaled weights cannot be moved on when clients are absent: those of clients with small
    gradients would shrink in every round without the client with large ones, and its own weight
    would grow in every round with it.

    Args:
        gamma: strength of the pull toward one common pace, 0 or more.
        rule: how the weights move: one of the four above.
        lr: step of the weights, the paper's alpha; for absolute and squared.
        optimizer: that makes this step, adam or sgd.
        floor: least weight before rescaling, from 0 to 1; not for direct.
        smoothing: s, from 0 to 1: what stays of the old weights; for relative and direct.
        guard: part of a client's largest gauge norm, from 0 to 1, below which it is held.
        warmup: rounds of a client in which its weight stays as it is.

    >>> weighting = GradNorm(gamma=0.9, rule="direct")
    >>> weighting.bind(["quiet", "loud"])
    >>> ones = torch.ones(2)
    >>> signals = Signals(ones > 0, ones, ones, ones, torch.tensor([1.0, 3.0]))
    >>> weighting.update(signals).round(decimals=12).tolist()
    [1.5, 0.5]
    """

    needs = Needs.LOSS | Needs.NORM
    losses: ClassVar[tuple[str, ...]] = ("loss_ratio",)
    starts: ClassVar[Mapping[str, float]] = {
        **MOMENTS, "level": 1.0, "peak": 0.0, "held": 0.0, "rounds": 0.0
    }  # fmt: skip

    def __init__(
        self,
        gamma: float = 0.9,
        rule: Rule = "absolute",
        *,
        lr: float = 0.004,
        optimizer: Optimizer = "adam",
        floor: float = 1e-3,
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
        self.floor = bounded("GradNorm's floor", floor, 0, 1)
        self.smoothing = bounded("GradNorm's smoothing", smoothing, 0, 1)
        self.guard = bounded("GradNorm's guard", guard, 0, 1)
        self.warmup = whole("GradNorm's warmup", warmup, 0)
        self._live = self._fresh = torch.empty(0, dtype=torch.bool)  # of the round, as all below
        self._log_q = self._shift = self._moved = torch.empty(0)

    @property
    def held(self) -> Tensor | None:
        """Rows the last update left alone because their gradient has vanished."""
        return self.rows["held"] > 0 if self.rows else None

    @property
    def spread(self) -> float:
        """Little by the direct rule, whose weights even the lengths out from the first round on."""
        return 20.0 if self.rule == "direct" and not self.warmup else super().spread

    def ahead(self, rounds: int) -> bool:
        """By the direct rule: the sums of a round move all rows that have moved before alike."""
        return self.rule == "direct" and rounds > self.warmup

    def first(self, signals: Signals, loud: float = 0.0) -> Tensor:
        """The number of the rows that move, and what their common target is made of."""
        active, p = signals.active, self.rows["level"]
        norm = only(active, signals.gauge_norm)
        live = self._live = self._find_live(norm, active, loud)
        ratio = only(live, signals.loss_ratio)
        counted = [active.double(), norm, live.double()]
        if self.rule != "direct":
            return torch.stack([*counted, ratio, only(live, p * norm)])
        self._log_q = self.gamma * ratio.clamp_min(SMALLEST).log() - norm.clamp_min(_TINY).log()
        gap, seen = p.log() - self._log_q, live & (self.rows["steps"] > 0)
        return torch.stack([*counted, only(live, gap), seen.double(), only(seen, gap)])

    def second(self, signals: Signals, sums: Tensor) -> Tensor:
        """The sum of the levels that move, before and after; of new rows, by the direct rule."""
        p, live = self.rows["level"], self._live
        fresh = torch.zeros_like(live)
        if self.rule == "direct":
            self._shift = _shift(sums)
            self._moved, fresh = self._direct(), live & (self.rows["steps"] == 0)
        else:
            norm = only(signals.active, signals.gauge_norm)
            count = sums[2].clamp_min(1)
            mean = (sums[3] / count).clamp_min(SMALLEST)
            pull = (only(live, signals.loss_ratio) / mean).clamp_min(SMALLEST).pow(self.gamma)
            target = sums[4] / count * pull
            self._moved = self._stepped(norm, p * norm, target).clamp_min(self.floor)
        self.rows["steps"] += live
        self._fresh = fresh
        return torch.stack(
            [only(live, p), only(live & ~fresh, self._moved), only(fresh, self._moved)]
        )

    def settle(self, sums: Tensor, first: Tensor | None = None) -> Tensor:
        """The new levels. Those that move keep their joint share: a held row neither gains nor
        loses by it."""
        p, moved = self.rows["level"], self._moved
        after = sums[1] + sums[2]
        if first is not None:  # they moved by another round's shift: mend it, old and new apart
            late = _shift(first) - self._shift
            old, new = ((1 - self.smoothing) * late).exp(), late.exp()
            after = sums[1] * old + sums[2] * new
            moved = moved * torch.where(self._fresh, new, old)
        scaled = (moved * (sums[0] / after.clamp_min(_TINY))).clamp_min(SMALLEST)
        return p.copy_(torch.where(self._live, scaled, p))

    def coefficient(self, factor: float = 1.0) -> Tensor:
        """The moved levels as they are; a level that stays, times the others' growth."""
        return torch.where(self._live, self._moved, self.rows["level"] * factor)

    def growth(self, sums: Tensor) -> float:
        """By how much the levels that moved grew before they were scaled."""
        before, after = float(sums[0]), float(sums[1] + sums[2])
        return after / before if before > 0 and after > 0 else 1.0

    def _find_live(self, norm: Tensor, active: Tensor, loud: float) -> Tensor:
        """Rows that move: active, their gradient not vanished, and past their warm-up."""
        rows = self.rows
        torch.maximum(rows["peak"], norm, out=rows["peak"])
        # norm is 0 where not active, and no threshold is under 0
        least = VANISHED * norm.sum().clamp_min(loud)
        live = norm > torch.maximum(self.guard * rows["peak"], least)
        torch.gt(active, live, out=rows["held"])
        if self.warmup:
            live &= rows["rounds"] >= self.warmup
        rows["rounds"] += active
        return live

    def _direct(self) -> Tensor:
        """log p <- s log p + (1 - s) log q, with q put where p stands: only ratios matter."""
        seen = self.rows["steps"] > 0
        s = self.smoothing * seen.to(self._log_q.dtype)  # in float64, as everything here
        log_p = s * self.rows["level"].log() + (1 - s) * (self._log_q + self._shift)
        return from_own_log(log_p)

    def _stepped(self, norm: Tensor, pulled: Tensor, target: Tensor) -> Tensor:
        p, live = self.rows["level"], self._live
        if self.rule == "relative":
            goal = target / torch.where(live, norm, 1)
            return self.smoothing * p + (1 - self.smoothing) * goal
        gap = pulled - target
        gradient = (gap.sign() if self.rule == "absolute" else gap) * norm
        if self.optimizer == "sgd":
            return p - self.lr * gradient
        return p - adam(self.rows, gradient, live, self.lr)


_TINY = torch.finfo(torch.float64).tiny


def _shift(sums: Tensor) -> Tensor:
    """The mean of log level - log q over rows seen before, or where there are none over all."""
    every, seen = sums[3] / sums[2].clamp_min(1), sums[5] / sums[4].clamp_min(1)
    return torch.where(sums[4] > 0, seen, every)
