"""Algorithm 1 (ITD), with and without the hypergradient, against closed forms."""

import pytest
import torch

from studies.theory.bilevel import Bilevel, gradient_step, itd, itd_step, random_quadratic

X, Y = torch.zeros(3, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)


def end(problem, inner_steps, hypergradient, steps=150):
    xs, ys = itd(
        problem.bilevel(), X, Y, outer_steps=steps, inner_steps=inner_steps, lr=0.2,
        hypergradient=hypergradient,
    )  # fmt: skip
    assert len(xs) == len(ys) == steps + 1
    return xs[-1], ys[-1]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("depth", [1, 4])
def test_a_constant_lower_variable_ends_at_the_equilibrium_whatever_the_depth(seed, depth):
    problem = random_quadratic(seed)
    x, y = end(problem, depth, hypergradient=False)
    assert (x - problem.equilibrium()).norm() < 1e-10
    assert (y - problem.lower(x)).norm() < 1e-10


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("depth", [1, 4])
def test_the_hypergradient_ends_at_the_optimum_its_depth_can_see(seed, depth):
    problem = random_quadratic(seed)
    x, _ = end(problem, depth, hypergradient=True)
    assert (x - problem.optimum(depth)).norm() < 1e-10


def test_the_two_limits_differ_and_depth_closes_the_gap():
    problem = random_quadratic()
    best = problem.optimum()
    gaps = [float((problem.optimum(depth) - best).norm()) for depth in (1, 5, 20, 80)]
    apart = float((problem.equilibrium() - best).norm())
    assert apart > 0.1
    assert problem.value(problem.equilibrium()) > problem.value(best) + 0.1
    assert apart > gaps[0] > gaps[1] > gaps[2] > gaps[3]
    assert gaps[3] < 1e-8


def test_the_optimum_minimises_the_outer_loss():
    problem = random_quadratic()
    best = problem.optimum()
    for direction in torch.eye(3, dtype=torch.float64):
        for sign in (-1e-3, 1e-3):
            assert problem.value(best + sign * direction) > problem.value(best)


def test_one_step_by_hand():
    """f = x y, one inner gradient step of (y - x)^2 / 2: y' = y - lr (y - x)."""
    problem = Bilevel(
        lambda x, y: (x * y).sum(), gradient_step(lambda x, y: 0.5 * (y - x).square().sum(), 0.5)
    )
    x, y = torch.tensor([2.0]), torch.tensor([4.0])
    for hypergradient, slope in ((False, 3.0), (True, 3.0 + 2.0 * 0.5)):
        moved, below = itd_step(problem, x, y, inner_steps=1, lr=0.1, hypergradient=hypergradient)
        assert below.item() == pytest.approx(3.0)
        assert moved.item() == pytest.approx(2.0 - 0.1 * slope)
