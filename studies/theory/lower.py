"""FedGradNorm's round as one step of ITD: w above, heads and weights below.

The upper variable is w with f = (1/N) sum_i p_i F_i(w, h_i); the lower one y = (h, p). One inner
step moves the heads, then the weights by their rule; the outer step descends on w with y taken as
a constant. That is the engine's round, number for number (a test compares the two paths), written
without the engine so that it can be differentiated.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import jacrev

from fedgradnorm.weighting import GradNorm
from studies.theory.algebra import solve
from studies.theory.bilevel import Bilevel, itd_step
from studies.theory.problems import ConvexProblem
from studies.theory.simulated_rounds import Steps


@dataclass(frozen=True)
class WeightedLosses:
    """A convex problem under a GradNorm rule; ``first`` are the first losses F_0."""

    problem: ConvexProblem
    rule: GradNorm
    steps: Steps
    first: Tensor

    def bilevel(self) -> Bilevel:
        """The round as :func:`studies.theory.bilevel.itd` takes it."""
        return Bilevel(self.outer, self.inner)

    def outer(self, w: Tensor, y: Tensor) -> Tensor:
        """f = (1/N) sum_i p_i F_i(w, h_i)."""
        heads, weights = self.split(y)
        return (weights * self.problem.losses(w, heads)).mean()

    def inner(self, w: Tensor, y: Tensor) -> Tensor:
        """Heads by ``head_steps`` gradient steps, then weights by one step of the rule."""
        heads, weights = self.split(y)
        for _ in range(self.steps.head_steps):
            heads = heads - self.steps.head_lr * self.problem.head_gradients(w, heads)
        norm = self.problem.shared_gradients(w, heads).norm(dim=1)
        ratio = self.problem.losses(w, heads) / self.first
        moved = moved_weights(self.rule, weights, norm, ratio / ratio.mean())
        return torch.cat([heads.flatten(), moved])

    def split(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Heads [N, k] and weights [N] of the lower variable."""
        n, _, k = self.problem.shape
        return y[: n * k].view(n, k), y[n * k :]

    def start(self) -> Tensor:
        """Heads at zero, weights at one."""
        n, _, k = self.problem.shape
        return torch.cat([self.first.new_zeros(n * k), self.first.new_ones(n)])

    def round(self, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """One round of FedGradNorm."""
        return itd_step(self.bilevel(), w, y, inner_steps=1, lr=self.steps.shared_lr)

    def whole(self, state: Tensor) -> Tensor:
        """One round on the state (w, h, p) as one vector."""
        size = self.problem.shape[1]
        return torch.cat(self.round(state[:size], state[size:]))

    def jacobian(self, state: Tensor) -> Tensor:
        """That of the round; at a rest point its spectral radius is the rate of convergence."""
        matrix: Tensor = jacrev(self.whole)(state)
        return matrix

    def rest_point(self, w: Tensor, weights: Tensor, newton_steps: int = 12) -> Tensor:
        """A state (w, h, p) that a round leaves alone, by Newton's method from near one."""
        state = torch.cat([w, self.problem.best_heads(w).flatten(), weights])
        eye = torch.eye(len(state), dtype=state.dtype)
        for _ in range(newton_steps):
            move = self.whole(state) - state
            state = state + solve(eye - self.jacobian(state), move)
        return state


def moved_weights(rule: GradNorm, p: Tensor, norm: Tensor, pace: Tensor) -> Tensor:
    """p after one round of ``rule``, everybody active, nobody held, the floor not touched.

    ``squared`` is taken with plain gradient descent. The same formulas as in
    :mod:`fedgradnorm.weighting._gradnorm`, without memory and in differentiable form.
    """
    pull = pace.pow(rule.gamma)
    s, target = rule.smoothing, (p * norm).mean() * pull
    if rule.rule == "direct":
        log_q = pull.log() - norm.log()
        moved = (s * p.log() + (1 - s) * (log_q + (p.log() - log_q).mean())).exp()
    elif rule.rule == "relative":
        moved = s * p + (1 - s) * target / norm
    else:
        gap = p * norm - target
        moved = p - rule.lr * norm * (gap if rule.rule == "squared" else gap.sign())
    return moved * len(p) / moved.sum()
