"""Rounds from a graph are the ordinary rounds, bit for bit; here only CUDA's capture is replaced.

What remains is all of ours: the table that says what each replay reads, batches drawn on the
device, rows changed in place, results kept for many rounds, and the way back if one goes wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedgradnorm as fgn
import flat
import toys
from fedgradnorm._engines import graph
from fedgradnorm._engines.graph import DeviceBatches
from fedgradnorm.tasks._measures import squared_error

CASES: dict[str, dict[str, Any]] = {
    "joint": {},
    "several local steps": {"shared_steps": 3, "head_steps": 2},
    "alone": {"share": "none"},
    "smaller batches of some": {"batch_size": 45},
    "smaller batches, some clients": {
        "batch_size": 45, "shared_steps": 2, "participation": [["corner0", "side1"], ["corner1"]]
    },
    "examples visited again": {"batch_size": None, "head_steps": 3, "shared_steps": 2},
    "examples visited again, some clients": {
        "batch_size": None, "head_steps": 3, "shared_steps": 2,
        "participation": [["corner0", "side1"], ["corner1", "side0"]],
    },
    "examples visited again in one pass, some clients": {
        "batch_size": 40, "head_steps": 3,
        "participation": [["corner0", "side1"], ["corner2", "side0"]],
    },
    "shared heads": {"heads": "task", "shared_steps": 2},
    "own bias": {"heads": "task", "head_own": "bias", "shared_steps": 2},
    "half of the clients": {"participation": 0.5, "shared_steps": 2},
    "lists of clients": {
        "participation": [["corner0", "side0"], ["corner1", "side1"], ["corner0", "corner1"]],
        "shared_steps": 2,
    },
    "model averaging": {
        "shared_steps": 3, "phases": "joint", "sends": "model",
        "server_optimizer": {"name": "sgd", "lr": 1.0},
    },
    "kept moments": {
        "shared_steps": 2, "local_optimizer": {"name": "sgd", "momentum": 0.9, "keep": True}
    },
}  # fmt: skip


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let rounds be captured on a CPU; how often a captured round was replayed."""
    counts = [0]

    def capture(round_once: Callable[[], None]) -> Callable[[], None]:
        def replay() -> None:
            counts[0] += 1
            round_once()

        return replay

    monkeypatch.setattr(graph, "_captured", capture)
    monkeypatch.setattr(graph, "DEVICES", {"cpu"})
    return counts


def clients() -> list[fgn.Client]:
    sizes = (48, 40, 48)
    return [
        replace(toys.client(f"{kind}{k}", size, kind=kind), task=toys.task(kind, name=kind))
        for kind in toys.NAMES
        for k, size in enumerate(sizes)
    ]


def train(some: list[fgn.Client] | None = None, **how: Any) -> fgn.Run:
    options: dict[str, Any] = {
        "rounds": 24,
        "batch_size": 8,
        "eval_every": 12,
        "lr": 0.01,
        "device": "cpu",
    }
    options |= {"first_loss": "first_round", **how}
    return flat.train(toys.network(), some or clients(), **options)


def everything(run: fgn.Run) -> list[Any]:
    networks = {n: dict(network.state_dict()) for n, network in run.networks.items()}
    heads = {name: dict(client.head.state_dict()) for name, client in run.clients.items()}
    return [networks, heads, run.weights, run.table.rows]


@pytest.mark.parametrize("case", CASES)
def test_captured_rounds_are_the_ordinary_ones(
    case: str, replays: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    captured = everything(train(**CASES[case]))
    assert replays[0] > 10
    monkeypatch.setattr(graph, "DEVICES", set())
    assert toys.same(captured, everything(train(**CASES[case])))


def test_an_interrupted_run_resumes_bit_for_bit(replays: list[int], tmp_path: Path) -> None:
    whole = train(folder=tmp_path / "whole", checkpoint_every=6)
    toys.interrupted(train, at=12, folder=tmp_path / "part", checkpoint_every=6)
    resumed = train(folder=tmp_path / "part", checkpoint_every=6, resume=True)
    assert replays[0] > 20
    assert toys.same(everything(whole)[:3], everything(resumed)[:3])


def test_a_round_that_goes_wrong_is_run_again_without_the_client(replays: list[int]) -> None:
    def spoiled_later(output: Tensor, target: Tensor) -> Tensor:
        return squared_error(output, target) + torch.where(target[:, 0] > 1e6, torch.nan, 0.0)

    x, y = toys.rows("place", 48)
    y[0] = 1e9  # one example: some batches hold it, others do not
    bad = fgn.Client("bad", fgn.regression(2, loss=spoiled_later), train=(x, y))
    run = train([*clients(), bad], rounds=12, batch_size=4)
    left_out = run.manifest["left_out"]
    assert left_out["bad"] > 0
    assert sum(left_out.values()) == left_out["bad"]
    assert all(torch.isfinite(toys.parameters(n)).all() for n in run.networks.values())


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"server_schedule": "cosine"}, "schedule"),
        ({"head_schedule": "cosine"}, "schedule"),
        ({"server_optimizer": "rmsprop"}, "host"),
        ({"executor": "loop"}, "one by one"),
    ],
)
def test_what_is_decided_on_the_host_is_not_captured(
    how: dict[str, Any], why: str, replays: list[int]
) -> None:
    federation = toys.federation(toys.network(), clients(), **{"executor": "auto", **how})
    reason = federation.graphs.why_not()
    assert reason is not None
    assert why in reason
    assert federation.rounds_per_call == 1
    assert not replays[0]


def test_a_round_that_cannot_be_captured_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(round_once: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graph, "DEVICES", {"cpu"})
    with caplog.at_level("INFO", logger="fedgradnorm"):
        monkeypatch.setattr(graph, "_captured", refuse)
        refused = train()
    assert "cannot be captured: operation not permitted" in caplog.text
    monkeypatch.setattr(graph, "DEVICES", set())
    assert toys.same(everything(refused), everything(train()))


@pytest.mark.parametrize(("first", "rounds"), [(0, 1), (3, 7), (100, 2)])
def test_batches_drawn_on_the_device_are_those_of_the_host(first: int, rounds: int) -> None:
    network = toys.seeded(lambda: nn.Sequential(nn.Linear(toys.FEATURES, 5), nn.Tanh()))
    federation = toys.federation(network, clients(), executor="vmap", shared_steps=3)
    engine = federation.engine
    plan = engine.plan(federation.names)
    drawn = DeviceBatches(engine.examples, plan).draw(first, rounds)
    for k in range(rounds):
        rows = engine.examples.batches.of_round(first + k)
        wanted = [
            torch.from_numpy(rows[name]).flatten() for group in plan.groups for name in group.names
        ]
        assert torch.equal(drawn[k], torch.cat(wanted))
