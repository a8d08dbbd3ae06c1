"""T1 and T2: fixed weights, where the round is a linear map and everything is known."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedgradnorm.weighting import Static
from studies.theory.findings import Claim, Curve, Finding, Panel, holds, rounds_curve
from studies.theory.problems import ConvexProblem, conflicting
from studies.theory.rates import Rate, fit_rate, power_law, spectral_radius
from studies.theory.simulated_rounds import (
    Steps,
    block_update,
    first_order_bias,
    follow,
    local_mixing,
)

WEIGHTS = (0.5, 1.0, 1.5)
CASES = ((0, 1), (2, 3))  # (seed of the problem, head steps)
LOCAL_STEPS = 5
LOCAL_RATES = (0.016, 0.008, 0.004)


def static(problem: ConvexProblem) -> Static:
    """The fixed, unequal weights of these studies."""
    return Static(dict(zip(problem.names, WEIGHTS, strict=True)))


def one_step(rounds: int = 400) -> Finding:
    """T1: one shared step a round; |w_k - w*| ~ rho^k with rho the exact block update's radius."""
    weights = torch.tensor(WEIGHTS, dtype=torch.float64)
    off, last, texts, curves = [], [], [], []
    for seed, head_steps in CASES:
        problem, steps = conflicting(seed), Steps(head_steps=head_steps)
        path = follow(problem, static(problem), steps, rounds)
        errors = path.errors(problem.optimum(weights))
        rate, exact = fit_rate(errors), spectral_radius(block_update(problem, weights, steps))
        off.append(abs(rate.value / exact - 1))
        last.append(float(errors[-1]))
        texts.append(f"{rate} against {exact:.5f}")
        plural = "s" if head_steps > 1 else ""
        curves.append(rounds_curve(f"problem {seed}, {head_steps} head step{plural}", errors))
        curves.append(_line(rate, exact, float(errors[rate.first])))
    claim = Claim(
        "T1",
        "Fixed weights, one shared step, full batches: w goes to the optimum geometrically, to "
        "rounding, at the spectral radius of the exact block update",
        holds(max(off) < 0.01 and max(last) < 1e-12),
        f"rate {'; '.join(texts)}; worst deviation {max(off):.2%}; last error {max(last):.0e}",
        {"deviation": max(off), "last_error": max(last)},
    )
    return Finding([claim], [Panel("T1: fixed weights, one shared step", "round",
                                   "|w - w*|", curves)])  # fmt: skip


def _line(rate: Rate, exact: float, level: float) -> Curve:
    """The predicted slope, laid through the start of the window it is measured in."""
    ends = (rate.first, rate.last)
    return Curve("", ends, [3 * level * exact ** (k - rate.first) for k in ends], "dashed")


def local_steps(rounds: int = 310) -> Finding:
    """T2: five shared steps; linear to the root of sum_i p_i M_i grad F_i, biased by ~ eta."""
    problem, weights = conflicting(), torch.tensor(WEIGHTS, dtype=torch.float64)
    best, biases, apart, off, floors = problem.optimum(weights), [], [], [], []
    base = Steps(shared_steps=LOCAL_STEPS)
    for lr in LOCAL_RATES:
        steps = replace(base, local_lr=lr)
        path = follow(problem, static(problem), steps, rounds)
        limit = problem.optimum(weights, local_mixing(problem, steps))
        errors = path.errors(limit)
        exact = spectral_radius(block_update(problem, weights, steps))
        off.append(abs(fit_rate(errors).value / exact - 1))
        apart.append(float(errors[-1]))
        biases.append(path.w[-1] - best)
        floors.append(float(biases[-1].norm()))
    slope = first_order_bias(problem, weights, base)
    sizes = torch.tensor(floors, dtype=torch.float64)
    rates = torch.tensor(LOCAL_RATES, dtype=torch.float64)
    exponent = power_law(rates, sizes)
    first_order = abs(floors[-1] / (LOCAL_RATES[-1] * float(slope.norm())) - 1)
    claims = [
        Claim(
            "T2",
            "Five shared steps: w converges linearly, to the optimum",
            "holds with a floor" if max(off) < 0.01 else "does not hold",
            f"rate off the spectral radius by {max(off):.2%} at most; "
            f"|w - w*| stays at {floors[0]:.1e} (local step {LOCAL_RATES[0]}) "
            f"to {floors[-1]:.1e} ({LOCAL_RATES[-1]})",
            {"deviation": max(off), "floor": floors[0]},
        ),
        Claim(
            "T2 bias",
            "The bias equals its closed form and is proportional to the local step size",
            holds(max(apart) < 1e-10 and abs(exponent - 1) < 0.05),
            f"engine against closed form {max(apart):.0e}; bias ~ step^{exponent:.3f}; "
            f"first-order constant {float(slope.norm()):.3f} met within {first_order:.1%} "
            f"at {LOCAL_RATES[-1]}",
            {"apart": max(apart), "exponent": exponent, "first_order": first_order},
        ),
    ]
    predicted = [lr * float(slope.norm()) for lr in LOCAL_RATES]
    curves = [Curve("engine", LOCAL_RATES, floors, "points"),
              Curve("first order, closed form", LOCAL_RATES, predicted, "dashed")]  # fmt: skip
    return Finding(claims, [Panel("T2: bias of five local steps", "local step size",
                                  "|w - w*| at the end", curves, log_x=True)])  # fmt: skip
