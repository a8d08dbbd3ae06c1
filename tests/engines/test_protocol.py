"""What a federation asks of any engine."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import fedgradnorm as fgn
import toys
from fedgradnorm._federation.federation import Federation

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
