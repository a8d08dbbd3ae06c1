"""When rounds of everybody come at once, and that they are the ordinary ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

import fedgradnorm as fgn
import stretch
import toys
from fedgradnorm._engines import JointEngine, captured_rounds
from fedgradnorm._federation.federation import Federation
from fedgradnorm._optimizers import build, capturable, is_adam, resolve
from fedgradnorm._training.trainer import Trainer
from fedgradnorm.weighting import FAMO, RandomWeights
from side_by_side import assert_same_training, clients, mlp, trainer
from stretch import Stretch


def federation(engine: str, weighting: fgn.Weighting | None = None) -> Federation:
    return toys.federation(toys.network(), toys.clients(), weighting, engine=engine)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> Federation:
    """A federation whose engine believes that it can capture rounds."""
    stretch.use(monkeypatch)
    return federation("joint", fgn.GradNorm())


def play(one: Federation, first: int, actives: Sequence[Sequence[str]]) -> list[list[float]]:
    return [outcome.columns["loss"] for outcome in one.rounds(first, actives)]


def test_after_three_ordinary_rounds_the_others_come_at_once(at_once: Federation) -> None:
    plain = federation("loop", fgn.GradNorm())
    ours, loops = (
        torch.tensor(play(one, 0, [one.names] * 9) + play(one, 9, [one.names] * 4))
        for one in (at_once, plain)
    )
    assert Stretch.ran == [(3, 6), (9, 4)]
    assert Stretch.made == 1
    torch.testing.assert_close(ours, loops)
    torch.testing.assert_close(at_once.server.shared.data, plain.server.shared.data)
    state = at_once.engine.state_dict()
    assert [state[name]["rounds"] for name in at_once.names] == [13] * 3


def test_absent_clients_and_single_rounds_are_ordinary(at_once: Federation) -> None:
    some = at_once.names[:2]
    play(at_once, 0, [at_once.names] * 3)
    play(at_once, 3, [at_once.names])
    play(at_once, 4, [at_once.names, some])
    assert Stretch.ran == []
    play(at_once, 6, [at_once.names] * 2)
    assert Stretch.ran == [(6, 2)]


def test_what_is_not_finite_is_taken_again_by_ordinary_rounds(at_once: Federation) -> None:
    play(at_once, 0, [at_once.names] * 3)
    Stretch.breaks = True
    found = play(at_once, 3, [at_once.names] * 4)
    Stretch.breaks = False
    assert len(found) == 4
    assert Stretch.ran == [(3, 4)]
    play(at_once, 7, [at_once.names] * 5)  # three ordinary ones before the next graph
    assert Stretch.ran == [(3, 4), (10, 2)]
    assert Stretch.made == 2


def test_a_loaded_state_and_a_failed_round_need_another_graph(at_once: Federation) -> None:
    play(at_once, 0, [at_once.names] * 5)
    at_once.load_state_dict(at_once.state_dict())
    play(at_once, 5, [at_once.names] * 5)
    assert Stretch.ran == [(3, 2), (8, 2)]
    engine = at_once.engine
    assert isinstance(engine, JointEngine)
    engine.run_in_turn(at_once.server.shared.data, 10, at_once.names)
    play(at_once, 11, [at_once.names] * 5)
    assert Stretch.ran == [(3, 2), (8, 2), (14, 2)]
    assert Stretch.made == 3


@pytest.mark.usefixtures("at_once")
def test_heads_in_common_are_averaged_in_rounds_at_once_too() -> None:
    alike = [toys.client(name, 24, kind="corner") for name in ("a", "b")]
    ours, plain = (
        toys.federation(toys.network(), alike, engine=engine, heads="all")
        for engine in ("joint", "loop")
    )
    for one in (ours, plain):
        play(one, 0, [one.names] * 6)
    assert Stretch.ran == [(3, 3)]
    heads = ours.engine.heads()
    assert toys.same(heads["a"].state_dict(), heads["b"].state_dict())
    expected = plain.engine.heads()["a"].state_dict()
    for name, value in heads["a"].state_dict().items():
        torch.testing.assert_close(value, expected[name])


def played(made: Trainer, until: int) -> Trainer:
    """Its rounds before ``until``, as many at once as it takes."""
    while made.round < until:
        made.advance(until - made.round)
    return made


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("weighting", [fgn.Equal, fgn.GradNorm, FAMO], ids=lambda k: k.__name__)
@pytest.mark.parametrize(
    "how", [{}, {"head_steps": 2, "shared_steps": 3}, {"schedule": "together"}]
)
def test_clients_alone_have_rounds_at_once_too(weighting: Any, how: dict[str, Any]) -> None:
    how = {"eval_every": 0, "weighting": weighting, **how}
    one, other = (played(trainer(mlp(), clients(), e, **how), 8) for e in ("auto", "loop"))
    assert Stretch.ran == [(3, 5)]
    assert_same_training(one, other)


@pytest.mark.usefixtures("at_once")
def test_a_client_alone_that_goes_wrong_is_found_by_ordinary_rounds() -> None:
    how: dict[str, Any] = {"eval_every": 0, "rounds": 12}
    made = [trainer(mlp(), clients(), engine, **how) for engine in ("auto", "loop")]
    for one in made:
        played(one, 5)
        one.federations[2].server.shared.data.fill_(torch.inf)
    left, right = (played(one, how["rounds"]) for one in made)
    assert Stretch.ran == [(3, 2), (5, 7)]
    assert_same_training(left, right)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("weighting", [fgn.Equal, fgn.GradNorm], ids=lambda k: k.__name__)
def test_a_client_alone_may_go_wrong_in_its_first_round(weighting: Any) -> None:
    how: dict[str, Any] = {"eval_every": 0, "rounds": 12, "weighting": weighting}
    made = [trainer(mlp(), clients(), engine, **how) for engine in ("auto", "loop")]
    for one in made:
        one.federations[2].server.shared.data.fill_(torch.inf)
    left, right = (played(one, 12) for one in made)
    assert Stretch.ran == []
    assert_same_training(left, right)


@pytest.mark.usefixtures("at_once")
def test_those_who_are_left_have_rounds_at_once_after_some_ordinary_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(captured_rounds, "WARM_AGAIN", 4)
    how: dict[str, Any] = {"eval_every": 0, "rounds": 16}
    made = [trainer(mlp(), clients(), engine, **how) for engine in ("auto", "loop")]
    for one in made:
        played(one, 5)
        monkeypatch.setattr(one.stopping, "is_stopped", lambda place: place == 1)
    left, right = (played(one, 16) for one in made)
    assert Stretch.ran == [(3, 2), (9, 7)]
    assert_same_training(left, right)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("participation", [0.5, [["corner-48", "side-24"], ["place-7"]]])
def test_those_who_come_and_go_have_ordinary_rounds(participation: Any) -> None:
    played(trainer(mlp(), clients(), "auto", eval_every=0, participation=participation), 8)
    assert Stretch.ran == []


@pytest.mark.usefixtures("at_once")
def test_a_state_that_one_client_alone_loads_needs_another_graph() -> None:
    how: dict[str, Any] = {"eval_every": 0, "rounds": 14}
    made = [trainer(mlp(), clients(), engine, **how) for engine in ("auto", "loop")]
    for one in made:
        played(one, 5)
        one.federations[1].load_state_dict(one.federations[1].state_dict())
    left, right = (played(one, how["rounds"]) for one in made)
    assert Stretch.ran == [(3, 2), (8, 6)]
    assert Stretch.made == 2
    assert_same_training(left, right)


@pytest.mark.usefixtures("at_once")
def test_a_state_that_was_loaded_before_any_graph_is_the_one_that_goes_on() -> None:
    how: dict[str, Any] = {"eval_every": 0, "rounds": 14}
    made = [trainer(mlp(), clients(), engine, **how) for engine in ("auto", "loop")]
    for one in made:
        for _ in range(4):
            one.advance()
        one.federations[1].load_state_dict(one.federations[1].state_dict())
    left, right = (played(one, 14) for one in made)
    assert Stretch.ran == [(4, 10)]
    assert_same_training(left, right)


@pytest.mark.parametrize("share", ["all", "none"])
@pytest.mark.parametrize("how", [{}, {"head_steps": 2}, {"weighting": fgn.GradNorm}], ids=str)
def test_replayed_rounds_are_the_ordinary_ones(
    share: str, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stretch.use_graphs(monkeypatch)
    made = [
        trainer(mlp(), clients(), engine, eval_every=0, rounds=20, share=share, **how)
        for engine in ("auto", "loop")
    ]
    left, right = (played(played(one, 11), 20) for one in made)
    assert_same_training(left, right)


def test_replayed_rounds_are_undone_where_one_is_not_finite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stretch.use_graphs(monkeypatch)
    made = [
        trainer(mlp(), clients(), engine, eval_every=0, rounds=14) for engine in ("auto", "loop")
    ]
    for one in made:
        played(one, 6)
        one.federations[4].server.shared.data.fill_(torch.inf)
    left, right = (played(one, 14) for one in made)
    assert_same_training(left, right)


def test_replayed_rounds_of_those_who_are_left_are_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    stretch.use_graphs(monkeypatch)
    monkeypatch.setattr(captured_rounds, "WARM_AGAIN", 2)
    made = [
        trainer(mlp(), clients(), engine, eval_every=0, rounds=14) for engine in ("auto", "loop")
    ]
    for one in made:
        played(one, 6)
        monkeypatch.setattr(one.stopping, "is_stopped", lambda place: place in (0, 3))
    left, right = (played(one, 14) for one in made)
    assert_same_training(left, right)


@pytest.mark.usefixtures("at_once")
def test_a_round_that_cannot_be_captured_is_an_ordinary_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(Stretch, "__init__", refuse)
    caplog.set_level("INFO", "fedgradnorm")
    how: dict[str, Any] = {"eval_every": 0}
    left, right = (played(trainer(mlp(), clients(), e, **how), 8) for e in ("auto", "loop"))
    assert_same_training(left, right)
    assert "rounds are not captured: operation not permitted" in caplog.text


@pytest.mark.parametrize(
    ("how", "many"),
    [
        ({}, True),
        ({"weighting": fgn.GradNorm}, True),
        ({"weighting": RandomWeights}, False),
        ({"server_optimizer": "adafactor"}, False),
        ({"head_optimizer": "adagrad"}, False),
        ({"server_schedule": "cosine"}, False),
        ({"head_schedule": "cosine"}, False),
    ],
    ids=str,
)
def test_rounds_come_at_once_where_nothing_is_decided_on_the_host(
    how: dict[str, Any], many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trainer(mlp(), clients(), "auto", **how)
    run = made.federations._run
    assert made.federations.burst == 1
    monkeypatch.setattr(run, "device", torch.device("cuda"))  # only asked for its kind
    told = captured_rounds.optimizers.capturable
    monkeypatch.setattr(
        captured_rounds.optimizers,
        "capturable",
        lambda one: is_adam(one) or told(one),  # on a GPU it is told to be
    )
    assert (made.federations.burst > 1) is many


@pytest.mark.parametrize(
    ("spec", "may"),
    [
        ("sgd", True),
        ("adafactor", False),
        ("adagrad", False),
        ({"name": "sgd", "momentum": 0.9}, True),
    ],
)
def test_an_optimiser_that_counts_on_the_host_is_not_captured(spec: Any, may: bool) -> None:
    optimizer = build([torch.zeros(3, requires_grad=True)], resolve(spec, 0.1))
    assert capturable(optimizer) is may
