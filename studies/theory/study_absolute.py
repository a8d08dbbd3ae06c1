"""T3 and the decaying steps of T4: the paper's own rule, |p_i G_i - target_i|."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgradnorm.weighting import GradNorm, Weighting
from fedgradnorm.weighting._gradnorm import Optimizer
from studies.theory.equilibrium import Pull, absolute_share, first_losses
from studies.theory.findings import Claim, Curve, Finding, Panel, holds, rounds_curve
from studies.theory.problems import ConvexProblem, conflicting
from studies.theory.rates import power_law
from studies.theory.simulated_rounds import Path, Steps, follow

GAMMA = 0.9
OPTIMIZERS: tuple[Optimizer, ...] = ("sgd", "adam")
ALPHAS = (0.032, 0.016, 0.008, 0.004)
ROOT_ALPHAS = (0.02, 0.05)  # alpha_k = alpha / sqrt k
INVERSE_ALPHAS = (0.02, 0.1)  # alpha_k = alpha / k


@dataclass(frozen=True)
class Limits:
    """Where ``absolute`` ends as alpha -> 0, and the equilibrium p_i G_i ~ r_i^gamma."""

    own: Tensor
    balanced: Tensor

    @property
    def apart(self) -> float:
        """Distance of the two."""
        return float((self.own - self.balanced).norm())


def limits(problem: ConvexProblem, gamma: float) -> Limits:
    """Both limits in w, without the engine."""
    first, equal = first_losses(problem), torch.ones(problem.shape[0], dtype=torch.float64)
    balanced = Pull(problem, gamma, first).equilibrium(problem.optimum(equal))
    own = Pull(problem, gamma, first, absolute_share).equilibrium(balanced)
    return Limits(own, balanced)


@dataclass(frozen=True)
class Chatter:
    """The last rounds of a run: root mean square of p around its mean, of w around its limit."""

    weights: float
    floor: float
    offset: float


def chatter(path: Path, goal: Limits, last: int = 150) -> Chatter:
    """Measured over the ``last`` rounds."""
    p = path.weights[-last:]
    spread = (p - p.mean(dim=0)).square().sum(dim=1).mean().sqrt()
    floor = path.errors(goal.own)[-last:].square().mean().sqrt()
    return Chatter(
        float(spread), float(floor), float((path.w[-last:].mean(0) - goal.balanced).norm())
    )


def run_absolute(
    problem: ConvexProblem,
    alpha: float,
    optimizer: Optimizer,
    rounds: int,
    gamma: float = GAMMA,
    schedule: Callable[[int, Weighting], None] | None = None,
) -> Path:
    """The engine with the paper's rule."""
    rule = GradNorm(gamma, "absolute", lr=alpha, optimizer=optimizer)
    return follow(problem, rule, Steps(), rounds, before_round=schedule)


def constant_alpha(settled: int = 250) -> Finding:
    """T3: with a constant step p chatters ~ alpha, and w stays that far from its limit.

    Each run lasts ``settled`` rounds more than p needs for its way of about one at that alpha.
    """
    problem = conflicting()
    goal, claims, curves, offset = limits(problem, GAMMA), [], [], 0.0
    for optimizer in OPTIMIZERS:
        runs = [
            run_absolute(problem, alpha, optimizer, settled + round(1.2 / alpha))
            for alpha in ALPHAS
        ]
        seen = [chatter(path, goal) for path in runs]
        p, w = [s.weights for s in seen], [s.floor for s in seen]
        claims.append(_constant_claim(optimizer, p, w))
        curves += [Curve(f"p around its mean, {optimizer}", ALPHAS, p, "line"),
                   Curve(f"w from its limit, {optimizer}", ALPHAS, w, "dashed")]  # fmt: skip
        offset = seen[-1].offset if optimizer == "adam" else offset
    claims.append(_offset_claim(goal, offset, problem))
    return Finding(claims, [Panel("T3: absolute rule, constant alpha", "alpha",
                                  "root mean square", curves, log_x=True)])  # fmt: skip


def _constant_claim(optimizer: str, p: list[float], w: list[float]) -> Claim:
    x = torch.tensor(ALPHAS, dtype=torch.float64)
    exponent = power_law(x, torch.tensor(p, dtype=torch.float64))
    table = ", ".join(f"{a}: {b:.1e} / {c:.1e}" for a, b, c in zip(ALPHAS, p, w, strict=True))
    return Claim(
        f"T3 {optimizer}",
        f"Absolute rule, constant alpha ({optimizer}): w converges; p chatters in proportion to "
        "alpha",
        "holds with a floor" if abs(exponent - 1) < 0.15 and min(w) > 1e-6 else "does not hold",
        f"p ~ alpha^{exponent:.2f}; alpha: chatter of p / floor of w: {table}",
        {"exponent": exponent, "floor": w[-1], "floor_falls": w[0] / w[-1]},
    )


def _offset_claim(goal: Limits, seen: float, problem: ConvexProblem) -> Claim:
    """As alpha -> 0 the rule rests elsewhere than at p_i ~ r_i^gamma / G_i unless gamma is 0, 1."""
    plain = limits(problem, 1.0).apart
    return Claim(
        "T3 limit",
        f"As alpha -> 0 the absolute rule tends to p_i ~ r_i^gamma / G_i (gamma {GAMMA})",
        holds(goal.apart < 1e-8),
        f"its limit lies {goal.apart:.4f} away in w (engine's mean, smallest Adam step: "
        f"{seen:.4f}), because mean(r^gamma) < 1 and rescaling gives the rest to one client; at "
        f"gamma = 1: {plain:.0e}",
        {"apart": goal.apart, "engine": seen, "gamma_one": plain},
    )


def decaying_alpha(rounds: int = 1600) -> Finding:
    """T4: alpha / sqrt k arrives; alpha / k has moved by alpha G log k in k rounds."""
    problem, short = conflicting(), rounds // 3  # 1/k shows its fate sooner
    goal = limits(problem, GAMMA).own
    root = {a: _decayed(problem, a, 0.5, rounds).errors(goal) for a in ROOT_ALPHAS}
    inverse = {a: _decayed(problem, a, 1.0, short).errors(goal) for a in INVERSE_ALPHAS}
    curves = [
        rounds_curve(f"{name}, alpha {alpha}", errors, points=1000)
        for name, runs in (("1/sqrt k", root), ("1/k", inverse))
        for alpha, errors in runs.items()
    ]
    claims = [_root_claim(root, rounds), _inverse_claim(inverse, short)]
    return Finding(claims, [Panel("T4: absolute rule, decaying alpha", "round",
                                  "|w - limit|", curves, log_x=True)])  # fmt: skip


def _decayed(problem: ConvexProblem, alpha: float, power: float, rounds: int) -> Path:
    def schedule(k: int, rule: Weighting) -> None:
        assert isinstance(rule, GradNorm)
        rule.lr = alpha / (k + 1) ** power

    return run_absolute(problem, alpha, "sgd", rounds, schedule=schedule)


def _octave(errors: Tensor, first: int) -> float:
    """Root mean square over rounds first .. 2 first."""
    return float(errors[first : 2 * first].square().mean().sqrt())


def _root_claim(root: dict[float, Tensor], rounds: int) -> Claim:
    """The error in units of alpha_k (at the middle of the octave), last three octaves."""
    late = {alpha: _octave(errors, rounds // 2) for alpha, errors in root.items()}
    following = {
        alpha: [_octave(errors, n) / (alpha / (1.5 * n) ** 0.5) for n in octaves]
        for alpha, errors in root.items()
        for octaves in [(rounds // 8, rounds // 4, rounds // 2)]
    }
    text = "; ".join(
        f"alpha {alpha}: {late[alpha]:.1e}, " + " / ".join(f"{v:.1f}" for v in following[alpha])
        for alpha in root
    )
    worst = max(max(values) for values in following.values())
    return Claim(
        "T4 1/sqrt k",
        "Absolute rule, alpha / sqrt k: w converges to its limit",
        holds(max(late.values()) < 0.01 and worst < 6),
        f"|w - limit| over the last half of {rounds} rounds, and in units of alpha_k in the last "
        f"three octaves: {text}. It stays within a few alpha_k: sublinear, not exponential",
        {"last": max(late.values()), "per_alpha": worst},
    )


def _inverse_claim(inverse: dict[float, Tensor], rounds: int) -> Claim:
    (small, stalled), (large, arrived) = (
        (alpha, _octave(errors, rounds // 2)) for alpha, errors in inverse.items()
    )
    return Claim(
        "T4 1/k",
        "Absolute rule, alpha / k: w converges to its limit",
        holds(stalled < 0.01),
        f"with alpha {small} it stalls: {stalled:.2f} over the last half of {rounds} rounds; with "
        f"{large} it ends at {arrived:.1e}: it arrives only where alpha G log k spans the way",
        {"last": stalled, "larger": arrived},
    )
