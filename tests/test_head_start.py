"""Heads that begin at the trivial answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedgradnorm as fgn
import toys
from fedgradnorm._federation.head_start import trivial_answer

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, toys.FEATURES))
PRICE = fgn.Client("price", fgn.regression(2), train=(X, 100 + RNG.normal(size=(40, 2))))
RARE = fgn.Client("rare", fgn.classification(3), train=(X, np.array([0] * 36 + [1] * 4)))


@pytest.mark.parametrize("client", [PRICE, RARE], ids=lambda client: client.name)
def test_no_other_constant_answer_has_less_loss(client: fgn.Client) -> None:
    answer, y = trivial_answer(client), torch.as_tensor(client.train[1])
    y = y.double() if client.task.kind == "regression" else y

    def loss(constant: torch.Tensor) -> float:
        return client.task.loss(constant.expand(len(y), -1), y).item()

    around = [loss(answer + step) for step in 0.5 * torch.randn(50, len(answer)).double()]
    # Every class counts once more than it was seen, so shares are not quite those of the rows.
    assert loss(answer) < (1 if client is PRICE else 1.1) * min(around)


@pytest.mark.parametrize("engine", ["loop", "joint", "stacked"])
def test_the_first_loss_is_near_that_of_the_trivial_answer(engine: str) -> None:
    how = {"rounds": 3, "engine": engine, "device": "cpu"}
    runs = {
        start: fgn.train(toys.network(), [PRICE, RARE], head_start=start, **how)
        for start in ("random", "targets")
    }
    first = {
        start: run.history[run.history.split == "train"].groupby("client").loss.first()
        for start, run in runs.items()
    }
    assert first["targets"]["price"] < 5 < 5000 < first["random"]["price"]
    assert first["targets"]["rare"] < first["random"]["rare"]


def test_a_head_of_ones_own_is_left_alone() -> None:
    head = torch.nn.Linear(5, 2).double()
    mine = fgn.Client("price", fgn.regression(2), train=PRICE.train, head=head)
    runs = [
        fgn.train(toys.network(), [mine], rounds=1, head_start=start, device="cpu")
        for start in ("random", "targets")
    ]
    assert toys.same(*(dict(run.heads["price"].state_dict()) for run in runs))
