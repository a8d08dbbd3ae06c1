"""Laws that every weighting obeys. A new method is one line in ``WEIGHTINGS``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgradnorm.weighting import (
    BySize,
    ByTask,
    Equal,
    GradNorm,
    Needs,
    Signals,
    Static,
    Weighting,
)

NAMES = ("a", "b", "c", "d", "e")


class InverseLoss(Weighting):
    """A user's own weighting, as the documentation shows it."""

    needs = Needs.LOSS

    def weigh(self, signals: Signals) -> Tensor:
        return 1 / signals.loss


def tasks_of(inner: Weighting) -> ByTask:
    return ByTask(inner, {"a": "one", "b": "one", "c": "two", "d": "two", "e": "three"})


WEIGHTINGS: dict[str, Callable[[], Weighting]] = {
    "equal": Equal,
    "by-size": BySize,
    "static": lambda: Static({"a": 0.1, "b": 2.0, "c": 1.0, "d": 30.0, "e": 0.5}),
    "inverse-loss": InverseLoss,
    "absolute-adam": GradNorm,
    "absolute-sgd": lambda: GradNorm(optimizer="sgd"),
    "squared-adam": lambda: GradNorm(rule="squared"),
    "squared-sgd": lambda: GradNorm(rule="squared", optimizer="sgd", lr=1e-3),
    "relative": lambda: GradNorm(rule="relative"),
    "direct": lambda: GradNorm(rule="direct"),
    "direct-closed": lambda: GradNorm(rule="direct", smoothing=0),
    "direct-gamma-0": lambda: GradNorm(gamma=0, rule="direct"),
    "by-task-equal": lambda: tasks_of(Equal()),
    "by-task-absolute": lambda: tasks_of(GradNorm()),
    "by-task-direct": lambda: tasks_of(GradNorm(rule="direct")),
}

DEPENDS_ON_UNITS = {"absolute-sgd", "squared-sgd"}
"""Plain gradient steps on p are as long as the gradients: multiplying all losses shows."""


def draw(seed: int, rounds: int = 1, count: int = len(NAMES)) -> list[Signals]:
    """Signals of some rounds: everything positive, scales far apart, some clients absent."""
    generator = np.random.default_rng(seed)

    def spread(decades: float) -> Tensor:
        return torch.from_numpy(10 ** generator.uniform(-decades, decades, size=count))

    size = torch.from_numpy(generator.integers(1, 5000, size=count).astype(float))
    drawn = []
    for _ in range(rounds):
        active = torch.from_numpy(generator.random(count) < 0.7)
        active[generator.integers(count)] = True
        drawn.append(Signals(active, size, spread(3), spread(1), spread(3)))
    return drawn


def everybody(signals: Signals) -> Signals:
    return replace(signals, active=torch.ones_like(signals.active))


def per_client(signals: Signals, change: Callable[[Tensor], Tensor]) -> Signals:
    """The same change made to every column."""
    columns = {field.name: getattr(signals, field.name) for field in fields(signals)}
    return Signals(**{key: None if c is None else change(c) for key, c in columns.items()})


def bound(make: Callable[[], Weighting], names: Sequence[str] = NAMES) -> Weighting:
    weighting = make()
    weighting.bind(names)
    return weighting


def played(weighting: Weighting, rounds: Iterable[Signals]) -> list[Tensor]:
    """The weights after each of some rounds."""
    return [weighting.update(signals).clone() for signals in rounds]


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(state, allow_nan=False))


def private(weighting: Weighting, name: str) -> dict[str, float]:
    """What is kept of a client; ``held`` only reports on the last round."""
    row = dict(weighting.state_dict()["clients"][name])
    row.pop("held", None)
    return row


def assert_active_weights_sum_to_their_number(weights: Tensor, active: Tensor) -> None:
    torch.testing.assert_close(weights[active].sum(), active.sum().double(), rtol=1e-12, atol=0)


def assert_positive_and_finite(weights: Tensor) -> None:
    assert torch.isfinite(weights).all(), weights
    assert (weights > 0).all(), weights
