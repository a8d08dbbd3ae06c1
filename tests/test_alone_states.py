"""Clients side by side: resumed to the bit, states of their own, the stack of their networks."""

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
from fedgradnorm.models._flat import FlatNetwork
from side_by_side import BASE, ROUNDS, assert_close, clients, conv, mlp, state_of, trainer


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


def test_where_nothing_is_shared_nothing_is_weighed(tmp_path: Path) -> None:
    alone = train(tmp_path / "alone", weighting=None)
    assert alone.about["weighting"] == {"name": "Equal"}
    shared = train(tmp_path / "shared", share="all", weighting=None)
    assert shared.about["weighting"]["name"] == "GradNorm"
