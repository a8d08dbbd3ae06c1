"""Clients that share nothing: side by side they train as one after another does, to the digit."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedgradnorm as fgn
import toys
from fedgradnorm._federation.alone import Federations, SideBySide
from fedgradnorm._round.settings import Settings
from fedgradnorm._training.trainer import Trainer
from fedgradnorm.tasks._measures import squared_error
from fedgradnorm.weighting import FAMO, ConFIG
from side_by_side import (
    BASE,
    ROUNDS,
    assert_close,
    assert_same_training,
    clients,
    conv,
    finished,
    half_frozen,
    mlp,
    open_end,
    trainer,
)

SETTINGS = {
    "plain": {},
    "sgd": {"server_optimizer": "sgd", "head_optimizer": "sgd"},
    "adamw": {"server_optimizer": {"name": "adamw", "weight_decay": 0.1}},
    "one vector at a time": {"server_optimizer": "adafactor"},
    "together": {"schedule": "together"},
    "no head steps": {"head_steps": 0},
    "many head steps": {"head_steps": 5},
    "many shared steps": {"shared_steps": 3},
    "many of both": {"head_steps": 2, "shared_steps": 3},
    "many together": {"schedule": "together", "shared_steps": 3},
    "first round": {"first_loss": "first_round"},
    "full batch": {"batch_size": None},
    "half of them": {"participation": 0.5},
    "in turn": {"participation": [["corner-48", "side-24"], ["place-7"]]},
    "the best is kept": {"keep": "best", "patience": 1, "eval_every": 2},
    "a network of their own": {"personalize": {"steps": 5, "lr": 0.01, "what": "network"}},
    "heads at the end": {"final_head_steps": 3},
    "proximal": {"proximal": 0.3},
    "conflict is nothing": {"record_conflict": 2},
    "another gauge": {"gauge": "0"},
    "by task": {"key": "task"},
    "by size": {"aggregate": "by_size"},
}
NETWORKS = {"dense": mlp, "open end": open_end, "any": toys.network, "frozen": half_frozen}


SOME = ("plain", "many of both", "many together", "half of them", "the best is kept")


@pytest.mark.parametrize(
    ("network", "how"), [*((mlp, how) for how in SETTINGS), *((conv, how) for how in SOME)]
)
def test_side_by_side_is_one_after_another(network: Any, how: str) -> None:
    settings = {"eval_every": 0, **SETTINGS[how]}
    one, other = (finished(trainer(network(), clients(), e, **settings)) for e in ("auto", "loop"))
    assert_same_training(one, other)
    assert_close(one._kept(), other._kept())


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS.keys())
@pytest.mark.parametrize("engine", ["loop", "joint", "stacked"])
def test_whatever_the_network_and_the_engine(network: Any, engine: str) -> None:
    both = (finished(trainer(network(), clients(), e)) for e in ("auto", engine))
    assert_same_training(*both)


@pytest.mark.parametrize(
    "weighting", [fgn.GradNorm, fgn.BySize, ConFIG, FAMO], ids=lambda kind: kind.__name__
)
def test_a_rule_sees_what_it_sees_in_a_federation_of_one(weighting: Any) -> None:
    both = (
        finished(trainer(mlp(), clients(), engine, weighting=weighting))
        for engine in ("auto", "loop")
    )
    assert_same_training(*both)


def own_heads() -> list[fgn.Client]:
    """Three clients with heads of two layers, and losses that are their own."""
    return [
        fgn.Client(
            f"own-{size}",
            fgn.regression(2, loss=squared_error),
            train=toys.rows("place", size),
            head=toys.seeded(lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))),
        )
        for size in (12, 20, 30)
    ]


def test_heads_and_losses_of_their_own() -> None:
    both = (finished(trainer(mlp(), own_heads(), engine)) for engine in ("auto", "loop"))
    assert_same_training(*both)


@pytest.mark.parametrize("network", [mlp, conv], ids=["dense", "convolution"])
@pytest.mark.parametrize("share", [1.0, 0.5], ids=["everybody", "half"])
def test_dittos_networks_are_pulled_side_by_side(network: Any, share: float) -> None:
    how = {"share": "all", "ditto": 0.3, "participation": share}
    one, other = (finished(trainer(network(), clients(), e, **how)) for e in ("auto", "loop"))
    assert_same_training(one, other)
    assert type(one.federations[0]._own) is SideBySide


# ------------------------------------------------------------------------------ what stays in turn


def spoiled() -> list[fgn.Client]:
    """One client of three is not finite whenever a batch has its first rows."""

    def poisoned(output: Tensor, target: Tensor) -> Tensor:
        return squared_error(output, target) + torch.where(target[:, 0] > 1e6, torch.nan, 0.0)

    x, y = toys.rows("place", 24)
    y[:2] = 1e9
    bad = fgn.Client("bad", fgn.regression(2, loss=poisoned), train=(x, y))
    return [toys.client("corner"), bad, toys.client("place", 24)]


@pytest.mark.parametrize("first_loss", ["first_round", "dataset"])
@pytest.mark.parametrize("schedule", ["alternating", "together"])
def test_who_diverges_is_named_and_the_others_go_on(
    schedule: str, first_loss: str, caplog: pytest.LogCaptureFixture
) -> None:
    found, said = [], []
    for engine in ("auto", "loop"):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="fedgradnorm"):
            how = {"first_loss": first_loss, "schedule": schedule}
            found.append(finished(trainer(mlp(), spoiled(), engine, **how)))
        said.append(caplog.messages)
    assert_same_training(*found)
    assert said[0] == said[1]
    assert any("'bad'" in line for line in said[0])
    assert found[0].recording.taken["corner"] == ROUNDS > found[0].recording.taken["bad"]


def test_ditto_with_a_client_that_diverges() -> None:
    how = {"share": "all", "ditto": 0.3, "first_loss": "first_round"}
    both = (finished(trainer(mlp(), spoiled(), engine, **how)) for engine in ("auto", "loop"))
    assert_same_training(*both)


ODD = {
    "dropout": (toys.noisy_network, {}),
    "updates of another kind": (mlp, {"update": "delta"}),
    "local steps with momentum": (
        mlp,
        {"shared_steps": 2, "local_optimizer": {"name": "sgd", "momentum": 0.9}},
    ),
    "a pull of local steps": (mlp, {"shared_steps": 2, "proximal": 0.1}),
}


@pytest.mark.parametrize(("network", "settings"), ODD.values(), ids=ODD.keys())
def test_what_cannot_be_stacked_is_left_to_the_federations(
    network: Any, settings: dict, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="fedgradnorm"):
        made = Trainer(
            network(), clients(), fgn.Equal(), Settings(**{**BASE, **settings}), toys.CPU
        )
    assert type(made.federations) is Federations
    assert any(line.startswith("6 clients in turn: ") for line in caplog.messages)
    made.advance()


def test_local_optimisers_of_one_step_do_not_matter() -> None:
    how = {"local_optimizer": {"name": "sgd", "momentum": 0.9}}
    both = (finished(trainer(mlp(), clients(), engine, **how)) for engine in ("auto", "loop"))
    assert_same_training(*both)


def test_clients_side_by_side_are_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="fedgradnorm"):
        trainer(mlp(), clients(), "auto")
    assert caplog.messages == ["6 clients side by side"]


# ------------------------------------------------------------------------------ saved and resumed


@pytest.mark.parametrize("gauge", [["4", "0"], ["0", "4"], ["2", "0"], ["4.bias", "4.weight"]])
def test_the_gauge_may_be_any_layers_in_any_order(gauge: list[str]) -> None:
    def three() -> nn.Module:
        layers = (nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 5))
        return nn.Sequential(*layers)

    network = toys.seeded(three)
    both = (finished(trainer(network, clients(), e, gauge=gauge)) for e in ("auto", "loop"))
    assert_same_training(*both)
