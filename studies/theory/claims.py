"""Every claim, checked: what ``make theory`` runs."""

from __future__ import annotations

from collections.abc import Callable

from studies.theory import (
    study_absolute,
    study_assumptions,
    study_bilevel,
    study_fixed,
    study_rules,
)
from studies.theory.findings import Finding

STUDIES: dict[str, Callable[[], Finding]] = {
    "fixed weights, one shared step": study_fixed.one_step,
    "fixed weights, five shared steps": study_fixed.local_steps,
    "absolute rule, constant alpha": study_absolute.constant_alpha,
    "smooth rules": study_rules.smooth_rules,
    "squared rule with Adam": study_rules.squared_with_adam,
    "absolute rule, decaying alpha": study_absolute.decaying_alpha,
    "Pareto stationarity": study_rules.pareto,
    "convexity of F_grad": study_assumptions.weights_audit,
    "convexity of head and network": study_assumptions.head_audit,
    "ITD against closed forms": study_bilevel.closed_forms,
    "engine against ITD": study_bilevel.same_rounds,
    "equilibrium against bilevel optimum": study_bilevel.what_is_reached,
}
"""The studies by what they look at, in the order of the table."""
