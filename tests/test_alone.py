"""Clients that share nothing: each trains as a federation of one, in every executor."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedgradnorm as fgn
import toys
from alone_clients import (
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
from fedgradnorm.tasks._measures import squared_error
from fedgradnorm.weighting._directions import ConFIG
from fedgradnorm.weighting._fixed import BySize
from fedgradnorm.weighting._loss_based import FAMO

SETTINGS = {
    "plain": {},
    "sgd": {"server_optimizer": "sgd", "head_optimizer": "sgd"},
    "adamw": {"server_optimizer": {"name": "adamw", "weight_decay": 0.1}},
    "one vector at a time": {"server_optimizer": "adafactor"},
    "together": {"phases": "joint"},
    "no head steps": {"head_steps": 0},
    "many head steps": {"head_steps": 5},
    "many shared steps": {"shared_steps": 3},
    "many of both": {"head_steps": 2, "shared_steps": 3},
    "many together": {"phases": "joint", "shared_steps": 3},
    "first round": {"first_loss": "first_round"},
    "full batch": {"batch_size": None},
    "half of them": {"participation": 0.5},
    "in turn": {"participation": [["corner-48", "side-24"], ["place-7"]]},
    "the best is kept": {"keep": "best", "patience": 1, "eval_every": 2},
    "a network of their own": {"personalize": {"steps": 5, "lr": 0.01, "what": "network"}},
    "heads at the end": {"final_head_steps": 3},
    "proximal": {"proximal": 0.3},
    "another norm layer": {"norm_layer": "0"},
    "by task": {"weight_per": "task"},
    "by size": {"aggregate": "by_size"},
}
NETWORKS = {"dense": mlp, "open end": open_end, "any": toys.network, "frozen": half_frozen}


SOME = ("plain", "many of both", "many together", "half of them", "the best is kept")


@pytest.mark.parametrize(
    ("network", "how"), [*((mlp, how) for how in SETTINGS), *((conv, how) for how in SOME)]
)
def test_all_at_once_is_one_after_another(network: Any, how: str) -> None:
    settings = {"eval_every": 0, **SETTINGS[how]}
    one, other = (finished(trainer(network(), clients(), e, **settings)) for e in ("auto", "loop"))
    assert_same_training(one, other)
    assert_close(one._outcome(), other._outcome())
    assert one.federation.engine.name == "vmap"


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS.keys())
def test_whatever_the_network(network: Any) -> None:
    both = (finished(trainer(network(), clients(), e)) for e in ("auto", "loop"))
    assert_same_training(*both)


@pytest.mark.parametrize("network", [mlp, conv], ids=["dense", "convolution"])
@pytest.mark.parametrize(
    "how", ["plain", "sgd", "many of both", "together", "momentum", "models", "first round"]
)
def test_a_client_alone_is_a_federation_of_one(network: Any, how: str) -> None:
    more = {
        "momentum": {"shared_steps": 2, "local_optimizer": {"name": "sgd", "momentum": 0.9}},
        "models": {"sends": "model", "shared_steps": 2, "proximal": 0.1},
    }
    settings = {**BASE, **SETTINGS.get(how, {}), **more.get(how, {})}
    made = trainer(network(), clients(), "auto", **settings)
    rows = [made.federation.rounds(k, [made.names]) for k in range(ROUNDS)]
    for place, client in enumerate(clients()):
        one = toys.federation(network(), [client], **{**settings, "share": "all"})
        for k, (outcome,) in enumerate(rows):
            (single,) = one.rounds(k, [[client.name]])
            for key in ("loss", "loss_ratio", "grad_norm", "weight"):
                (number,) = single.columns[key]
                assert outcome.columns[key][place] == pytest.approx(number, rel=1e-10), key
        ours, theirs = (f.all_trained()[client.name] for f in (made.federation, one))
        torch.testing.assert_close(ours.network, one.server.shared, rtol=0, atol=1e-10)
        assert_close(dict(ours.head.state_dict()), dict(theirs.head.state_dict()))
        for split in ("train", "test"):
            names = [client.name]
            assert_close(made.federation.evaluate(split, names), one.evaluate(split, names))


@pytest.mark.parametrize("executor", ["joint"])
def test_one_pass_for_everybody_needs_one_network(executor: str) -> None:
    with pytest.raises(fgn.ConfigError, match="every client has a network of its own"):
        trainer(mlp(), clients(), executor)


@pytest.mark.parametrize(
    "weighting", [fgn.GradNorm, BySize, ConFIG, FAMO], ids=lambda kind: kind.__name__
)
def test_a_client_alone_weighs_one_whatever_the_rule(weighting: Any) -> None:
    ruled, plain = (
        finished(trainer(mlp(), clients(), "auto", weighting=rule))
        for rule in (weighting, fgn.Equal)
    )
    assert_same_training(ruled, plain)
    assert {row["weight"] for row in ruled.history.rows if row["split"] == "batch"} == {1.0}


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
    both = (finished(trainer(mlp(), own_heads(), executor)) for executor in ("auto", "loop"))
    assert_same_training(*both)


@pytest.mark.parametrize("network", [mlp, conv], ids=["dense", "convolution"])
@pytest.mark.parametrize("share", [1.0, 0.5], ids=["everybody", "half"])
def test_dittos_networks_are_pulled_at_once(network: Any, share: float) -> None:
    how = {"share": "all", "ditto": 0.3, "participation": share}
    one, other = (finished(trainer(network(), clients(), e, **how)) for e in ("auto", "loop"))
    assert_same_training(one, other)
    assert one.federation.personal.engine.name == "vmap"


# --------------------------------------------------------------------------- failures, odd networks


def spoiled() -> list[fgn.Client]:
    """One client of four is not finite whenever a batch has its first rows."""

    def poisoned(output: Tensor, target: Tensor) -> Tensor:
        return squared_error(output, target) + torch.where(target[:, 0] > 1e6, torch.nan, 0.0)

    (x, y), fine = toys.rows("place", 24), toys.rows("place", 24)
    y[:2] = 1e9
    task = fgn.regression(2, loss=poisoned)
    bad, beside = fgn.Client("bad", task, train=(x, y)), fgn.Client("beside", task, train=fine)
    return [toys.client("corner"), bad, beside, toys.client("place", 24)]


@pytest.mark.parametrize("first_loss", ["first_round", "dataset"])
@pytest.mark.parametrize("phases", ["alternating", "joint"])
def test_who_diverges_is_named_and_the_others_go_on(
    phases: str, first_loss: str, caplog: pytest.LogCaptureFixture
) -> None:
    found, said = [], []
    for executor in ("auto", "loop"):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="fedgradnorm"):
            how = {"first_loss": first_loss, "phases": phases}
            found.append(finished(trainer(mlp(), spoiled(), executor, **how)))
        said.append(caplog.messages)
    assert_same_training(*found)
    assert said[0] == said[1]
    assert any("'bad'" in line for line in said[0])
    taken = found[0].recording.taken
    assert taken["corner"] == taken["beside"] == ROUNDS > taken["bad"]
    assert found[0].federation.engine.name == "vmap"


def test_ditto_with_a_client_that_diverges() -> None:
    how = {"share": "all", "ditto": 0.3, "first_loss": "first_round"}
    both = (finished(trainer(mlp(), spoiled(), executor, **how)) for executor in ("auto", "loop"))
    assert_same_training(*both)


ODD = {
    "updates of another kind": {"sends": "delta"},
    "local steps with momentum": {
        "shared_steps": 2,
        "local_optimizer": {"name": "sgd", "momentum": 0.9},
    },
    "a pull of local steps": {"shared_steps": 2, "proximal": 0.1},
    "averaged models": {"sends": "model", "shared_steps": 2},
    "clipped": {"clip": 0.1, "head_clip": 0.1, "shared_steps": 2},
}


@pytest.mark.parametrize("settings", ODD.values(), ids=ODD.keys())
def test_every_kind_of_local_work_runs_at_once(settings: dict) -> None:
    both = (finished(trainer(mlp(), clients(), e, **settings)) for e in ("auto", "loop"))
    assert_same_training(*both)


def test_dropout_and_running_statistics_repeat_themselves() -> None:
    one, other = (finished(trainer(toys.noisy_network(), clients(), "auto")) for _ in range(2))
    assert toys.same(one.state_dict()["federation"], other.state_dict()["federation"])


def test_local_optimisers_of_one_step_do_not_matter() -> None:
    how = {"local_optimizer": {"name": "sgd", "momentum": 0.9}}
    both = (finished(trainer(mlp(), clients(), executor, **how)) for executor in ("auto", "loop"))
    assert_same_training(*both)


def test_the_executor_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="fedgradnorm"):
        trainer(mlp(), clients(), "auto")
    assert caplog.messages == ["executor vmap (not joint: every client has a network of its own)"]


# ------------------------------------------------------------------------------ gradient norms


@pytest.mark.parametrize("norm_layer", [["4", "0"], ["0", "4"], ["2", "0"], ["4.bias", "4.weight"]])
def test_the_norm_layer_may_be_any_layers_in_any_order(norm_layer: list[str]) -> None:
    def three() -> nn.Module:
        layers = (nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 5))
        return nn.Sequential(*layers)

    network = toys.seeded(three)
    both = (
        finished(trainer(network, clients(), e, norm_layer=norm_layer)) for e in ("auto", "loop")
    )
    assert_same_training(*both)
