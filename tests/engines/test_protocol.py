"""What a federation asks of any engine, and when the joint engine runs rounds at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import fedgradnorm as fgn
import toys
from fedgradnorm._engines import JointEngine
from fedgradnorm._engines.joint import joint_engine as joint
from fedgradnorm._federation.federation import Federation
from fedgradnorm._round.server import ServerState, columns, server_round

ENGINES = ("loop", "joint", "stacked", "distributed")


def federation(engine: str, weighting: fgn.Weighting | None = None) -> Federation:
    return toys.federation(toys.network(), toys.clients(), weighting, engine=engine)


@pytest.mark.parametrize("name", ENGINES)
def test_a_trial_of_a_round_keeps_every_update_and_leaves_no_trace(name: str) -> None:
    ours, plain = federation(name), federation("loop")
    for one in (ours, plain):
        one.round(0, one.names)
    before = ours.state_dict()
    shared = plain.server.shared.data
    found = ours.engine.trial().run_clients(shared, 1, ours.names)
    assert toys.same(ours.state_dict(), before)
    expected = plain.engine.run_clients(shared, 1, plain.names).gradients()
    torch.testing.assert_close(found.gradients(), expected)


@pytest.mark.parametrize("name", ENGINES)
def test_on_a_cpu_rounds_are_taken_one_by_one(name: str) -> None:
    one = federation(name)
    before = one.state_dict()
    assert one.burst == one.engine.burst(one.server) == 1
    assert one.engine.rounds(one.server, 0, [one.names] * 4) == []
    assert toys.same(one.state_dict(), before)


@pytest.mark.parametrize("name", ENGINES)
def test_tuned_heads_are_the_loops(name: str) -> None:
    ours, plain = federation(name), federation("loop")
    for one in (ours, plain):
        one.engine.tune_heads(plain.server.shared.data, 3, 2)
    for client, head in plain.engine.heads().items():
        assert toys.same(ours.engine.heads()[client].state_dict(), head.state_dict())


class Stretch:
    """Stands in for a captured graph: the same rounds, taken one by one."""

    LONGEST = 512
    made: ClassVar[int] = 0
    ran: ClassVar[list[tuple[int, int]]] = []
    breaks: ClassVar[bool] = False

    def __init__(self, engine: JointEngine, server: ServerState) -> None:
        type(self).made += 1
        self.engine, self.server = engine, server

    def run(self, first: int, count: int) -> Tensor | None:
        self.ran.append((first, count))
        return None if self.breaks else torch.stack([self._round(first + k) for k in range(count)])

    def _round(self, number: int) -> Tensor:
        engine, names = self.engine, list(self.engine.clients)
        plan = engine.planner.plan(names)
        rows = engine.windows.coming(number, 1)[0]
        reports = engine.work(self.server.shared.data, rows, plan)
        table = columns(self.server, reports, server_round(self.server, reports))
        return torch.stack(list(table.values()))


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> Federation:
    """A federation whose engine believes that it can capture rounds."""
    monkeypatch.setattr(joint, "CapturedRounds", Stretch)
    monkeypatch.setattr(JointEngine, "burst", lambda *_: Stretch.LONGEST)
    for name, start in (("made", 0), ("ran", []), ("breaks", False)):
        monkeypatch.setattr(Stretch, name, start)
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


def test_rows_that_clients_share_pass_the_network_once() -> None:
    """An evaluation costs one pass for all that hold the very same rows, and changes no number."""
    clients = [toys.client(name, 30) for name in toys.NAMES]
    x = torch.as_tensor(clients[0].train[0])
    shared = [dataclasses.replace(c, train=(x, c.train[1])) for c in clients]
    copies = [dataclasses.replace(c, train=(x.clone(), c.train[1])) for c in shared]
    counted: dict[bool, list[int]] = {}
    results = []
    for alike, group in ((True, shared), (False, copies)):
        one = toys.federation(toys.network(), group, engine="loop")
        calls = counted.setdefault(alike, [])
        one.engine.network.module.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        results.append(one.evaluate("train"))
    assert results[0] == results[1]
    assert len(counted[False]) == len(clients) * len(counted[True]) > 0
