"""Clients that share nothing: side by side they train as one after another does, to the digit."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedgradnorm as fgn
import toys
from fedgradnorm._engines import Unshared
from fedgradnorm._engines.batched.snapshot import Snapshot
from fedgradnorm._engines.passes.network_stack import DenseStack, ModuleStack
from fedgradnorm._federation.alone import Federations, SideBySide
from fedgradnorm._round.settings import Settings
from fedgradnorm._training.trainer import Trainer
from fedgradnorm.models._flat import FlatNetwork
from fedgradnorm.tasks._measures import squared_error
from fedgradnorm.weighting import FAMO, ConFIG

ROUNDS = 8
BASE = {"rounds": ROUNDS, "batch_size": 8, "lr": 0.01, "share": "none", "eval_every": 4}


def mlp() -> nn.Module:
    return toys.seeded(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU())
    )


def open_end() -> nn.Module:
    return toys.seeded(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)))


def conv() -> nn.Module:
    return toys.seeded(
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten()
        )
    )


def half_frozen() -> nn.Module:
    network = toys.network()
    network[0].bias.requires_grad_(False)
    return network


def clients(validation: bool = True) -> list[fgn.Client]:
    """Six of three kinds, of several sizes: some with the same heads, some with a shorter batch."""
    sizes = {"corner": (48, 5), "side": (30, 24), "place": (24, 7)}
    return [
        fgn.Client(
            f"{kind}-{size}",
            toys.task(kind),
            train=toys.rows(kind, size),
            validation=toys.rows(kind, 11) if validation else None,
            test=toys.rows(kind, 20),
        )
        for kind, both in sizes.items()
        for size in both
    ]


def trainer(network: nn.Module, those: list[fgn.Client], engine: str, **more: Any) -> Trainer:
    weighting = more.pop("weighting", fgn.Equal)
    settings = Settings(**{**BASE, "engine": engine, **more})
    made = Trainer(network, those, weighting(), settings, toys.CPU)
    if settings.share == "none":
        assert type(made.federations) is (SideBySide if engine == "auto" else Federations)
    return made


def finished(made: Trainer) -> Trainer:
    """All of its rounds, evaluated as a run is."""
    every = made.settings.eval_every
    made.evaluate()
    while not made.done:
        made.advance()
        if made.done or (every and made.round % every == 0):
            made.evaluate()
    return made


def assert_close(left: Any, right: Any, tolerance: float = 1e-10) -> None:
    """Nested states with the same keys, whose numbers differ by no more than rounding."""
    if isinstance(left, Tensor):
        torch.testing.assert_close(left, right, rtol=0, atol=tolerance)
    elif isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_close(left[key], right[key], tolerance)
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_close(one, other, tolerance)
    elif isinstance(left, float):
        assert left == pytest.approx(right, rel=tolerance, abs=tolerance, nan_ok=True)
    else:
        assert left == right


def state_of(made: Trainer) -> Any:
    """Its state, without the empty places of moments that there are not."""

    def filled(value: Any) -> Any:
        if isinstance(value, list):
            return [filled(one) for one in value]
        if not isinstance(value, dict):
            return value
        return {k: v for k, one in value.items() if not isinstance(v := filled(one), dict) or v}

    return filled(made.state_dict())


def assert_same_training(one: Trainer, other: Trainer) -> None:
    assert_close(state_of(one), state_of(other))
    assert_close(one.history.rows, other.history.rows)


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
    assert found[0].taken["corner"] == ROUNDS > found[0].taken["bad"]


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


def train(folder: Path, rounds: int = ROUNDS, network: Any = mlp, **more: Any) -> fgn.Run:
    how = {**BASE, "rounds": rounds, "checkpoint_every": 1, "weighting": fgn.Equal(), **more}
    return fgn.train(network(), clients(), folder=folder, **how)


class Stop(BaseException):
    """What ends a run in the middle."""


@pytest.mark.parametrize("network", [mlp, conv], ids=["dense", "convolution"])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"participation": 0.5},
        {"keep": "best", "patience": 1, "eval_every": 2},
        {"share": "all", "ditto": 0.3},
    ],
    ids=["everybody", "half", "best", "ditto"],
)
def test_it_resumes_to_the_bit(tmp_path: Path, network: Any, how: dict) -> None:
    def stop(event: Any) -> None:
        if event.round == 5:
            raise Stop

    whole = train(tmp_path / "whole", network=network, **how)
    with pytest.raises(Stop):
        train(tmp_path / "part", network=network, progress=stop, **how)
    again = train(tmp_path / "part", network=network, resume=True, **how)
    assert whole.history.equals(again.history)
    for name in whole.clients:
        for one, other in zip(
            (whole.networks[name], whole.heads[name]),
            (again.networks[name], again.heads[name]),
            strict=True,
        ):
            assert torch.equal(toys.parameters(one), toys.parameters(other))


@pytest.mark.parametrize(("before", "after"), [("loop", "auto"), ("auto", "loop")])
def test_checkpoints_are_the_same_whoever_wrote_them(before: str, after: str) -> None:
    begun = trainer(mlp(), clients(), before)
    for _ in range(5):
        begun.advance()
    other, whole = trainer(mlp(), clients(), after), trainer(mlp(), clients(), "loop")
    other.load_state_dict(begun.state_dict())
    for one in (other, whole):
        while not one.done:
            one.advance()
    assert_close(state_of(other), state_of(whole))


def test_a_state_holds_no_more_than_its_own_numbers() -> None:
    made = trainer(mlp(), clients(), "auto")
    made.advance()
    state = made.federations[0].state_dict()
    shared, head = state["server"]["shared"], state["clients"]["corner-48"]["head"]
    for tensor in (shared, *head.values()):
        assert tensor.untyped_storage().nbytes() == tensor.numel() * 8


def test_a_federation_that_is_loaded_stays_linked() -> None:
    made = trainer(mlp(), clients(), "auto")
    federation = made.federations[2]
    start = federation.state_dict()
    made.advance()
    first = federation.state_dict()
    federation.load_state_dict(start)
    made.round = 0
    made.advance()
    assert toys.same(first, federation.state_dict())


# --------------------------------------------------------------------------------- the parts of it


def test_all_networks_with_one_call_are_each_by_itself() -> None:
    """What a GPU does, tried here: one call mapped over the networks, and their gradients."""
    flat, rng = FlatNetwork(conv()), np.random.default_rng(0)
    vectors = flat.vector + 0.1 * torch.from_numpy(rng.normal(size=(5, len(flat.vector))))
    x = torch.from_numpy(rng.normal(size=(4 * 3 + 6, 6)))
    stretches = [(slice(0, 12), 4), (slice(12, 18), 3)]
    found = []
    for at_once in (True, False):
        stack = ModuleStack(flat, at_once, x[:2])
        assert stack.at_once is at_once
        z = stack.forward(vectors, x, stretches)
        assert torch.equal(z, stack.features(vectors, x, stretches))
        into = torch.full_like(vectors, torch.nan)
        stack.gradient(z.cos(), into, 0.5, add=False)
        found.append((z, into))
    assert_close(*found, 1e-13)


class Peeking(nn.Module):
    """A network that looks at its numbers, which cannot be mapped."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if float(x.sum()) < 1e9 else x[:, :5]


def test_a_network_that_cannot_be_mapped_is_called_in_turn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    flat = FlatNetwork(toys.seeded(Peeking))
    with caplog.at_level(logging.INFO, logger="fedgradnorm"):
        assert not ModuleStack(flat, True, torch.zeros(2, 6).double()).at_once
    assert caplog.messages[0].startswith("networks are called in turn: ")


def test_the_closed_form_is_autograds() -> None:
    flat, rng = FlatNetwork(mlp()), np.random.default_rng(0)
    vectors = flat.vector + 0.1 * torch.from_numpy(rng.normal(size=(5, len(flat.vector))))
    x = torch.from_numpy(rng.normal(size=(4 * 3 + 6, 6)))
    stretches, found = [(slice(0, 12), 4), (slice(12, 18), 3)], []
    for stack in (DenseStack(flat), ModuleStack(flat, False, x)):
        z = stack.forward(vectors, x, stretches)
        into = torch.ones_like(vectors)
        stack.gradient(z.cos(), into, 0.5, add=True)
        found.append((z, into))
    assert_close(*found, 1e-13)


def test_one_of_a_snapshot_is_put_back() -> None:
    made = trainer(mlp(), clients(), "auto")
    made.advance()
    run = made.federations._run
    assert isinstance(run, Unshared)
    before, states = run.loop.state_dict(), list(run.loop.states.values())
    snapshot = Snapshot(states)
    made.advance()
    after = run.loop.state_dict()
    snapshot.restore_one(1)
    names = list(run.loop.states)
    back = {**run.loop.state_dict()}
    assert toys.same(back[names[1]]["head"], before[names[1]]["head"])
    assert toys.same(back[names[1]]["optimizer"], before[names[1]]["optimizer"])
    assert toys.same(back[names[0]], after[names[0]])
