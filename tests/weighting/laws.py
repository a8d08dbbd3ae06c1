"""Laws that every method obeys, by construction. Further variants are lines in ``WEIGHTINGS``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgradnorm._methods import METHODS, Method
from fedgradnorm.weighting import Equal, GradNorm, Needs, Signals, Weighting
from fedgradnorm.weighting._by_task import ByTask
from fedgradnorm.weighting._directions import GradDrop
from fedgradnorm.weighting._loss_based import DWA, IMTLL, Uncertainty
from fedgradnorm.weighting._products import FedMGDA, PCGrad

NAMES = ("a", "b", "c", "d", "e")


class InverseLoss(Weighting):
    """A user's own weighting, as the documentation shows it."""

    needs = Needs.LOSS

    def weigh(self, signals: Signals) -> Tensor:
        return 1 / signals.loss


def tasks_of(inner: Weighting) -> ByTask:
    return ByTask(inner, {"a": "one", "b": "one", "c": "two", "d": "two", "e": "three"})


OPTIONS: dict[str, dict[str, Any]] = {
    "static": {"weights": {"a": 0.1, "b": 2.0, "c": 1.0, "d": 30.0, "e": 0.5}},
}
"""Methods that are not made with their defaults."""
FROM_A_RUN = {"fedgradnorm-static"}
"""Whose weights are in a run's folder: they are those of ``static``."""


def every_method() -> dict[str, Callable[[], Weighting]]:
    """Every registered method, so that none can be forgotten; one of those that weigh alike."""
    found: dict[Any, Method] = {}
    for method in METHODS.values():
        if method.name not in FROM_A_RUN:
            found.setdefault((method.weighting, repr(method.fixed)), method)
    return {m.name: partial(m.build, OPTIONS.get(m.name)) for m in found.values()}


WEIGHTINGS: dict[str, Callable[[], Weighting]] = {
    **every_method(),
    "inverse-loss": InverseLoss,
    "absolute-sgd": lambda: GradNorm(optimizer="sgd"),
    "squared-adam": lambda: GradNorm(rule="squared"),
    "squared-sgd": lambda: GradNorm(rule="squared", optimizer="sgd", lr=1e-3),
    "relative": lambda: GradNorm(rule="relative"),
    "direct-closed": lambda: GradNorm(rule="direct", smoothing=0),
    "direct-gamma-0": lambda: GradNorm(gamma=0, rule="direct"),
    "ByTask": lambda: tasks_of(GradNorm()),
    "by-task-equal": lambda: tasks_of(Equal()),
    "by-task-direct": lambda: tasks_of(GradNorm(rule="direct")),
    "warm-up": lambda: GradNorm(rule="direct", warmup=2),
    "dwa-of-one": lambda: DWA(every=1),
    "dwa-of-two": lambda: DWA(every=2),
    "uw-fast": lambda: Uncertainty(scale_lr=0.1),
    "imtl-l-fast": lambda: IMTLL(scale_lr=0.1),
    "fedmgda-free": lambda: FedMGDA(box=1),
    "by-task-pcgrad": lambda: tasks_of(PCGrad()),
    "by-task-graddrop": lambda: tasks_of(GradDrop()),
}

SOLVES_PROGRAMS = {"cagrad"}
"""Tens of milliseconds per round: marked slow."""

DEPENDS_ON_UNITS = {
    "absolute-sgd", "squared-sgd", "uw", "uw-fast", "imtl-l", "imtl-l-fast", "afl", "go4align"
}  # fmt: skip
"""Steps as long as the losses or gradients are: multiplying all losses shows."""


def by_numbers(make: Callable[[], Weighting]) -> bool:
    """Whether a method needs no more of a client than a few numbers."""
    return not make().needs & (Needs.GRAM | Needs.GRADIENT)


def draw(seed: int, rounds: int = 1, count: int = len(NAMES)) -> list[Signals]:
    """Signals of some rounds: everything positive, scales far apart, some clients absent."""
    generator = np.random.default_rng(seed)

    def spread(decades: float) -> Tensor:
        return torch.from_numpy(10 ** generator.uniform(-decades, decades, size=count))

    size = torch.from_numpy(generator.integers(1, 5000, size=count).astype(float))
    turns = np.random.default_rng([seed, 1])
    drawn = []
    for _ in range(rounds):
        active = torch.from_numpy(generator.random(count) < 0.7)
        active[generator.integers(count)] = True
        columns = (spread(3), spread(1), spread(3))
        scale = 10 ** turns.uniform(-2, 2, size=(count, 1))
        gradients = torch.from_numpy(scale * turns.normal(size=(count, 7)))
        gram = gradients @ gradients.T
        drawn.append(Signals(active, size, *columns, gram=gram, gradients=gradients))
    return drawn


def everybody(signals: Signals) -> Signals:
    return replace(signals, active=torch.ones_like(signals.active))


def per_client(signals: Signals, change: Callable[[Tensor], Tensor]) -> Signals:
    """The same change made to every column, and to both sides of the Gram matrix."""

    def columns(matrix: Tensor) -> Tensor:
        return torch.stack([change(column) for column in matrix.unbind(1)], dim=1)

    assert signals.gram is not None
    assert signals.gradients is not None
    others = ("gram", "gradients", "rows")
    plain = [field.name for field in fields(signals) if field.name not in others]
    return Signals(
        **{key: change(getattr(signals, key)) for key in plain},
        gram=columns(columns(signals.gram).T).T,
        gradients=columns(signals.gradients),
    )


def bound(make: Callable[[], Weighting], names: Sequence[str] = NAMES) -> Weighting:
    weighting = make()
    weighting.bind(names)
    return weighting


def played(weighting: Weighting, rounds: Iterable[Signals]) -> list[Tensor]:
    """The weights after each of some rounds."""
    return [weighting.update(signals).clone() for signals in rounds]


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    """What is left of a state in a file: tensors are lists in it, and come back as lists."""
    return json.loads(json.dumps(state, allow_nan=False, default=Tensor.tolist))


def by_name(weighting: Weighting) -> dict[str, dict[str, float]]:
    """A weighting's state as a table per client."""
    state = weighting.state_dict()
    rows = {key: row.tolist() for key, row in state["rows"].items()}
    return {n: {key: row[i] for key, row in rows.items()} for i, n in enumerate(state["clients"])}


def private(weighting: Weighting, name: str) -> dict[str, float]:
    """What is kept of a client; ``frozen`` only reports on the last round."""
    row = dict(by_name(weighting)[name])
    row.pop("frozen", None)
    return row


def assert_active_weights_sum_to_their_number(weights: Tensor, active: Tensor) -> None:
    torch.testing.assert_close(weights[active].sum(), active.sum().double(), rtol=1e-12, atol=0)


def assert_positive_and_finite(weights: Tensor, weighting: Weighting | None = None) -> None:
    """Finite, and positive unless the method says that its weights need not be."""
    assert torch.isfinite(weights).all(), weights
    if weighting is None or weighting.positive:
        assert (weights > 0).all(), weights
