"""A server that asks one private client whatever it likes, through the real encoded messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgradnorm[flower]'")
pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")

import fedgradnorm as fgn
import toys
from engines.flower.direct import Together, answered
from fedgradnorm._flower.wire.messages import Answer, Order
from fedgradnorm._privacy.accountant import Steps, epsilon_of
from fedgradnorm._runs.layout import LEDGER

DELTA, DEAD = 1e-3, 5
"""An input that is always 0: what the gradient of its weights holds is noise alone."""


def examples(rows: slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
    x, y = toys.rows("corner", 48)
    x[:, DEAD] = 0.0
    return x[rows], y[rows]


def network() -> nn.Module:
    return toys.seeded(lambda: nn.Sequential(nn.Linear(toys.FEATURES, 4), nn.Tanh()))


class Hostile:
    """A private client under orders; ``rows`` are the examples that it has."""

    def __init__(self, folder: Path, rows: slice = slice(None), **terms: Any) -> None:
        self.folder, self.rows, self.batch_size = folder, rows, terms.pop("batch_size", None)
        self.make, self.options = terms.pop("make", network), terms.pop("options", {})
        self.terms = {"epsilon": 3.0, "delta": DELTA, "loss_share": 0.1, **terms}
        self.start()

    def start(self) -> None:
        """The client's process, anew from its files."""
        options = {"rounds": 6, "batch_size": self.batch_size, "head_steps": 0}
        options, rule = {**options, **self.options}, fgn.GradNorm(rule="direct")
        self.together = Together(self.folder, rule, self.make, clients=self._clients, **options)
        self.client = self.together.exchange.participants["corner"]

    def _clients(self) -> Sequence[fgn.Client]:
        task, terms = fgn.classification(3), fgn.Privacy(**self.terms)
        return [fgn.Client("corner", task, train=examples(self.rows), privacy=terms)]

    def ask(self, run: str = "run", number: int = 0, state: int = 0, moved: float = 0.0) -> Answer:
        """The answer to an order of round ``number``, with a network ``moved`` from the first."""
        return self.give(self.order(run, number, state, moved))

    def give(self, order: Order) -> Answer:
        return answered(self.client, order)

    def order(self, run: str = "run", number: int = 0, state: int = 0, moved: float = 0.0) -> Order:
        shared = self.together.server.server.shared.data + moved
        return Order("train", run, "agreed", number, state, shared)

    @property
    def charges(self) -> list[dict[str, Any]]:
        lines = (self.folder / "corner" / LEDGER).read_text().splitlines()
        return [json.loads(line) for line in lines[1:]]

    def noise(self, run: str) -> float:
        assert self.client.ledger is not None
        return self.client.ledger.noise(run)


def noise_of(answer: Answer) -> np.ndarray:
    """The numbers of an answer that are nothing but noise."""
    assert answer.update is not None
    flat = answer.update.double().numpy()
    return flat[: 4 * toys.FEATURES].reshape(4, toys.FEATURES)[:, DEAD]


def told(answer: Answer) -> bytes:
    """All that an answer says, as bytes."""
    assert answer.update is not None
    return answer.update.numpy().tobytes() + repr(sorted(answer.scalars.items())).encode()


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    a, b = one.double(), other.double()
    return float(torch.dot(a, b) / a.norm() / b.norm())


def cost(charges: Sequence[dict[str, Any]], delta: float = DELTA) -> float:
    """Epsilon of all releases together, by the outside accountant."""
    steps = [Steps(*release) for charge in charges for release in charge["releases"]]
    return epsilon_of(tuple(steps), delta)


def train(clients: Sequence[fgn.Client], make: Callable[[], nn.Module], **options: Any) -> fgn.Run:
    """A run of one round in one process, all examples in one batch."""
    given = {"rounds": 1, "weighting": fgn.Equal(), "callbacks": [fgn.Evaluation(every=0)]}
    local = fgn.Local(batch_size=None, head_steps=0)
    return fgn.train(make(), clients, **{**given, "local": local, **options})


def with_terms(client: fgn.Client, **terms: Any) -> fgn.Client:
    given = {"epsilon": 3.0, "delta": DELTA, **terms}
    return replace(client, privacy=fgn.Privacy(**given))
