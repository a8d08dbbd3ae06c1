"""Shared heads: by all clients, by the clients of one task, and by none."""

from __future__ import annotations

import copy
import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedgradnorm as fgn
import toys
from fedgradnorm._federation.heads import SharedHeads, average_heads
from fedgradnorm._round.server import coefficients
from fedgradnorm.weighting import Needs
from fedgradnorm.weighting._products import Krum
from shared_heads import TASKS, assert_same, client, clients, same_heads, train, vectors


def federation(heads: str = "task", **how: Any):
    return toys.federation(toys.network(), clients(), heads=heads, **how)


def assert_one_head_a_task(heads: dict[str, Tensor]) -> None:
    for one, other in itertools.combinations(TASKS, 2):
        assert torch.equal(heads[one], heads[other]) == (TASKS[one] == TASKS[other]), (one, other)


# ------------------------------------------------------------------------------------------ laws


def averaged_one_by_one(heads: Tensor, shares: Tensor) -> Tensor:
    """The mean of all heads in float64, weighted by ``shares``, head after head."""
    parts = zip(shares.tolist(), heads.double(), strict=True)
    mean = sum(part * head for part, head in parts if part)
    return torch.as_tensor(mean).to(heads.dtype).expand_as(heads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("executor", "how"),
    [
        ("loop", {"aggregate": "by_size", "participation": 0.5}),
        ("joint", {}),
        ("vmap", {"shared_steps": 2, "participation": 0.7}),
    ],
)
def test_all_is_the_mean_taken_head_by_head(executor, how, dtype, monkeypatch) -> None:
    how = {"executor": executor, "network": toys.network(dtype), **how}
    ours = train("all", **how)

    def by_hand(self: SharedHeads, heads: Any, reports: Any, weights: Tensor, by: Any) -> Any:
        assert self.groups == [list(TASKS)]
        signals = reports.signals(Needs.NOTHING).among(len(weights))
        share = coefficients(weights, signals, by)
        yield self.groups[0], averaged_one_by_one(heads(self.groups[0]), share / share.sum())

    monkeypatch.setattr(SharedHeads, "averaged", by_hand)
    theirs = train("all", **how)
    if dtype == torch.float32:
        assert_same(ours, theirs)
    for name, head in vectors(ours.heads).items():  # of float64 only the order of the sum differs
        torch.testing.assert_close(head, vectors(theirs.heads)[name], rtol=0, atol=1e-12)
    pair = toys.parameters(ours.network), toys.parameters(theirs.network)
    torch.testing.assert_close(*pair, rtol=0, atol=1e-12)


@pytest.mark.parametrize("executor", ["loop", "joint"])
def test_one_task_for_everybody_is_all(executor: str) -> None:
    given = clients(dict.fromkeys(TASKS, "one"))
    how = {"executor": executor, "participation": 0.5}
    assert_same(train("task", given, **how), train("all", given, **how))


@pytest.mark.parametrize("executor", ["loop", "joint"])
def test_tasks_of_one_client_each_have_no_heads_to_share(executor: str) -> None:
    given = clients({name: f"task {name}" for name in TASKS})
    with pytest.raises(fgn.ConfigError, match="no two of the 6 clients share a task"):
        train("task", given, executor=executor)


@pytest.mark.parametrize("executor", ["loop", "joint"])
def test_tasks_without_names_that_are_alike_are_one(executor: str) -> None:
    given = clients(dict.fromkeys(TASKS))
    assert_same(train("task", given, executor=executor), train("all", given, executor=executor))


def test_a_task_of_one_client_keeps_the_head_it_would_have_had() -> None:
    own, task = (federation(how, head_init="random") for how in ("own", "task"))
    start = vectors(toys.heads(task.engine))
    assert_one_head_a_task(start)
    assert torch.equal(start["e"], vectors(toys.heads(own.engine))["e"])
    assert torch.equal(start["a"], vectors(toys.heads(own.engine))["a"])
    assert task.shared_heads.groups == [["a", "c", "f"], ["b", "d"]]


@pytest.mark.parametrize("executor", ["loop", "joint"])
def test_the_order_of_the_clients_says_nothing(executor: str) -> None:
    shuffled = clients()
    random.Random(1).shuffle(shuffled)
    assert [one.name for one in shuffled] != list(TASKS)
    ours, theirs = (train("task", given, executor=executor) for given in (clients(), shuffled))
    for name, head in vectors(ours.heads).items():
        torch.testing.assert_close(head, vectors(theirs.heads)[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("executor", "how"), [("loop", {}), ("joint", {}), ("vmap", {"shared_steps": 2})]
)
def test_the_heads_of_a_task_are_equal_after_every_round(executor: str, how) -> None:
    one = federation(executor=executor, **how)
    for number, active in enumerate([list(TASKS), ["a", "b", "e"], ["c", "e"], ["e", "f", "d"]]):
        before = vectors(copy.deepcopy(toys.heads(one.engine)))
        one.round(number, active)
        after = vectors(toys.heads(one.engine))
        assert_one_head_a_task(after)
        for name, task in TASKS.items():
            moved = any(TASKS[other] == task for other in active)
            assert torch.equal(before[name], after[name]) != moved, name


@pytest.mark.parametrize("aggregate", ["mean", "by_size"])
def test_the_mean_is_that_of_the_servers_coefficients_within_the_task(aggregate: str) -> None:
    weighting = fgn.Static({"a": 1.0, "b": 0.5, "c": 2.0, "d": 0.1, "e": 1.0, "f": 3.0})
    how = {"aggregate": aggregate, "weighting": weighting}
    own, task = (
        toys.federation(toys.network(), clients(), heads=heads, **how) for heads in ("own", "task")
    )
    for name in TASKS:
        own.engine.load_client(name, task.engine.client_state(name))
    for each in (own, task):
        each.round(0, ["a", "b", "c", "e"])
    sent, found = vectors(toys.heads(own.engine)), vectors(toys.heads(task.engine))
    a, c = (1.0 * 48, 2.0 * 24) if aggregate == "by_size" else (1.0, 2.0)
    mean = (a * sent["a"] + c * sent["c"]) / (a + c)
    for name in "acf":
        torch.testing.assert_close(found[name], mean)
    for name in "bd":  # b was there alone
        assert torch.equal(found[name], sent["b"])


def test_moments_stay_each_clients_own() -> None:
    one = federation()
    for number in range(2):
        one.round(number, list(TASKS))
    states = [one.engine.client_state(name) for name in ("a", "c")]
    moments = [{k: v for k, v in s.items() if k.startswith("optimizer.")} for s in states]
    assert moments[0]
    assert not toys.same(*moments)


def test_whom_the_server_gives_nothing_counts_like_the_others_of_its_task() -> None:
    one = federation(weighting=Krum())
    weights = one.round(0, list(TASKS))[1]
    assert (weights == 0).sum() == 5
    assert_one_head_a_task(vectors(toys.heads(one.engine)))


@pytest.mark.parametrize(
    ("share", "wanted"),
    [
        ([1.0, 3.0, 0.0], [0.25, 0.75, 0.0]),
        ([0.0, 0.0, 0.0], [0.5, 0.5, 0.0]),
        ([1.0, -0.99, 0.0], [0.5, 0.5, 0.0]),
    ],
)
def test_shares_within_a_task(share: list[float], wanted: list[float]) -> None:
    even = torch.tensor([0.2, 0.2, 0.0])
    found = SharedHeads({}, "task", toys.CPU)._parts(torch.tensor(share), even)
    assert found.tolist() == pytest.approx(wanted)


def test_nobody_there_is_no_mean() -> None:
    zero = torch.zeros(2)
    parts = SharedHeads({}, "task", toys.CPU)._parts(zero, zero).tolist()
    assert parts == [0.0, 0.0]
    heads = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert torch.equal(average_heads(heads, parts), heads)


def test_who_failed_does_not_count_and_gets_the_mean() -> None:
    with_bad = federation()
    with_bad.engine.examples.split("c", "train")[0].fill_(float("inf"))
    reports, _ = with_bad.round(0, list(TASKS))
    assert list(reports.failed) == ["c"]
    without = federation()
    without.round(0, [name for name in TASKS if name != "c"])
    assert toys.same(vectors(toys.heads(with_bad.engine)), vectors(toys.heads(without.engine)))


# --------------------------------------------------------------------------------------- engines

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "some": {"participation": 0.5},
    "together, by size": {"phases": "joint", "aggregate": "by_size"},
    "many head steps": {"head_steps": 3, "step_with": "previous", "weight_per": "task"},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("executor", "steps"), [("joint", 1), ("vmap", 3)])
def test_engines_give_the_loops_run(executor: str, steps: int, case: str) -> None:
    how = {"shared_steps": steps, **CASES[case]}
    loop, ours = train(**how), train(executor=executor, **how)
    for name, head in vectors(loop.heads).items():
        torch.testing.assert_close(vectors(ours.heads)[name], head, rtol=0, atol=1e-10)
    numbers = loop.history.select_dtypes("number").columns
    left, right = (run.history[numbers].to_numpy(float) for run in (loop, ours))
    np.testing.assert_allclose(left, right, rtol=1e-8, atol=1e-9)


def test_a_head_of_ones_own_with_running_statistics_keeps_them() -> None:
    def head() -> nn.Module:
        return toys.seeded(lambda: nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3)))

    given = [client(name, "one", size, head=head()) for name, size in (("a", 48), ("b", 24))]
    run = train("task", given)
    states = [run.heads[name].state_dict() for name in ("a", "b")]
    assert torch.equal(states[0]["1.weight"], states[1]["1.weight"])
    assert not torch.equal(states[0]["0.running_mean"], states[1]["0.running_mean"])


# ---------------------------------------------------------------------------------- kept and told


@pytest.mark.parametrize("more", [{}, {"participation": 0.5, "executor": "joint"}, {"ditto": 0.3}])
def test_a_stopped_run_goes_on_to_the_bit(tmp_path: Path, more) -> None:
    whole = train(folder=tmp_path / "whole", **more)

    def stop(event) -> None:
        if event.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(folder=tmp_path / "part", progress=stop, **more)
    again = train(folder=tmp_path / "part", resume=True, **more)
    assert_same(whole, again)
    loaded = fgn.load(tmp_path / "part")
    assert same_heads(loaded, whole)
    assert loaded.manifest["settings"]["heads"] == "task"


def test_dittos_shared_network_is_that_of_shared_heads_and_personal_heads_are_personal() -> None:
    plain, ditto = train(), train(ditto=0.3)
    assert torch.equal(toys.parameters(plain.network), toys.parameters(ditto.network))
    heads = vectors(ditto.heads)
    assert not torch.equal(heads["a"], heads["c"])


def test_a_client_alone_shares_with_nobody() -> None:
    task, own = train("task", share="none"), train("own", share="none")
    assert same_heads(task, own)
    assert task.history.equals(own.history)


def test_the_head_is_counted_as_traffic_where_it_travels() -> None:
    task, own = federation("task"), federation("own")
    for name in TASKS:
        head = 0 if name == "e" else 2 * 8 * (5 * 3 + 3)
        assert task.bytes_per_round(name) - own.bytes_per_round(name) == head
    history = train("task", rounds=2).history
    rows = history[(history["round"] == 2) & (history.split == "batch")].set_index("client")
    assert rows.bytes["a"] - rows.bytes["e"] == 2 * 2 * 8 * (5 * 3 + 3)


# -------------------------------------------------------------------------------------- bad input


def test_heads_of_one_task_that_differ_are_named() -> None:
    given = [
        client("a", "north", 30), client("b", "south", 30), client("c", "north", 30, "side"),
    ]  # fmt: skip
    with pytest.raises(fgn.ConfigError) as error:
        train("task", given)
    for word in ("'a'", "'c'", "'north'", "weight [3, 5]", "weight [2, 5]", "heads='own'"):
        assert word in str(error.value)
    train("own", given, rounds=1)


@pytest.mark.parametrize(
    ("value", "says"),
    [("tasks", "did you mean 'task'?"), (True, "heads"), (None, "heads"), (["task"], "heads")],
)
def test_another_word_is_refused(value, says: str) -> None:
    with pytest.raises(fgn.ConfigError) as error:
        train(value)
    assert says in str(error.value)
