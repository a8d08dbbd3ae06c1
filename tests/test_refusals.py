"""What can be seen to be wrong is refused before training; what is unwise is pointed out once."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedgradnorm as fgn
import flat
import toys

X, Y = toys.rows("side", 20)


def frozen() -> nn.Module:
    return toys.network().requires_grad_(False)


def unused() -> nn.Module:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(toys.FEATURES, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, :3]

    return Unused()


@pytest.mark.parametrize(
    ("refused", "kind", "words"),
    [
        (lambda: nn.Flatten(), fgn.ModelError, "no trainable parameters: nothing to learn"),
        (frozen, fgn.ModelError, "all 4 parameters of the shared network are frozen"),
        (unused, fgn.ModelError, "no gradient for any of its trainable parameters"),
        (lambda: nn.Linear(4, 2), fgn.ModelError, "client 'a': the shared network cannot take"),
        (lambda: nn.Linear, fgn.ModelError, "is the class Linear; give an instance"),
    ],
)
def test_a_network_that_cannot_learn_is_refused(refused, kind, words) -> None:
    started: list[Any] = []
    with pytest.raises(kind, match=words):
        flat.train(
            refused(),
            [fgn.Client("a", fgn.classification(2), (X, Y))],
            rounds=1,
            progress=started.append,
        )
    assert started == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rounds": 0}, "rounds must be a whole number >= 1, not 0"),
        ({"epochs": 0}, "epochs must be > 0"),
        ({"rounds": 1, "norm_layer": "9"}, "norm layer '9' is no trainable layer"),
    ],
)
def test_settings_that_train_nothing_are_refused(settings, words) -> None:
    with pytest.raises(fgn.FedGradNormError, match=words):
        flat.train(toys.network(), [fgn.Client("a", fgn.classification(2), (X, Y))], **settings)


def test_a_client_refuses_what_it_can_see() -> None:
    with pytest.raises(fgn.DataError, match=r"a row of test x has shape \(5,\), a training row"):
        fgn.Client("a", fgn.classification(2), (X, Y), test=(X[:, :5], Y))
    with pytest.raises(fgn.DataError, match="a row of validation x has shape"):
        fgn.Client("a", fgn.classification(2), (X, Y), validation=({"x": X}, Y))
    with pytest.raises(fgn.ConfigError, match="did you mean 'f1'"):
        fgn.classification(2, metrics=["f11"])


def test_targets_far_from_one_are_pointed_out_once_with_the_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clients = [
        fgn.Client("price", fgn.regression(1), (X, 5000 * np.abs(X[:, 0]))),
        fgn.Client("usual", fgn.regression(1), (X, 20 * X[:, 0])),
        fgn.Client("kind", fgn.classification(2), (X, Y)),
    ]
    with caplog.at_level(logging.WARNING, "fedgradnorm"):
        how = {"weighting": fgn.GradNorm(), "personalize": {"steps": 1}}
        flat.train(toys.network(), clients, rounds=2, **how)
    (said,) = [r.getMessage() for r in caplog.records if "far from the size of 1" in r.getMessage()]
    assert "targets of 1 client are far from the size of 1 (price " in said
    assert "standardize" in said
    assert "head_init" not in said  # it begins there already
    caplog.clear()
    flat.train(toys.network(), clients, rounds=1, head_init="random")
    assert "head_init='targets' begins at the mean" in caplog.text
    scaled = fgn.data.client_from_arrays(
        "price", clients[0].task, clients[0].train, standardize=True
    )
    caplog.clear()
    fgn.train(toys.network(), [scaled], rounds=1)
    assert "far from" not in caplog.text
