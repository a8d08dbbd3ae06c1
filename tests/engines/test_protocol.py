"""What a federation asks of any executor."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

import fedgradnorm as fgn
import flat
import toys
from fedgradnorm._federation.federation import Federation
from fedgradnorm._round.executor import EXECUTORS
from fedgradnorm.weighting._directions import TrimmedMean
from fedgradnorm.weighting._products import MGDA


def federation(executor: str, weighting: fgn.Weighting | None = None) -> Federation:
    return toys.federation(toys.network(), toys.clients(), weighting, executor=executor)


@pytest.mark.parametrize("name", EXECUTORS)
def test_every_executor_reports_updates_where_they_are_asked_for(name: str) -> None:
    ours, plain = federation(name), federation("loop")
    for one in (ours, plain):
        one.round(0, one.names)
    shared = plain.server.shared
    found = ours.engine.run_clients(shared, 1, ours.names, updates=True)
    expected = plain.engine.run_clients(shared, 1, plain.names).gradients()
    torch.testing.assert_close(found.gradients(), expected)
    for client in plain.names:
        torch.testing.assert_close(toys.row(ours, client), toys.row(plain, client))


@pytest.mark.parametrize("name", EXECUTORS)
def test_on_a_cpu_rounds_are_taken_one_by_one(name: str) -> None:
    ours, plain = federation(name), federation(name)
    assert ours.rounds_per_call == 1
    together = ours.rounds(0, [ours.names] * 4)
    single = [outcome for k in range(4) for outcome in plain.rounds(k, [plain.names])]
    assert together == single
    assert toys.same(ours.state_dict(), plain.state_dict())


@pytest.mark.parametrize("name", EXECUTORS)
def test_tuned_heads_are_the_loops(name: str) -> None:
    ours, plain = federation(name), federation("loop")
    for one in (ours, plain):
        one.engine.tune_heads(plain.server.shared, 3, 2)
    for client, head in toys.heads(plain.engine).items():
        assert toys.same(toys.heads(ours.engine)[client].state_dict(), head.state_dict())


@pytest.mark.parametrize("name", EXECUTORS)
def test_a_round_of_nobody_changes_nothing(name: str) -> None:
    one = federation(name)
    one.round(0, one.names)
    before = one.state_dict()
    (record,) = one.rounds(1, [[]])
    assert (record.clients, record.failed, record.columns) == ([], [], {})
    assert len(one.engine.run_clients(one.server.shared, 1, []).loss) == 0
    assert toys.same(one.state_dict(), before)


@pytest.mark.parametrize("name", EXECUTORS)
def test_a_state_continues_under_any_other_executor(name: str) -> None:
    first, plain = federation(name, fgn.GradNorm()), federation("loop", fgn.GradNorm())
    for k in range(3):
        for one in (first, plain):
            one.round(k, one.names[: 2 + k % 2])
    for other in EXECUTORS:
        then = federation(other, fgn.GradNorm())
        then.load_state_dict(first.state_dict())
        twin = federation("loop", fgn.GradNorm())
        twin.load_state_dict(plain.state_dict())
        for one in (then, twin):
            one.round(3, one.names)
        torch.testing.assert_close(then.server.shared, twin.server.shared, rtol=0, atol=1e-10)
        for client in twin.names:
            rows = [toys.row(one, client) for one in (then, twin)]
            torch.testing.assert_close(*rows, rtol=0, atol=1e-10)


class Branching(nn.Module):
    """What it does depends on a number, which vmap cannot know."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if float(x.detach().sum()) > 0 else 2 * x


PROBLEMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "local steps": {"shared_steps": 2},
    "model": {"sends": "model"},
    "alone": {"share": "none"},
    "private layer": {"shared": "!0"},
    "clipped": {"clip": 1.0},
    "gradients": {"weighting": TrimmedMean},
    "products": {"weighting": MGDA},
    "statistics": {"network": toys.noisy_network},
    "branching": {
        "network": lambda: toys.seeded(lambda: nn.Sequential(nn.Linear(6, 5), Branching()))
    },
    "in place": {
        "network": lambda: toys.seeded(lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(True)))
    },
    "optimizers": {"head_optimizer": "rprop", "local_optimizer": "nadam", "shared_steps": 2},
}


REFUSED = {
    "joint": {*PROBLEMS} - {"plain"},
    "vmap": {"branching"},
}


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", [*EXECUTORS, "auto"])
def test_every_executor_runs_a_problem_or_says_why_not(name: str, problem: str) -> None:
    given = {"network": toys.network, "weighting": fgn.Equal, **PROBLEMS[problem]}
    network, weighting = given.pop("network")(), given.pop("weighting")()
    alike = [toys.client(f"{kind}-{k}", 24, kind) for kind in toys.NAMES for k in range(2)]
    how = {"rounds": 2, "batch_size": 8, "lr": 0.01, "executor": name, **given}
    if problem in REFUSED.get(name, ()):
        with pytest.raises(
            fgn.ConfigError, match=rf"^executor '{name}' cannot run this: .*'auto'$"
        ):
            flat.train(network, alike, weighting=weighting, **how)
        return
    run = flat.train(network, alike, weighting=weighting, **how)
    assert torch.isfinite(torch.tensor(run.history.loss.to_numpy())).all()


def test_what_only_the_loop_can_run_is_left_to_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "fedgradnorm")
    alike = [toys.client(f"side-{k}", 24, "side") for k in range(2)]
    net = toys.seeded(lambda: nn.Sequential(nn.Linear(6, 5), Branching()))
    flat.train(net, alike, rounds=1, shared_steps=2)
    assert "executor loop (not joint: shared_steps = 2" in caplog.text
    assert "not vmap: vmap cannot run it (" in caplog.text


def test_examples_that_clients_share_pass_the_network_once() -> None:
    """Examples that several clients hold are evaluated once, and no number changes."""
    clients = [toys.client(name, 30) for name in toys.NAMES]
    x = torch.as_tensor(clients[0].train[0])
    shared = [dataclasses.replace(c, train=(x, c.train[1])) for c in clients]
    copies = [dataclasses.replace(c, train=(x.clone(), c.train[1])) for c in shared]
    counted: dict[bool, list[int]] = {}
    results = []
    for alike, group in ((True, shared), (False, copies)):
        one = toys.federation(toys.network(), group, executor="loop")
        calls = counted.setdefault(alike, [])
        hook = one.engine.network.module.register_forward_hook
        hook(lambda *call, calls=calls: calls.append(len(call[-1])))
        results.append(one.evaluate("train"))
    assert results[0] == results[1]
    assert sum(counted[True]) == 30
    assert sum(counted[False]) == 90
