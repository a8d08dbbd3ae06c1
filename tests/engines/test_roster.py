"""Many registered clients of which few participate: rows on demand, and the same training."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import fedgradnorm as fgn
import toys
from fedgradnorm._engines import Engine
from fedgradnorm._federation.heads import HeadsOnDemand, make_head
from fedgradnorm._round.settings import Settings
from fedgradnorm._training.trainer import Trainer
from fedgradnorm.weighting import GradNorm, Weighting
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


MANY = "many"
"""Executor "auto", for as many registered clients that rows and examples are made on demand."""


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve clients are many, in trainings that ask for it."""
    monkeypatch.setattr(Settings, "few_take_part", lambda self, _: self.executor == "auto")


def trainer(
    executor: str,
    weighting: Weighting | None = None,
    device: str = "cpu",
    clients: list[fgn.Client] | None = None,
    **settings: object,
) -> Trainer:
    given = {"rounds": 9, "batch_size": 6, "participation": 0.4, "lr": 0.05, **settings}
    name = "auto" if executor == MANY else executor
    made = Settings(executor=name, **given)  # type: ignore[arg-type]
    weighting = weighting or GradNorm()
    clients = many_clients() if clients is None else clients
    found = Trainer(small_network(), clients, weighting, made, torch.device(device))
    assert isinstance(found.federation.engine, Engine)
    assert (found.journal is not None) == (executor == MANY)
    return found


def trained(executor: str, rounds: int = 9, **settings: object) -> Trainer:
    found = trainer(executor, **settings)
    for _ in range(rounds):
        found.advance()
    return found


def assert_same(one: Trainer, other: Trainer, tolerance: float = 1e-10) -> None:
    first, second = (t.federation for t in (one, other))
    torch.testing.assert_close(first.server.shared, second.server.shared, rtol=0, atol=tolerance)
    weights = (f.server.weighting.weight for f in (first, second))
    torch.testing.assert_close(*weights, rtol=0, atol=tolerance)
    for name, head in toys.heads(first.engine).items():
        twin = toys.heads(second.engine)[name].state_dict()
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
        {"head_schedule": {"name": "StepLR", "step_size": 2}, "head_init": "targets"},
        {"batch_size": None, "participation": [["c0", "c5"], ["c1", "c2", "c3", "c7"]]},
        {"final_head_steps": 2, "aggregate": "by_size", "step_with": "previous"},
        {"shared_steps": 2},
        {"shared_steps": 2, "sends": "model", "phases": "joint"},
        {"head_optimizer": "nadam"},
        {"personalize": {"steps": 2}},
        {"personalize": {"steps": 2, "what": "network"}},
        {"clip": 0.1, "proximal": 0.1},
        {"shared": "!0"},
    ],
    ids=lambda settings: "-".join(settings) or "plain",
)
def test_many_train_as_the_loop_does(settings: dict[str, object]) -> None:
    one, other = (trained(executor, **settings) for executor in (MANY, "loop"))
    for each in (one, other):
        each.federation.finish(each.round)
        each.federation.personalize(each.round)
    assert_same(one, other)


OWN_NAMES = ("Static", "static", "ByTask", "by-task")
"""Weightings made for the clients of the laws."""


@pytest.mark.parametrize("name", [n for n in WEIGHTINGS if not n.startswith(OWN_NAMES)])
def test_every_weighting_gives_the_same(name: str) -> None:
    one, other = (trained(e, 5, weighting=WEIGHTINGS[name]()) for e in (MANY, "loop"))
    assert_same(one, other, 1e-10)


def test_first_heads_are_those_of_any_engine() -> None:
    network, clients = small_network(), many_clients(8)
    for start in ("random", "targets", "auto"):
        heads = HeadsOnDemand(network, clients, Settings(seed=7, head_init=start))
        for client in clients:
            made = make_head(network, client, 7, at_targets=start != "random")
            assert torch.equal(toys.parameters(made), heads.rows([client])[0])
        pair = [client for client in clients if client.task.outputs == 2]
        assert torch.equal(heads.rows(pair), torch.cat([heads.rows([one]) for one in pair]))


def test_a_round_costs_nothing_for_who_is_not_there() -> None:
    found = trained(MANY, 2)
    engine = found.federation.engine
    held = {name for part in engine.table.parts for name in part.names}
    active = {name for k in range(2) for name in found._active(k)}
    tried = set(engine.names[:2])  # to find out whether vmap can run them
    assert active <= held <= active | tried
    assert held < set(engine.clients)
    assert set(engine.table.known()) == active


def test_an_export_of_all_heads_gives_nobody_a_row() -> None:
    found, plain = trained(MANY, 2), trained("loop", 2)
    before = [len(part.names) for part in found.federation.engine.table.parts]
    tables = found.federation.head_tables()
    assert [len(part.names) for part in found.federation.engine.table.parts] == before
    heads = toys.heads(plain.federation.engine)
    seen = []
    for names, weights, biases in tables:
        for name, weight, bias in zip(names, weights, biases, strict=True):
            torch.testing.assert_close(weight, heads[name].weight.data, rtol=0, atol=1e-10)
            torch.testing.assert_close(bias, heads[name].bias.data, rtol=0, atol=1e-10)
            seen.append(name)
    assert sorted(seen) == sorted(found.clients)


def test_a_round_reports_of_those_alone_that_take_part() -> None:
    federation = trainer(MANY).federation
    reports, weights = federation.round(0, ["c3", "c4", "c9"])
    assert reports.rows is not None
    assert reports.rows.tolist() == [3, 4, 9]
    assert len(reports.loss) == len(reports.active) == 3
    assert len(weights) == 12


def test_a_client_that_is_not_finite_is_found_and_left_as_it_was() -> None:
    def spoilt(executor: str) -> Trainer:
        clients = many_clients()
        clients[1].train[0][0, 0] = 1e200
        found = trainer(executor, clients=clients)
        for _ in range(6):
            found.advance()
        return found

    one, other = spoilt(MANY), spoilt("loop")
    assert one.monitor.counts() == other.monitor.counts() != {}
    assert_same(one, other)


def test_states_go_from_one_engine_to_the_other_in_the_middle() -> None:
    one = trained(MANY, 4)
    state = one.state_dict()
    for executor in (MANY, "loop", "joint"):
        going_on = trainer(executor)
        going_on.load_state_dict(copy.deepcopy(state))
        going_on.history.rows = list(one.history.rows)
        for _ in range(5):
            going_on.advance()
        assert_same(going_on, trained("loop"))


@pytest.mark.parametrize(
    ("clients", "share", "many"), [(1000, 0.1, True), (100, 0.1, False), (1000, 0.9, False)]
)
def test_rows_are_made_on_demand_where_many_are_registered_and_few_take_part(
    clients: int, share: float, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    assert Settings(participation=share).few_take_part(clients) is many


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("settings", [{}, {"head_steps": 3}, {"head_optimizer": "sgd"}])
def test_on_a_gpu_many_give_the_loops_numbers(settings: dict[str, object]) -> None:
    one, other = trained(MANY, device="cuda", **settings), trained("loop", **settings)
    shared = (t.federation.server.shared.cpu() for t in (one, other))
    torch.testing.assert_close(*shared, rtol=0, atol=1e-10)
    for a, b in zip(one.history.rows, other.history.rows, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-10)
        assert a["weight"] == pytest.approx(b["weight"], abs=1e-10)
