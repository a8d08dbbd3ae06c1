"""Many registered clients of which few take part: the same training as the loop's."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedgradnorm as fgn
from fedgradnorm._engines import RosterEngine
from fedgradnorm._engines.roster.adam_rows import AdamRows, Rows, steps_in_rows
from fedgradnorm._errors import ConfigError
from fedgradnorm._federation.making_heads import HeadsOnDemand, make_head
from fedgradnorm._optimizers import build, resolve
from fedgradnorm._round.settings import Settings
from fedgradnorm._training.trainer import Trainer
from fedgradnorm.weighting import GradNorm, Needs, Weighting
from weighting.laws import WEIGHTINGS

DOUBLE = torch.float64


def many_clients(count: int = 12, seed: int = 0) -> list[fgn.Client]:
    """Classes, numbers, yes or no with weights, and some labels missing; of several sizes."""
    draw = np.random.default_rng(seed)
    clients = []
    for i in range(count):
        rows = (9, 14, 20)[i % 3]
        x = draw.normal(size=(rows + 4, 5))
        y = x @ draw.normal(size=(5, 2))
        task, target = (
            (fgn.classification(3), draw.integers(0, 3, rows + 4)),
            (fgn.regression(2, loss_scale=3.0), y),
            (fgn.binary(pos_weight="balanced"), (y[:, 0] > 0).astype(float)),
            (fgn.regression(1), np.where(np.arange(rows + 4) % 5 == 1, np.nan, y[:, 0])[:, None]),
        )[i % 4]
        split = slice(0, rows), slice(rows, None)
        (train, test) = ((x[part], target[part]) for part in split)
        clients.append(fgn.Client(f"c{i}", task, train=train, test=test))
    return clients


def small_network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU()).to(DOUBLE)


def trainer(
    engine: str, weighting: Weighting | None = None, device: str = "cpu", **settings: object
) -> Trainer:
    given = {"rounds": 9, "batch_size": 6, "participation": 0.4, "lr": 0.05, **settings}
    clients = many_clients()
    made = Settings(engine=engine, **given)  # type: ignore[arg-type]
    return Trainer(small_network(), clients, weighting or GradNorm(), made, torch.device(device))


def trained(engine: str, rounds: int = 9, **settings: object) -> Trainer:
    found = trainer(engine, **settings)
    for _ in range(rounds):
        found.advance()
    return found


def assert_same(one: Trainer, other: Trainer, tolerance: float = 1e-10) -> None:
    first, second = (t.federations[0] for t in (one, other))
    torch.testing.assert_close(
        first.server.shared.data, second.server.shared.data, rtol=0, atol=tolerance
    )
    weights = (f.server.weighting.weight for f in (first, second))
    torch.testing.assert_close(*weights, rtol=0, atol=tolerance)
    for name, head in first.engine.heads().items():
        twin = second.engine.heads()[name].state_dict()
        torch.testing.assert_close(head.state_dict(), twin, rtol=0, atol=tolerance)
    for a, b in zip(one.recording.measured(9, 1.0), other.recording.measured(9, 1.0), strict=True):
        assert a.keys() == b.keys()
        for key, value in a.items():
            assert value == b[key] or value == pytest.approx(b[key], rel=tolerance, abs=tolerance)
    for row, twin in zip(one.history.rows, other.history.rows, strict=True):
        assert row.keys() == twin.keys()
        for key, value in row.items():
            assert value == twin[key] or value == pytest.approx(
                twin[key], rel=tolerance, abs=tolerance
            )


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"head_steps": 3},
        {"head_steps": 0},
        {"first_loss": "first_round", "head_optimizer": "sgd"},
        {"head_optimizer": {"name": "sgd", "momentum": 0.9}, "head_steps": 2},
        {"head_optimizer": {"name": "adagrad", "initial_accumulator_value": 0.1}},
        {"head_optimizer": {"name": "rmsprop", "momentum": 0.5, "centered": True}},
        {"head_optimizer": {"name": "adamw", "amsgrad": True}, "head_clip": 0.1},
        {"head_schedule": {"name": "StepLR", "step_size": 2}, "head_start": "targets"},
        {"batch_size": None, "participation": [["c0", "c5"], ["c1", "c2", "c3", "c7"]]},
        {"final_head_steps": 2, "aggregate": "by_size", "order": "old"},
    ],
    ids=lambda settings: "-".join(settings) or "plain",
)
def test_the_roster_trains_as_the_loop_does(settings: dict[str, object]) -> None:
    one, other = (trained(engine, **settings) for engine in ("roster", "loop"))
    assert isinstance(one.federations[0].engine, RosterEngine)
    for each in (one, other):
        each.federations[0].finish(each.round)
    assert_same(one, other)


GRADIENTS = Needs.GRAM | Needs.GRADIENT
OWN_NAMES = ("static", "by-task")
"""Weightings made for the clients of the laws."""


@pytest.mark.parametrize("name", [n for n in WEIGHTINGS if not n.startswith(OWN_NAMES)])
def test_every_weighting_that_can_be_told_by_the_roster_gives_the_same(name: str) -> None:
    if WEIGHTINGS[name]().needs & GRADIENTS:
        with pytest.raises(ConfigError, match="gradient"):
            trainer("roster", WEIGHTINGS[name]())
        return
    one, other = (trained(e, 5, weighting=WEIGHTINGS[name]()) for e in ("roster", "loop"))
    assert_same(one, other)


def test_first_heads_are_those_of_any_engine() -> None:
    network, clients = small_network(), many_clients(8)
    for start in ("random", "targets", "auto"):
        heads = HeadsOnDemand(network, clients, Settings(seed=7, head_start=start))
        for client in clients:
            weight, bias = heads.numbers([client])
            made = make_head(network, client, 7, at_targets=start != "random")
            assert torch.equal(made.weight, weight[0])
            assert torch.equal(made.bias, bias[0])
        pair = [client for client in clients if client.task.outputs == 2]
        _, biases = heads.numbers(pair)
        assert torch.equal(biases, torch.cat([heads.numbers([client])[1] for client in pair]))


@pytest.mark.parametrize("more", [{}, {"weight_decay": 0.1, "eps": 1e-3}, {"maximize": True}])
def test_rows_step_as_torchs_adam_does_to_the_bit(more: dict[str, Any]) -> None:
    torch.manual_seed(0)
    x, gradient = torch.randn(5, 3, 7), torch.randn(5, 3, 7)
    plain = [nn.Parameter(row.clone()) for row in x]
    optimizer = torch.optim.Adam(plain, lr=0.01, fused=True, **more)
    moments = {"exp_avg": torch.zeros_like(x), "exp_avg_sq": torch.zeros_like(x)}
    rows = AdamRows([Rows(x, gradient, {**moments, "step": torch.zeros(5)})])
    assert steps_in_rows(optimizer)
    assert steps_in_rows(build([nn.Parameter(torch.zeros(2))], resolve("adam", 0.1)))  # a run's
    for first in (5, 3, 4, 5):  # who steps in each round
        gradient.normal_()
        for k, parameter in enumerate(plain):
            parameter.grad = gradient[k].clone() if k < first else None
        optimizer.step()
        rows.step(first, optimizer.param_groups[0])
        assert all(torch.equal(one, two) for one, two in zip(x, plain, strict=True))


def test_more_than_plain_adam_is_left_to_torch() -> None:
    for kind, more in ((torch.optim.Adam, {"amsgrad": True}), (torch.optim.AdamW, {})):
        assert not steps_in_rows(kind([nn.Parameter(torch.zeros(2))], fused=True, **more))


def test_a_round_costs_nothing_for_who_is_not_there() -> None:
    found = trained("roster", 2)
    engine = found.federations[0].engine
    held = {name for kind in engine.registry.kinds for name in kind.shelf.names}
    assert held == {name for k in range(2) for name in found._active(k)}
    assert held < set(engine.clients)


def test_a_round_reports_of_those_alone_that_take_part() -> None:
    federation = trainer("roster").federations[0]
    reports, weights = federation.round(0, ["c3", "c4", "c9"])
    assert reports.rows is not None
    assert reports.rows.tolist() == [3, 4, 9]
    assert len(reports.loss) == len(reports.active) == 3
    assert len(weights) == 12


def test_a_client_that_is_not_finite_is_found_and_left_as_it_was() -> None:
    def spoilt(engine: str) -> Trainer:
        found = trainer(engine, lr=0.05)
        x, _ = found.clients["c1"].train
        x[0, 0] = 1e200
        for _ in range(6):
            found.advance()
        return found

    one, other = spoilt("roster"), spoilt("loop")
    assert one.watch.counts() == other.watch.counts() != {}
    assert_same(one, other)


def test_states_go_from_one_engine_to_the_other_in_the_middle() -> None:
    one = trained("roster", 4)
    state = one.state_dict()
    for engine in ("roster", "loop", "joint"):
        going_on = trainer(engine)
        going_on.load_state_dict(copy.deepcopy(state))
        going_on.history.rows = list(one.history.rows)
        for _ in range(5):
            going_on.advance()
        assert_same(going_on, trained("loop"))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"shared_steps": 2}, "shared_steps = 2"),
        ({"personalize": {"steps": 1}}, "personalize"),
        ({"head_optimizer": "nadam"}, "nadam"),
    ],
)
def test_what_the_roster_cannot_do_is_refused_by_its_reason(
    settings: dict[str, object], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        trainer("roster", **settings)


def test_auto_takes_the_roster_where_many_are_registered_and_few_take_part() -> None:
    settings = Settings(participation=0.1)
    assert settings.few_take_part(1000)
    assert not settings.few_take_part(100)
    assert not Settings(participation=0.9).few_take_part(1000)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("settings", [{}, {"head_steps": 3}, {"head_optimizer": "sgd"}])
def test_on_a_gpu_the_roster_gives_the_loops_numbers(settings: dict[str, object]) -> None:
    one, other = trained("roster", device="cuda", **settings), trained("loop", **settings)
    shared = (t.federations[0].server.shared.data.cpu() for t in (one, other))
    torch.testing.assert_close(*shared, rtol=0, atol=1e-10)
    for a, b in zip(one.history.rows, other.history.rows, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-10)
        assert a["weight"] == pytest.approx(b["weight"], abs=1e-10)
