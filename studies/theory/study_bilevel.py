"""ITD with and without the hypergradient, and which of the two FedGradNorm is."""

from __future__ import annotations

import torch
from torch import Tensor

from fedgradnorm.weighting import GradNorm
from studies.theory.bilevel import itd, random_quadratic
from studies.theory.equilibrium import Pull, first_losses
from studies.theory.findings import Claim, Finding, Panel, holds, rounds_curve
from studies.theory.lower import WeightedLosses
from studies.theory.problems import conflicting
from studies.theory.simulated_rounds import Steps, follow

GAMMA = 0.9
DEPTHS = (1, 5, 20)


def closed_forms(steps: int = 100, lr: float = 0.2) -> Finding:
    """ITD against the closed forms of a quadratic bilevel problem, both gradients."""
    problem = random_quadratic()
    x, y = torch.zeros(3, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)

    def end(inner_steps: int, hypergradient: bool) -> Tensor:
        path, _ = itd(
            problem.bilevel(), x, y, outer_steps=steps, inner_steps=inner_steps, lr=lr,
            hypergradient=hypergradient,
        )  # fmt: skip
        return path[-1]

    partial = end(1, False)
    total = {depth: end(depth, True) for depth in DEPTHS}
    off = [float((partial - problem.equilibrium()).norm())]
    off += [float((total[d] - problem.optimum(d)).norm()) for d in DEPTHS]
    best = problem.optimum()
    short = {d: float((total[d] - best).norm()) for d in DEPTHS}
    gap = float((partial - best).norm())
    texts = ", ".join(f"D = {d}: {short[d]:.1e}" for d in DEPTHS)
    claim = Claim(
        "B1",
        "ITD ends at the equilibrium with the lower variable constant, at the bilevel optimum "
        "with the hypergradient (quadratic problem, closed forms)",
        holds(max(off) < 1e-10 and short[DEPTHS[-1]] < 0.01 * gap),
        f"limits against closed forms {max(off):.0e}; from the optimum: constant {gap:.2f}, "
        f"hypergradient {texts}; f there {problem.value(partial):.4f} against "
        f"{problem.value(best):.4f}",
        {"off": max(off), "gap": gap, "deepest": short[DEPTHS[-1]],
         "f_equilibrium": problem.value(partial), "f_optimum": problem.value(best)},
    )  # fmt: skip
    return Finding([claim])


def same_rounds(rounds: int = 200) -> Finding:
    """FedGradNorm's engine and ITD with D = 1, lower variable constant: the same numbers."""
    problem, rule = conflicting(), GradNorm(GAMMA, "relative", smoothing=0.5)
    exact = WeightedLosses(problem, rule, Steps(), first_losses(problem))
    path = follow(problem, rule, Steps(), rounds)
    w, y = itd(
        exact.bilevel(), path.w[0], exact.start(), outer_steps=rounds, inner_steps=1,
        lr=Steps().shared_lr,
    )  # fmt: skip
    apart = max(float((path.w - w).abs().max()),
                float((path.weights - y[:, -problem.shape[0] :]).abs().max()))  # fmt: skip
    claim = Claim(
        "B2",
        "FedGradNorm is ITD with one inner step and the lower variable (heads, weights) constant",
        holds(apart < 1e-10),
        f"largest difference of w and p over {rounds} rounds of the engine: {apart:.0e}",
        {"apart": apart},
    )
    return Finding([claim])


def what_is_reached(steps: int = 300) -> Finding:
    """FedGradNorm's own bilevel problem: equilibrium, bilevel optimum, and what the latter is.

    The inner step solves the lower level (25 head steps, ``direct`` with smoothing 0), so the
    hypergradient is that of Phi(w) = (1/N) sum_i q_i(w) min_h F_i.
    """
    problem, rule = conflicting(), GradNorm(GAMMA, "direct", smoothing=0.0)
    first, local = first_losses(problem), Steps(head_steps=25, head_lr=1.0)
    pull, lower = Pull(problem, GAMMA, first), WeightedLosses(problem, rule, local, first)
    rest = pull.equilibrium(problem.optimum(torch.ones(3, dtype=torch.float64)))
    best = pull.bilevel_point(rest)
    paths = {
        total: itd(
            lower.bilevel(), torch.zeros_like(rest), lower.start(), outer_steps=steps,
            inner_steps=1, lr=0.2, hypergradient=total,
        )[0]
        for total in (False, True)
    }  # fmt: skip
    away = {total: float((path[-1] - best).norm()) for total, path in paths.items()}
    off = float((paths[False][-1] - rest).norm())
    values = float(pull.value(rest)), float(pull.value(best))
    alone = min(float(pull.value(pull.own_optimum(i) + 1e-9)) for i in range(3))
    claim = Claim(
        "B3",
        "FedGradNorm reaches the optimum of its bilevel problem",
        holds(away[False] < 1e-6),
        f"it ends {off:.0e} from the equilibrium and {away[False]:.3f} from the bilevel point that "
        f"the hypergradient finds ({away[True]:.0e}): Phi {values[0]:.4f} against "
        f"{values[1]:.4f}; the least Phi is {alone:.4f}, at one client's own optimum with all "
        "weight on it",
        {"off": off, "away": away[False], "hyper": away[True], "phi_equilibrium": values[0],
         "phi_bilevel": values[1], "phi_alone": alone},
    )  # fmt: skip
    curves = [
        rounds_curve("without hypergradient", (paths[False] - best).norm(dim=1)),
        rounds_curve("with hypergradient", (paths[True] - best).norm(dim=1), "dashed"),
    ]
    return Finding([claim], [Panel("ITD on FedGradNorm's problem", "outer step",
                                   "|w - bilevel point|", curves)])  # fmt: skip
