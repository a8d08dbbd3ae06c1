"""Weightings under secure aggregation: each client updates its own weight from sums over clients.

A weighting reads the numbers of all clients at once. In a private federation nobody may see those,
but secure aggregation can reveal sums over the clients of a round. An adapter wraps a weighting
that is bound to one client, and computes the weight that a server would compute, from two sums:

    adapter.first(signals)           this client's numbers; they are summed over the clients
    adapter.second(first_sums)       the client updates its weight; numbers for the second sums
    adapter.coefficient()            the factor of its update: proportional to its weight
    adapter.finish(second_sums)      rescales, as the server would; the client's level

``sizes`` is how many numbers the first and the second sums have. The first sums start with the
number of clients and the sum of their gradient norms (0 if the weighting does not use them). They
are not finite if a client can have no weight. A round's weighted updates are summed along with the
second sums, and the server divides by the sum of the coefficients.

``reuses_sums(rounds)`` tells whether a client can save the first sum after so many rounds: clients
use an earlier round's first sums in ``second``, because the new ones differ by a factor common to
all clients. ``finish`` is then given the round's own first sums. ``growth(second_sums)`` is the
factor by which levels grew before rescaling: the coefficient of a frozen level needs the last one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedgradnorm._errors import ConfigError
from fedgradnorm.weighting._base import Signals, Weighting, bounded_exp, only, safe_log
from fedgradnorm.weighting._gradnorm import GradNorm
from fedgradnorm.weighting._loss_based import ByLog, InverseFirstLoss


class GradNormSums:
    """Any rule of GradNorm: the first sums give the means, the second ones rescale."""

    def __init__(self, weighting: GradNorm) -> None:
        self.weighting, self.direct = weighting, weighting.rule == "direct"
        self.sizes = (6 if self.direct else 5, 3)

    def first(self, signals: Signals) -> Tensor:
        """1, G, whether the weight is free, and the terms of the means in ``GradNorm.weigh``.

        A weight is frozen by the client's own norms alone. With a bound that depends on a sum, a
        client that lies in it could freeze one weight, then shrink all others until one is left.
        """
        rule, p = self.weighting, self.weighting.rows["level"]
        self._norm = norm = only(signals.active, signals.grad_norm)
        self._free = free = rule.find_free(norm, signals.active, norm)
        self._ratio = ratio = only(free, signals.loss_ratio)
        self._new = torch.zeros_like(free)
        own = [signals.active.double(), norm, free.double()]
        if not self.direct:
            return torch.cat([*own, ratio, only(free, p * norm)])
        self._log_q = rule.log_fixed_point(norm, ratio)
        self._new = free & (rule.rows["steps"] == 0)
        known, gap = free & ~self._new, p.log() - self._log_q
        return torch.cat([*own, only(free, gap), known.double(), only(known, gap)])

    def second(self, first_sums: Tensor) -> Tensor:
        """The free levels before the step, and after it: of known clients, and of new ones."""
        rule, free, new = self.weighting, self._free, self._new
        if self.direct:
            self._shift = _shift(first_sums)
            self._moved = rule.direct(self._log_q + self._shift)
        else:
            mean_ratio, mean_weighted_norm = first_sums[3:5] / first_sums[2].clamp_min(1)
            target = rule.target(mean_weighted_norm, self._ratio, mean_ratio)
            self._moved = rule.step(self._norm, target, free)
        rule.rows["steps"] += free
        before, moved = rule.rows["level"], self._moved
        return torch.cat([only(free, before), only(free & ~new, moved), only(new, moved)])

    def finish(self, second_sums: Tensor, own_first_sums: Tensor | None = None) -> Tensor:
        before, known, new = second_sums
        moved = self._moved
        if own_first_sums is not None:  # replace the earlier shift by this round's
            late = _shift(own_first_sums) - self._shift
            factor = ((1 - self.weighting.smoothing) * late).exp(), late.exp()
            known, new = known * factor[0], new * factor[1]
            moved = moved * torch.where(self._new, factor[1], factor[0])
        return self.weighting.rescale(moved, self._free, before, known + new)

    def coefficient(self, growth: float = 1.0) -> Tensor:
        """The level before rescaling; a frozen one grows as the others did last."""
        return torch.where(self._free, self._moved, self.weighting.rows["level"] * growth)

    def growth(self, second_sums: Tensor) -> float:
        """Sum of the free levels after the step over their sum before."""
        before, after = float(second_sums[0]), float(second_sums[1] + second_sums[2])
        return after / before if before > 0 and after > 0 else 1.0

    def reuses_sums(self, rounds: int) -> bool:
        """The direct rule: first sums shift all known clients' logarithms alike."""
        return self.direct and rounds > self.weighting.warmup


def _shift(first_sums: Tensor) -> Tensor:
    """Mean of log p - log q over the clients known before, or over all if there are none."""
    _, _, free, gap, known, known_gap = first_sums
    return torch.where(known > 0, known_gap / known.clamp_min(1), gap / free.clamp_min(1))


class ProportionalSums:
    """p_i = N m_i / sum_j m_j, where each client computes its m_i by itself."""

    sizes = (3, 1)

    def __init__(self, weighting: Weighting) -> None:
        self.weighting = weighting

    def first(self, signals: Signals) -> Tensor:
        """1, 0 and m."""
        self._own = own_number(self.weighting, signals).double()
        return torch.cat([torch.ones_like(self._own), torch.zeros_like(self._own), self._own])

    def second(self, first_sums: Tensor) -> Tensor:
        self._own = self._own * (first_sums[0] / first_sums[2])
        return self._own

    def finish(self, second_sums: Tensor, own_first_sums: Tensor | None = None) -> Tensor:  # noqa: ARG002
        return self._own

    def coefficient(self, growth: float = 1.0) -> Tensor:  # noqa: ARG002
        return self._own

    def growth(self, second_sums: Tensor) -> float:  # noqa: ARG002
        """Weights are not rescaled."""
        return 1.0

    def reuses_sums(self, rounds: int) -> bool:  # noqa: ARG002
        """Always: the first sums only scale all weights."""
        return True


SecureSums = GradNormSums | ProportionalSums


def own_number(weighting: Weighting, signals: Signals) -> Tensor:
    """What a client's weight is proportional to, computed by itself; NaN if it has none."""
    if isinstance(weighting, ByLog):
        return bounded_exp(weighting.log_weight(signals))
    weight = weighting.weigh(signals)
    if isinstance(weighting, InverseFirstLoss):
        first = weighting.rows["first_loss"]
        return torch.where(first > 0, bounded_exp(-safe_log(first, first > 0)), torch.nan)
    frozen = weighting.frozen
    return weight if frozen is None else torch.where(frozen, torch.nan, weight)


def secure_sums(weighting: Weighting) -> SecureSums:
    """The adapter of a weighting; a ConfigError if sums are not enough for it."""
    if weighting.beyond_sums:
        name = type(weighting).__name__
        raise ConfigError(f"{name} needs more than sums over clients: {weighting.beyond_sums}")
    if isinstance(weighting, GradNorm):
        return GradNormSums(weighting)
    return ProportionalSums(weighting)
