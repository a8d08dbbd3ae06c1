"""Clients alone: resumed bit-for-bit, and states that are each client's own."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedgradnorm as fgn
import flat
import toys
from alone_clients import BASE, ROUNDS, assert_close, clients, conv, mlp, trainer
from fedgradnorm._round.settings import Settings
from fedgradnorm._training.trainer import Trainer


def train(folder: Path, rounds: int = ROUNDS, network: Any = mlp, **more: Any) -> fgn.Run:
    how = {**BASE, "rounds": rounds, "checkpoint_every": 1, "weighting": fgn.Equal(), **more}
    return flat.train(network(), clients(), folder=folder, **how)


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
    assert_close(other.state_dict(), whole.state_dict())


def test_a_state_holds_no_more_than_its_own_numbers() -> None:
    made = trainer(mlp(), clients(), "auto")
    made.advance()
    for tensor in made.federation.part("corner-48").values():
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def test_one_client_can_be_put_back_and_the_others_stay() -> None:
    made, untouched = (trainer(mlp(), clients(), "auto") for _ in range(2))
    made.advance()
    before = {name: made.federation.part(name) for name in made.names}
    made.advance()
    after = {name: made.federation.part(name) for name in made.names}
    one, *others = made.names
    made.federation.give(one, before[one])
    assert toys.same(made.federation.part(one), before[one])
    assert all(toys.same(made.federation.part(name), after[name]) for name in others)
    made.federation.rounds(1, [[one]])
    untouched.advance()
    untouched.advance()
    assert_close(made.federation.part(one), untouched.federation.part(one))


def test_what_was_loaded_trains_as_what_was_saved() -> None:
    made = trainer(mlp(), clients(), "auto")
    start = made.federation.state_dict()
    made.advance()
    first = made.federation.state_dict()
    made.federation.load_state_dict(start)
    made.round = 0
    made.advance()
    assert toys.same(first, made.federation.state_dict())


class Peeking(nn.Module):
    """A network that looks at its numbers, which vmap cannot do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if float(x.sum()) < 1e9 else x[:, :5]


def test_a_network_that_cannot_be_mapped_is_left_to_the_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = Settings(**BASE)
    with caplog.at_level(logging.INFO, logger="fedgradnorm"):
        made = Trainer(toys.seeded(Peeking), clients(), fgn.Equal(), settings, toys.CPU)
    assert made.federation.engine.name == "loop"
    assert "not vmap: vmap cannot run it (" in caplog.text
    made.advance()


def test_where_nothing_is_shared_nothing_is_weighed(tmp_path: Path) -> None:
    alone = train(tmp_path / "alone", weighting=None)
    assert alone.manifest["weighting"] == {"name": "Equal"}
    shared = train(tmp_path / "shared", share="all", weighting=None)
    assert shared.manifest["weighting"]["name"] == "GradNorm"
