"""Where FedGradNorm comes to rest: the points toward which the weights pull the shared network.

Every rule rests where sum_i p_i grad F_i = 0 with p_i G_i proportional to some e_i > 0 (the
``Share``), hence where

    sum_i e_i grad F_i / |grad F_i| = 0                                  (Pareto stationarity)

``direct`` and ``relative`` have e_i = r_i^gamma. So would have the paper's ``absolute`` rule, were
its targets mean_j(p_j G_j) r_i^gamma attainable together: they sum to less than sum_i p_i G_i
unless gamma is 0 or 1, because mean(r^gamma) < mean(r)^gamma = 1 for 0 < gamma < 1. The rescaling
to sum p = N hands what is left over to a single client; see :func:`absolute_share`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.func import grad, jacrev
from torch.nn.functional import one_hot

from studies.theory.algebra import solve
from studies.theory.problems import ConvexProblem

Share = Callable[[Tensor, Tensor, float], Tensor]
"""(r, G, gamma) -> e: how the weighted gradient norms p_i G_i are shared out."""


def pace_share(pace: Tensor, norm: Tensor, gamma: float) -> Tensor:
    """e_i = r_i^gamma: the limit of ``direct`` and ``relative``."""
    return pace.pow(gamma) + 0 * norm


def absolute_share(pace: Tensor, norm: Tensor, gamma: float) -> Tensor:
    """The limit of ``absolute`` as alpha -> 0 with plain gradient steps, for 0 <= gamma <= 1.

    All clients but one slide along p_i G_i = target_i. Rescaling undoes a common factor of p, so at
    rest the mean signs obey s_i G_i ~ p_i; the largest p_i / G_i reaches s_i = 1 first and that
    client m keeps the excess: e_m = N - sum_{i != m} r_i^gamma.
    """
    share = pace.pow(gamma)
    most = (share / norm.square()).argmax()  # p_i / G_i = e_i / G_i^2
    return share + one_hot(most, len(share)) * (len(share) - share.sum())


@dataclass(frozen=True)
class Pull:
    """A problem, gamma and the first losses: what decides where the weights want w to be."""

    problem: ConvexProblem
    gamma: float
    first: Tensor
    share: Share = pace_share

    def _here(self, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """e, the gradients and their norms at w, every head at its best."""
        heads = self.problem.best_heads(w)
        ratio = self.problem.losses(w, heads) / self.first
        gradients = self.problem.shared_gradients(w, heads)
        norm = gradients.norm(dim=1)
        return self.share(ratio / ratio.mean(), norm, self.gamma), gradients, norm

    def weights(self, w: Tensor) -> Tensor:
        """q_i(w) = N (e_i / G_i) / sum_j (e_j / G_j)."""
        share, _, norm = self._here(w)
        weights = share / norm
        return len(weights) * weights / weights.sum()

    def residual(self, w: Tensor) -> Tensor:
        """sum_i e_i grad F_i / |grad F_i| over sum_i e_i."""
        share, gradients, norm = self._here(w)
        return (share / norm) @ gradients / share.sum()

    def value(self, w: Tensor) -> Tensor:
        """Phi(w) = (1/N) sum_i q_i(w) min_h F_i(w, h): the outer loss with the lower level solved.

        What a bilevel method would minimize. Its least value is no compromise at all: at client
        i's own optimum G_i = 0, so q puts all weight on i and Phi = min F_i.
        """
        return (self.weights(w) * self.problem.losses(w, self.problem.best_heads(w))).mean()

    def equilibrium(self, start: Tensor, descent: int = 300, newton: int = 8) -> Tensor:
        """w with zero residual: damped descent on w to come near, then Newton's method."""
        w = start
        for _ in range(descent):
            w = w - 0.3 * self._step(w)
        for _ in range(newton):
            w = w - solve(jacrev(self.residual)(w), self.residual(w))
        return w

    def _step(self, w: Tensor) -> Tensor:
        """(1/N) sum_i q_i grad F_i."""
        share, gradients, norm = self._here(w)
        weights = share / norm
        return weights @ gradients / weights.sum()

    def bilevel_point(self, start: Tensor, descent: int = 400, newton: int = 8) -> Tensor:
        """A stationary point of :meth:`value` near ``start``: gradient descent, then Newton."""
        w = start
        for _ in range(descent):
            w = w - 0.05 * grad(self.value)(w)
        for _ in range(newton):
            curvature = jacrev(grad(self.value))(w)
            w = w - solve(curvature, grad(self.value)(w))
        return w

    def own_optimum(self, client: int) -> Tensor:
        """argmin_w min_h F_i(w, h) of one client."""
        return solve(self.problem.schur[client], self.problem.pull[client])


def first_losses(problem: ConvexProblem, w: Tensor | None = None) -> Tensor:
    """F_i(w, 0): every head starts at zero, w at zero unless given."""
    n, d, k = problem.shape
    w = problem.a.new_zeros(d) if w is None else w
    return problem.losses(w, problem.a.new_zeros(n, k))
