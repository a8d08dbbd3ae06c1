"""T4 and T5: the smooth rules, their rates, and the point where ``direct`` rests."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedgradnorm.weighting import GradNorm, Signals
from studies.theory.equilibrium import Pull, first_losses
from studies.theory.findings import Claim, Finding, Panel, holds, rounds_curve
from studies.theory.lower import WeightedLosses
from studies.theory.problems import ConvexProblem, conflicting
from studies.theory.rates import fit_rate, spectral_radius
from studies.theory.simulated_rounds import Steps, federate, follow, heads_of

GAMMA = 0.9
NUDGE = 1e-6  # of one gradient norm, in one round
ARRIVED = 1e-12  # distance of p from its limit


def rules() -> dict[str, GradNorm]:
    """The rules that are smooth in p, by the name the table shows."""
    return {
        "direct": GradNorm(GAMMA, "direct", smoothing=0.0),
        "relative": GradNorm(GAMMA, "relative", smoothing=0.5),
        "squared": GradNorm(GAMMA, "squared", optimizer="sgd", lr=0.015),
    }


def balanced(problem: ConvexProblem, gamma: float = GAMMA) -> Tensor:
    """The equilibrium with p_i G_i ~ r_i^gamma."""
    equal = torch.ones(problem.shape[0], dtype=torch.float64)
    return Pull(problem, gamma, first_losses(problem)).equilibrium(problem.optimum(equal))


def rest(problem: ConvexProblem, rule: GradNorm) -> tuple[Tensor, float]:
    """The rule's own rest point in w, and the spectral radius of a round there."""
    first, near = first_losses(problem), balanced(problem, rule.gamma)
    exact = WeightedLosses(problem, rule, Steps(), first)
    state = exact.rest_point(near, Pull(problem, rule.gamma, first).weights(near))
    return state[: problem.shape[1]], spectral_radius(exact.jacobian(state))


def smooth_rules(rounds: int = 400) -> Finding:
    """T4: linear convergence of the three smooth rules, at the round's spectral radius."""
    problem = conflicting()
    target, claims, curves = balanced(problem), [], []
    for name, rule in rules().items():
        limit, exact = rest(problem, rule)
        errors = follow(problem, rule, Steps(), rounds).errors(limit)
        rate, apart = fit_rate(errors), float((limit - target).norm())
        off = abs(rate.value / exact - 1)
        where = (
            "at p ~ r^gamma / G"
            if apart < 1e-10
            else f"{apart:.4f} from p ~ r^gamma / G (none at gamma 0 or 1)"
        )
        claims.append(
            Claim(
                f"T4 {name}",
                f"Rule {name}: linear convergence to a stationary point",
                holds(off < 0.01 and float(errors[-1]) < 1e-12),
                f"rate {rate} against spectral radius {exact:.5f} ({off:.2%}); last error "
                f"{float(errors[-1]):.0e}; rests {where}",
                {"deviation": off, "last_error": float(errors[-1]), "apart": apart},
            )
        )
        curves.append(rounds_curve(name, errors))
    return Finding(claims, [Panel("T4: smooth rules", "round", "|w - limit|", curves)])


def squared_with_adam(updates: int = 6000, alpha: float = 0.1) -> Finding:
    """T4 with Adam, the package's default optimizer of p: does ``squared`` stay where it arrives?

    The real weighting on signals held constant at the equilibrium, gamma = 1 so that its gradient
    vanishes there. As it does, Adam's second moment forgets (by 0.999 a round) and its step,
    alpha * m / sqrt(v), grows until it no longer contracts. Half way a single norm is off by
    ``NUDGE``, once: rounding alone may or may not move p, depending on the processor.
    """
    problem, gamma = conflicting(), 1.0
    near = balanced(problem, gamma)
    heads, ones = problem.best_heads(near), torch.ones(problem.shape[0], dtype=torch.float64)
    norm = problem.shared_gradients(near, heads).norm(dim=1)
    losses = problem.losses(near, heads)
    signals = Signals(ones > 0, ones, losses, losses / first_losses(problem), norm)
    goal = Pull(problem, gamma, first_losses(problem)).weights(near)
    weighting = GradNorm(gamma, "squared", optimizer="adam", lr=alpha)
    weighting.bind(problem.names)
    nudged = replace(signals, grad_norm=norm * (1 + NUDGE * (torch.arange(len(norm)) == 0)))
    given = [signals] * updates
    given[updates // 2] = nudged
    errors = torch.stack([(weighting.update(signals) - goal).norm() for signals in given])
    when, arrived = int((errors < ARRIVED).nonzero()[0]) + 1, float(errors.min())
    late = float(errors[-500:].square().mean().sqrt())
    claim = Claim(
        "T4 squared, Adam",
        "Rule squared with Adam on p, constant alpha: p converges and stays",
        "holds with a floor" if late > 1e-10 else "holds",
        f"p comes within {ARRIVED:.0e} of its limit by update {when}; after a nudge of {NUDGE:.0e} "
        f"it leaves and chatters at {late:.1e} (alpha {alpha}, update {updates})",
        {"arrived": arrived, "late": late},
    )
    return Finding([claim])


def pareto(rounds: int = 380) -> Finding:
    """T5: at the fixed point of ``direct``, sum_i r_i^gamma grad F_i / |grad F_i| = 0.

    Read off what the clients report: updates, loss ratios and gradient norms of one more round.
    """
    problem = conflicting()
    federation = federate(
        problem, GradNorm(GAMMA, "direct", smoothing=0.0), Steps(), executor="loop"
    )
    for number in range(rounds):
        federation.round(number, federation.names)
    w = federation.server.shared.detach().clone()
    reports, _ = federation.round(rounds, federation.names)
    pull = (reports.loss_ratio / reports.loss_ratio.mean()).pow(GAMMA)
    units = reports.gradients() / reports.grad_norm[:, None]
    residual = float((pull @ units / pull.sum()).norm())
    heads = float(problem.head_gradients(w, heads_of(federation)).norm())
    least = float(reports.grad_norm.min())
    claim = Claim(
        "T5",
        "At the fixed point of direct, sum_i r_i^gamma grad F_i / |grad F_i| = 0: Pareto "
        "stationary",
        holds(residual < 1e-12 and heads < 1e-12),
        f"residual {residual:.0e} (of sum r^gamma), head gradients {heads:.0e}, while no client's "
        f"own gradient is below {least:.2f}",
        {"residual": residual, "heads": heads, "least": least},
    )
    return Finding([claim])
