"""Rounds of the real engine on a convex problem, and the same rounds as exact matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgradnorm._federation.federation import Federation
from fedgradnorm._round.settings import ExecutorName, Settings
from fedgradnorm.weighting import Weighting
from studies.theory.algebra import dot, solve, weighted
from studies.theory.problems import ConvexProblem


@dataclass(frozen=True)
class Steps:
    """Numbers of local steps and the step sizes of plain gradient descent everywhere."""

    shared_lr: float = 0.3
    head_lr: float = 0.3
    head_steps: int = 1
    shared_steps: int = 1
    local_lr: float = 0.01


@dataclass(frozen=True)
class Path:
    """What the engine did: w [K + 1, d] and p [K + 1, N] from the start on, heads at the end."""

    w: Tensor
    weights: Tensor
    heads: Tensor

    def errors(self, goal: Tensor) -> Tensor:
        """|w_k - goal| after every round."""
        errors: Tensor = (self.w - goal).norm(dim=1)
        return errors


def federate(
    problem: ConvexProblem,
    weighting: Weighting,
    steps: Steps,
    start: Tensor | None = None,
    executor: ExecutorName = "auto",
) -> Federation:
    """The problem as a federation: full batches, plain SGD everywhere, float64."""
    start = problem.a.new_zeros(problem.shape[1]) if start is None else start
    settings = Settings(
        batch_size=None,
        head_steps=steps.head_steps,
        shared_steps=steps.shared_steps,
        head_optimizer={"name": "sgd", "lr": steps.head_lr},
        server_optimizer={"name": "sgd", "lr": steps.shared_lr},
        local_optimizer={"name": "sgd", "lr": steps.local_lr},
        executor=executor,
    )
    network, clients = problem.network(start), problem.clients()
    return Federation(network, clients, weighting, settings, torch.device("cpu"))


def follow(
    problem: ConvexProblem,
    weighting: Weighting,
    steps: Steps,
    rounds: int,
    *,
    start: Tensor | None = None,
    executor: ExecutorName = "auto",
    before_round: Callable[[int, Weighting], None] | None = None,
) -> Path:
    """Run ``rounds`` rounds of the engine and keep w and p after each.

    ``before_round(k, weighting)`` may change the weighting's settings on the way, for example its
    step size.
    """
    federation = federate(problem, weighting, steps, start, executor)
    server = federation.server
    w, weights = [server.shared.detach().clone()], [server.weighting.weight.clone()]
    for number in range(rounds):
        if before_round is not None:
            before_round(number, server.weighting)
        federation.round(number, federation.names)
        w.append(server.shared.detach().clone())
        weights.append(server.weighting.weight.clone())
    return Path(torch.stack(w), torch.stack(weights), heads_of(federation))


def heads_of(federation: Federation) -> Tensor:
    """The clients' h_i, a row each."""
    trained = federation.all_trained().values()
    return torch.stack([next(one.head.parameters()).detach().flatten() for one in trained])


def local_mixing(problem: ConvexProblem, steps: Steps) -> Tensor:
    """M_i = (1/T) sum_{s<T} (I - eta ww_i)^s: what T local steps make of client i's gradient.

    There are T = ``shared_steps`` local steps of size eta = ``local_lr``. The loss is quadratic
    in w, so the mean of the gradients on the way is M_i times the gradient at the start.
    """
    eye = torch.eye(problem.shape[1], dtype=problem.a.dtype)
    shrink = eye - steps.local_lr * problem.ww
    powers = [torch.linalg.matrix_power(shrink, s) for s in range(steps.shared_steps)]
    return torch.stack(powers).mean(dim=0)


def block_update(problem: ConvexProblem, weights: Tensor, steps: Steps) -> Tensor:
    """The matrix of one round on the error of (w, h_1, .., h_N), weights fixed.

    With P_i = (I - eta_h hh_i)^D and Q_i = (I - P_i) hh_i^-1:

        h_i <- P_i h_i - Q_i wh_i' w                                the head phase
        w   <- w - (eta/N) sum_i p_i M_i (ww_i w + wh_i h_i)        the shared phase

    Its spectral radius is the rate at which a run with fixed weights converges.
    """
    n, d, k = problem.shape
    eye_h = torch.eye(k, dtype=problem.a.dtype)
    keep = torch.linalg.matrix_power(eye_h - steps.head_lr * problem.hh, steps.head_steps)
    answer = -solve(problem.hh, (eye_h - keep) @ problem.wh.mT)  # dh_i / dw
    pace = steps.shared_lr / n * weights[:, None, None] * local_mixing(problem, steps)
    full = problem.a.new_zeros(d + n * k, d + n * k)
    full[:d, :d] = torch.eye(d) - (pace @ (problem.ww + problem.wh @ answer)).sum(dim=0)
    for i in range(n):
        own = slice(d + i * k, d + (i + 1) * k)
        full[:d, own] = -pace[i] @ problem.wh[i] @ keep[i]
        full[own, :d] = answer[i]
        full[own, own] = keep[i]
    return full


def first_order_bias(problem: ConvexProblem, weights: Tensor, steps: Steps) -> Tensor:
    """The bias of T local steps per unit of their size, as it vanishes.

    (T - 1)/2 * K^-1 sum_i p_i ww_i grad F_i(w*), with K = sum_i p_i K_i.
    """
    best = problem.optimum(weights)
    gradients = problem.schur @ best - problem.pull
    turned = dot(problem.ww, gradients)
    stiffness = weighted(weights, problem.schur)
    return (steps.shared_steps - 1) / 2 * solve(stiffness, weights @ turned)
