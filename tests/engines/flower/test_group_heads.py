"""Heads that clients of a deployment share: the run of one process, and nothing else gets in."""

from __future__ import annotations

import copy
import logging
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import fedgradnorm as fgn
import flat
import shared_heads
import toys
from engines.flower.direct import OPTIONS, Together, answered
from fedgradnorm._flower.federation_file import TaskTerms
from fedgradnorm._flower.group_heads import GroupHeads
from fedgradnorm._flower.wire.messages import Refused, decode_order
from fedgradnorm._round.bounds import Bounds
from fedgradnorm._round.reports import Reports
from fedgradnorm._round.settings import Settings
from fedgradnorm.weighting._fixed import BySize

ABSENT = [["a", "c", "e"], ["b", "d", "f"], ["a", "b"], ["e"], ["c", "f", "d"], list("abcdef")]
CASES = {
    "by task, part of the clients": {"heads": "task", "participation": ABSENT},
    "by task, by size": {
        "heads": "task",
        "weighting": BySize,
        "aggregate": "by_size",
    },
    "all": {"heads": "all", "participation": 0.5},
    "together": {"heads": "all", "phases": "joint", "shared_steps": 2},
    "by task, own bias": {"heads": "task", "head_own": "bias", "participation": ABSENT},
    "all, own bias at the targets": {"heads": "all", "head_own": "bias", "head_init": "targets"},
    "never trained, as FedBABU's": {"heads": "task", "head_steps": 0, "participation": ABSENT},
    "own bias at random": {"heads": "task", "head_own": ["bias"], "head_init": "random"},
}


def served(folder, **how) -> Together:
    weighting = how.pop("weighting", fgn.GradNorm)()
    return Together(folder, weighting, clients=shared_heads.clients, **{"heads": "task", **how})


def alone(**how) -> fgn.Run:
    weighting = how.pop("weighting", fgn.GradNorm)()
    options = {**OPTIONS, "executor": "loop", "eval_every": 0, "heads": "task", **how}
    return flat.train(toys.network(), shared_heads.clients(), weighting=weighting, **options)


def assert_same(together: Together, reference: fgn.Run) -> None:
    shared = together.server.server.shared.data
    assert torch.equal(shared, toys.parameters(reference.network))
    for name, run in together.results().items():
        assert torch.equal(toys.parameters(run.heads[name]), toys.parameters(reference.heads[name]))


@pytest.mark.parametrize("name", CASES)
def test_the_run_of_one_process_to_the_bit(name, tmp_path):
    together = served(tmp_path, **CASES[name])
    together.run()
    assert_same(together, alone(**CASES[name]))


@pytest.mark.parametrize("name", ["by task, part of the clients", "by task, own bias"])
def test_whoever_starts_anew_goes_on_with_the_same_heads(name, tmp_path):
    how = CASES[name]
    together = served(tmp_path, **how)
    together.run(3)
    before = copy.deepcopy(together.server.state_dict())
    together.run(1)
    again = served(tmp_path, **how)  # the server and all clients, from what they have written
    again.server.load_state_dict(before)
    again.run()
    assert_same(again, alone(**how))


def test_a_server_does_not_go_on_with_heads_of_other_groups(tmp_path):
    state = served(tmp_path / "a").server.state_dict()
    with pytest.raises(ValueError, match="other groups"):
        served(tmp_path / "b", heads="all").server.load_state_dict(state)


# ------------------------------------------------------------------------------ what may leave


def heads_in(together: Together) -> set[str]:
    return {name for name, content in together.exchange.sent if "head" in content}


def test_a_head_leaves_only_where_it_is_shared(tmp_path):
    together = served(tmp_path / "task")
    together.run(2)
    assert heads_in(together) == set("abcdf")  # e is alone with its task
    own = served(tmp_path / "own", heads="own")
    own.run(2)
    assert not heads_in(own)
    assert own.agreement.sent == ("update", "loss_ratio", "grad_norm")
    assert together.agreement.sent == ("update", "loss_ratio", "grad_norm", "head")
    heads, names = 2 * 2 * 8 * 18, 2 * 2 * 150  # both ways in each round
    assert heads < together.server.bytes["a"] - own.server.bytes["a"] < heads + names
    assert abs(together.server.bytes["e"] - own.server.bytes["e"]) < 50  # digits of its numbers


def test_a_bias_of_ones_own_never_leaves(tmp_path):
    """Neither side sends it; only the weights count as traffic."""
    together = served(tmp_path / "bias", head_own="bias")
    together.run(2)
    assert heads_in(together) == set("abcdf")
    assert together.agreement.sent == ("update", "loss_ratio", "grad_norm", "head without bias")
    assert together.server._order("train", "a").head.numel() == 5 * 3
    assert {len(vector) for vector in together.server.heads.vectors.values()} == {5 * 3}
    whole = served(tmp_path / "whole")
    whole.run(2)
    saved = whole.server.bytes["a"] - together.server.bytes["a"]
    assert abs(saved - 2 * 2 * 8 * 3) < 50  # digits of its numbers


def test_a_client_that_keeps_its_bias_gives_no_whole_head_away(tmp_path):
    order = served(tmp_path / "whole").server._order("train", "a")
    careful = served(tmp_path / "bias", head_own="bias").exchange.participants["a"]
    with pytest.raises(Refused, match=r"float64\[18\] instead of float64\[15\]"):
        careful.respond(order.encoded())


def test_what_clients_keep_must_be_part_of_the_servers_head():
    for own, words in (("2.bias", "matches no parameter"), (["*"], "nothing to share")):
        settings, tasks = Settings(heads="task", head_own=own), {"t": TaskTerms(2, ["a", "b"])}
        with pytest.raises(fgn.ConfigError, match=words):
            GroupHeads(["a", "b"], tasks, settings, 5, torch.float32)


def test_a_client_that_has_not_agreed_gives_no_head_away(tmp_path):
    """Whatever the server asks: its settings say that heads are its own."""
    order = served(tmp_path / "task").server._order("train", "a")
    own = served(tmp_path / "own", heads="own").exchange.participants["a"]
    with pytest.raises(Refused, match="not agreed on: head"):
        own.respond(order.encoded())


def test_a_client_shares_with_its_own_task_alone(tmp_path):
    together = served(tmp_path)
    order = together.server._order("train", "a")
    south = together.exchange.participants["b"]
    with pytest.raises(Refused, match="group: 'north' instead of 'south'"):
        south.respond(order.encoded())
    with pytest.raises(Refused, match=r"float64\[18\] instead of float64\[5\]"):
        decode_order(order.encoded(), order.shared, "north", torch.zeros(5).double())


def test_a_private_client_gives_one_head_for_one_order(tmp_path):
    """Asked again, also after it was started anew, it repeats itself: other noise would cost."""
    promise = fgn.Privacy(epsilon=5.0, delta=1e-3)

    def clients():
        return [replace(client, privacy=promise) for client in shared_heads.clients()]

    together = Together(tmp_path, clients=clients, heads="task")
    together.run(1)
    order = together.server._order("train", "a")
    first = answered(together.exchange.participants["a"], order)
    together.restart("a")
    again = answered(together.exchange.participants["a"], order)
    assert torch.equal(first.head, again.head)
    assert torch.equal(first.update, again.update)


# ------------------------------------------------------------------------------ hostile heads


def record(values, dtype=np.float64) -> dict:
    return {"head": np.asarray(values, dtype=dtype)}


NUMBERS = 18
BAD = {
    "another shape": (record(np.zeros(NUMBERS + 1)), r"float64\[19\] instead of float64\[18\]"),
    "another kind": (record(np.zeros(NUMBERS), dtype=np.float32), "instead of float64"),
    "NaN": (record([np.nan] * NUMBERS), "not finite"),
    "infinite": (record([np.inf] * NUMBERS), "not finite"),
    "far too long": (record([1e9] * NUMBERS), "its head has length"),
    "two heads": ({**record(np.zeros(NUMBERS)), "south": np.zeros(NUMBERS)}, "agreed on: south"),
    "a flood": (record(np.zeros(5000)), "bytes, more than"),
    "none": ({}, "missing or not agreed on: head"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_head_is_refused_counted_and_left_out(name, tmp_path, caplog):
    bad, words = BAD[name]

    def tamper(who, order, content):
        if who == "c" and order.round == 1:
            del content["head"]
            content |= bad
        return content

    together = served(tmp_path, rounds=3)
    together.exchange.tamper = tamper
    with caplog.at_level(logging.WARNING, "fedgradnorm"):
        together.run()
    assert together.server.refused == {**dict.fromkeys("abdef", 0), "c": 1}
    assert "answer of 'c' refused: " in caplog.text
    assert re.search(words, caplog.text)
    absent = [list("abcdef"), list("abdef"), list("abcdef")]
    assert_same(together, alone(rounds=3, participation=absent))


def test_who_is_alone_with_its_task_may_not_send_a_head(tmp_path):
    together = served(tmp_path)

    def tamper(who, order, content):
        if who == "e":
            content |= record(np.zeros(NUMBERS))
        return content

    together.exchange.tamper = tamper
    together.run(1)
    assert together.server.refused["e"] == 1


def averaged(ways, bounds) -> tuple[torch.Tensor, list]:
    """The head of a group after a round whose clients went so far, each along its own axis."""
    names = [f"n{i}" for i in range(len(ways))]
    start = torch.zeros(len(ways), dtype=torch.float64)
    tasks, settings = {"t": TaskTerms(1, names)}, Settings(heads="task")
    heads = GroupHeads(names, tasks, settings, 1, torch.float64, bounds)
    heads.vectors["t"] = start
    one = torch.ones(len(ways), dtype=torch.float64)
    reports = Reports(one > 0, one, one, one, one, (), updates=one[:, None])
    axes = torch.diag(torch.tensor(ways, dtype=torch.float64))
    sent = dict(zip(names, axes, strict=True))
    cuts = heads.average(sent, reports, one, "mean")
    return heads.vectors["t"], cuts


def test_a_heads_way_is_bounded_from_three_clients_on():
    mean, cuts = averaged([1.0, 2.0, 100.0], Bounds(share=2.0))
    torch.testing.assert_close(mean, torch.tensor([1.0, 2.0, 4.0]).double() / 3)
    assert [str(cut) for cut in cuts] == [
        "its way from the head that was sent, in medians, is 50, 2 counts (largest_share)"
    ]
    for ways, bounds in (
        ([1.0, 100.0], Bounds(share=2.0)),
        ([1.0, 2.0, 100.0], Bounds()),
        ([1.0, 2.0, 1e7], Bounds(share=float("inf"))),
        ([1.0, 2.0, 1e7], None),
    ):
        mean, cuts = averaged(ways, bounds)
        torch.testing.assert_close(mean, torch.tensor(ways).double() / len(ways))
        assert not cuts


def test_a_bounded_head_is_counted(tmp_path):
    together = served(tmp_path, bounds=Bounds(share=1.5))

    def tamper(who, order, content):
        if who == "c":
            head = order.head + 1000
            content |= record(head.numpy())
        return content

    together.exchange.tamper = tamper
    together.run(1)
    assert together.server.bounded["c"] == 1
    vectors = together.server.heads.vectors
    start = served(tmp_path / "b").server.heads.vectors
    assert (vectors["north"] - start["north"]).norm() < 1


# ----------------------------------------------------------------------------- what must be said


def made(tasks, heads="task", features=5):
    return GroupHeads(["a", "b"], tasks, Settings(heads=heads), features, torch.float32)


@pytest.mark.parametrize(
    ("tasks", "more", "words"),
    [
        ({}, {}, r"say in federation.toml, under \[tasks\]"),
        ({"t": TaskTerms(2, ["a"])}, {"heads": "all"}, "no task in federation.toml names b"),
        (
            {"t": TaskTerms(2, ["a"]), "u": TaskTerms(3, ["b"])},
            {"heads": "all"},
            "differ in outputs",
        ),
        ({"t": TaskTerms(2, ["a", "b"])}, {"features": None}, "add features = their number"),
    ],
)
def test_a_server_must_be_told_whose_heads_are_shared(tasks, more, words):
    with pytest.raises(fgn.ConfigError, match=words):
        made(tasks, **more)


def test_a_group_starts_with_the_head_of_one_process():
    like = toys.federation(toys.network(torch.float32), shared_heads.clients(), heads="task")
    tasks = {"north": TaskTerms(3, ["a", "c", "f"]), "south": TaskTerms(3, ["b", "d"], 5)}
    found = GroupHeads(list("abcdef"), tasks, Settings(heads="task"), 5, torch.float32)
    heads = toys.heads(like.engine)
    for name in "abcdf":
        assert torch.equal(found.of(name)[1], toys.parameters(heads[name]))
    assert found.of("e") == ("", None)
