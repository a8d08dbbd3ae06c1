"""Where the rules rest: closed forms against the engine, and against each other."""

import pytest
import torch

from fedgradnorm.weighting import GradNorm
from studies.theory.bilevel import itd
from studies.theory.equilibrium import Pull, absolute_share, first_losses, pace_share
from studies.theory.lower import WeightedLosses
from studies.theory.problems import conflicting
from studies.theory.simulated_rounds import Steps, follow

RULES = [
    GradNorm(0.9, "direct", smoothing=0.0),
    GradNorm(0.5, "direct", smoothing=0.75),
    GradNorm(0.9, "relative", smoothing=0.5),
    GradNorm(0.9, "squared", optimizer="sgd", lr=0.01),
    GradNorm(0.9, "absolute", optimizer="sgd", lr=0.004),
]


def equilibrium(problem, gamma, share=pace_share):
    pull = Pull(problem, gamma, first_losses(problem), share)
    return pull, pull.equilibrium(problem.optimum(torch.ones(3, dtype=torch.float64)))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.rule}-{rule.gamma}")
def test_a_round_of_the_engine_is_a_step_of_itd_with_constant_lower_variable(rule):
    problem, steps = conflicting(), Steps(head_steps=2)
    exact = WeightedLosses(problem, rule, steps, first_losses(problem))
    path = follow(problem, rule, steps, 30)
    start = exact.start()
    if rule.rule == "direct":  # a client's first round takes q itself, whatever the smoothing
        plain = GradNorm(rule.gamma, "direct", smoothing=0.0)
        start = WeightedLosses(problem, plain, steps, exact.first).inner(path.w[0], start)
        start = torch.cat([torch.zeros_like(start[:-3]), start[-3:]])
    w, y = itd(exact.bilevel(), path.w[0], start, outer_steps=30, inner_steps=1, lr=0.3)
    assert (w - path.w).abs().max() < 1e-12
    assert (y[1:, -3:] - path.weights[1:]).abs().max() < 1e-12


@pytest.mark.parametrize("gamma", [0.5, 0.9, 1.0])
def test_at_equilibrium_the_weighted_gradients_cancel(gamma):
    problem = conflicting()
    pull, w = equilibrium(problem, gamma)
    assert pull.residual(w).norm() < 1e-12
    gradients = problem.shared_gradients(w, problem.best_heads(w))
    assert (pull.weights(w) @ gradients).norm() < 1e-11


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_the_absolute_rule_has_no_excess_at_gamma_zero_and_one(gamma):
    pace = torch.tensor([0.5, 1.1, 1.4], dtype=torch.float64)
    norm = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    assert torch.allclose(absolute_share(pace, norm, gamma), pace_share(pace, norm, gamma))


def test_the_absolute_rule_gives_its_excess_to_one_client():
    pace = torch.tensor([0.5, 1.1, 1.4], dtype=torch.float64)
    norm = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    share = absolute_share(pace, norm, 0.5)
    assert share.sum() == pytest.approx(3.0)
    assert torch.allclose(share[1:], pace[1:].sqrt())
    assert share[0] > pace[0] ** 0.5


def test_the_engine_finds_the_absolute_rules_own_limit():
    """At gamma 0.5 the two candidates are 0.06 apart: far enough for a small step to tell."""
    problem = conflicting()
    _, balanced = equilibrium(problem, 0.5)
    _, own = equilibrium(problem, 0.5, absolute_share)
    rule = GradNorm(0.5, "absolute", lr=0.008, optimizer="adam")
    mean = follow(problem, rule, Steps(), 500).w[-150:].mean(dim=0)
    assert (own - balanced).norm() > 0.05
    assert (mean - own).norm() < 0.1 * (mean - balanced).norm()


def test_every_own_optimum_is_a_pit_of_the_bilevel_value():
    """Phi falls to min F_i at client i's own optimum, where all weight sits on i."""
    problem = conflicting()
    pull, w = equilibrium(problem, 0.9)
    for client in range(3):
        own = pull.own_optimum(client)
        near = own + 1e-8
        least = problem.losses(own, problem.best_heads(own))[client]
        assert pull.weights(near)[client] == pytest.approx(3.0, abs=1e-5)
        assert pull.value(near) == pytest.approx(float(least), rel=1e-4)
        assert pull.value(near) < pull.value(w)


def test_random_starts_find_one_equilibrium():
    problem = conflicting()
    pull, w = equilibrium(problem, 0.9)
    generator = torch.Generator().manual_seed(5)
    for _ in range(12):
        start = 3 * torch.randn(4, generator=generator, dtype=torch.float64)
        assert (pull.equilibrium(start) - w).norm() < 1e-10
