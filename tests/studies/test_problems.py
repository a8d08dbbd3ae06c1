"""The convex problems: their closed forms against autograd, and against the engine's numbers."""

import pytest
import torch

from fedgradnorm.weighting import Equal, Static
from studies.theory.problems import conflicting
from studies.theory.simulated_rounds import (
    Steps,
    block_update,
    federate,
    follow,
    heads_of,
    local_mixing,
)

WEIGHTS = torch.tensor([0.5, 1.0, 1.5], dtype=torch.float64)


def somewhere(problem):
    n, d, k = problem.shape
    generator = torch.Generator().manual_seed(1)
    w = torch.randn(d, generator=generator, dtype=torch.float64)
    return w, torch.randn(n, k, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("seed", range(3))
def test_gradients_are_those_of_the_loss(seed):
    problem = conflicting(seed)
    w, heads = somewhere(problem)
    jacobian = torch.func.jacrev(problem.losses, argnums=(0, 1))(w, heads)
    assert torch.allclose(jacobian[0], problem.shared_gradients(w, heads))
    own = torch.stack([jacobian[1][i, i] for i in range(len(heads))])
    assert torch.allclose(own, problem.head_gradients(w, heads))


def test_the_loss_is_the_formula():
    problem = conflicting()
    w, heads = somewhere(problem)
    for i, loss in enumerate(problem.losses(w, heads)):
        error = problem.a[i] @ w + problem.b[i] @ heads[i] - problem.c[i]
        size = w @ w + heads[i] @ heads[i]
        assert loss == pytest.approx(float(error @ error + problem.ridge * size) / 2, rel=1e-12)


def test_the_optimum_has_no_gradient_left():
    problem = conflicting()
    w = problem.optimum(WEIGHTS)
    heads = problem.best_heads(w)
    assert problem.head_gradients(w, heads).norm() < 1e-13
    assert (WEIGHTS @ problem.shared_gradients(w, heads)).norm() < 1e-12


def test_heads_at_their_best_leave_the_schur_complement():
    problem = conflicting()
    w, _ = somewhere(problem)
    reduced = (problem.schur @ w) - problem.pull
    assert torch.allclose(problem.shared_gradients(w, problem.best_heads(w)), reduced)


@pytest.mark.parametrize("executor", ["loop", "joint", "vmap"])
def test_the_engine_sees_the_same_losses_and_gradients(executor):
    problem = conflicting()
    steps = Steps()
    federation = federate(problem, Equal(), steps, executor=executor)
    reports, _ = federation.round(0, federation.names)
    w = torch.zeros(problem.shape[1], dtype=torch.float64)
    start = torch.zeros(problem.shape[0], problem.shape[2], dtype=torch.float64)
    heads = start - steps.head_lr * problem.head_gradients(w, start)
    gradients = problem.shared_gradients(w, heads)
    first = problem.losses(w, start)
    assert torch.allclose(heads_of(federation), heads, atol=1e-14)
    assert torch.allclose(reports.loss, problem.losses(w, heads), atol=1e-13)
    assert torch.allclose(reports.loss_ratio, problem.losses(w, heads) / first, atol=1e-13)
    assert torch.allclose(reports.grad_norm, gradients.norm(dim=1), atol=1e-13)
    moved = w - steps.shared_lr * gradients.mean(dim=0)
    assert torch.allclose(federation.server.shared.detach(), moved, atol=1e-13)


@pytest.mark.parametrize(
    "steps", [Steps(), Steps(head_steps=3), Steps(head_steps=2, shared_steps=5, local_lr=0.02)]
)
def test_the_block_matrix_is_the_engines_round(steps):
    """Five rounds of the engine, applied to the distance from the rest point."""
    problem = conflicting(1)
    weighting = Static(dict(zip(problem.names, WEIGHTS.tolist(), strict=True)))
    path = follow(problem, weighting, steps, 5)
    rest = problem.optimum(WEIGHTS, local_mixing(problem, steps))
    heads = problem.best_heads(rest)
    error = torch.cat([path.w[0] - rest, -heads.flatten()])
    matrix = block_update(problem, WEIGHTS, steps)
    for w in path.w[1:]:
        error = matrix @ error
        assert torch.allclose(w - rest, error[: len(w)], atol=1e-13)
    assert torch.allclose((path.heads - heads).flatten(), error[len(rest) :], atol=1e-13)
