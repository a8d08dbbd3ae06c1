"""What the paper prints, to stand beside what we measure.

Source: Mortaheb, Vahapoglu, Ulukus, "FedGradNorm: Personalized Federated Gradient-Normalized
Multi-Task Learning" (2022), Table II: task losses after 100 epochs, imbalanced allocation.
"""

from __future__ import annotations

from collections.abc import Mapping

_TASKS = ("landmark", "gender", "smile", "glasses", "pose")

TABLE2: Mapping[str, Mapping[str, float]] = {
    "fedrep": dict(zip(_TASKS, (33.28, 0.66, 0.60, 0.44, 1.1), strict=True)),
    "fedgradnorm": dict(zip(_TASKS, (33.25, 0.56, 0.57, 0.43, 1.1), strict=True)),
}
"""Losses by method and task."""


def paper_losses(experiment: str, method: str) -> Mapping[str, float]:
    """The paper's losses for a method of one of its experiments; empty where it prints none."""
    return TABLE2.get(method, {}) if experiment == "table2" else {}
