"""Clients and server together: what a run is, who is left out, and what is left alone."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedgradnorm as fgn
import flat
import toys
from fedgradnorm._round.batches import Batches
from fedgradnorm.tasks._measures import squared_error
from fedgradnorm.weighting import Equal, GradNorm
from fedgradnorm.weighting._products import MGDA

EVERYBODY = list(toys.NAMES)


def poisoned(output: Tensor, target: Tensor) -> Tensor:
    """A squared error that is not a number for rows whose target is huge."""
    return squared_error(output, target) + torch.where(target[:, 0] > 1e6, torch.nan, 0.0)


def failing_client(name: str = "bad", rows: int = 1, size: int = 24) -> fgn.Client:
    """A regression with some rows that spoil every batch they are in."""
    x, y = toys.rows("place", size)
    y[:rows] = 1e9
    return fgn.Client(name, fgn.regression(2, loss=poisoned), train=(x, y))


class TestFedRep:
    """Weights held at 1 are FedRep in gradient form, written out here from the definitions."""

    @pytest.mark.parametrize("optimizer", ["adam", "sgd"])
    def test_equal_weights_are_fedrep(self, optimizer: str) -> None:
        federation = toys.federation(
            toys.network(),
            toys.clients(),
            Equal(),
            head_optimizer=optimizer,
            server_optimizer=optimizer,
            head_steps=2,
        )
        heads = toys.heads(federation.engine)
        for round_number in range(6):
            federation.round(round_number, EVERYBODY)
        network = self.fedrep(heads, optimizer, rounds=6)
        torch.testing.assert_close(
            federation.server.shared, toys.parameters(network), rtol=0, atol=1e-12
        )
        for name, head in heads.items():
            ours = toys.parameters(toys.head(federation, name))
            torch.testing.assert_close(ours, toys.parameters(head), rtol=0, atol=1e-12)

    def fedrep(self, heads: dict[str, nn.Module], optimizer: str, rounds: int) -> nn.Module:
        make = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optimizer]
        network, clients = toys.network(), toys.clients()
        server = make(network.parameters(), lr=0.05)
        personal = {name: make(head.parameters(), lr=0.05) for name, head in heads.items()}
        batches = Batches({c.name: c.size for c in clients}, 8, seed=0)
        for round_number in range(rounds):
            total = [torch.zeros_like(p) for p in network.parameters()]
            for client in clients:
                x, y = client.train
                head = heads[client.name]
                for step in range(2):
                    rows = torch.from_numpy(batches.rows(client.name, 2 * round_number + step))
                    personal[client.name].zero_grad()
                    client.task.loss(head(network(x[rows]).detach()), y[rows]).backward()
                    personal[client.name].step()
                rows = torch.from_numpy(batches.rows(client.name, 2 * round_number))
                loss = client.task.loss(head(network(x[rows])), y[rows])
                for part, g in zip(
                    total, torch.autograd.grad(loss, list(network.parameters())), strict=True
                ):
                    part += g / len(clients)
            for parameter, g in zip(network.parameters(), total, strict=True):
                parameter.grad = g
            server.step()
        return network

    def test_gradnorm_without_a_step_is_fedrep(self) -> None:
        runs = [
            flat.train(toys.network(), toys.clients(), weighting=weighting, rounds=4, batch_size=8)
            for weighting in (Equal(), GradNorm(lr=0))
        ]
        left, right = (toys.parameters(run.network) for run in runs)
        torch.testing.assert_close(left, right, rtol=0, atol=1e-14)


def test_one_client_weighs_one_whatever_gamma() -> None:
    runs = [
        fgn.train(toys.network(), [toys.client()], weighting=GradNorm(gamma, rule), rounds=4)
        for gamma in (0.0, 0.9, 3.0)
        for rule in ("absolute", "direct")
    ]
    for run in runs:
        assert run.weights == {"corner": pytest.approx(1.0)}
        torch.testing.assert_close(toys.parameters(run.network), toys.parameters(runs[0].network))


def test_the_order_of_clients_does_not_matter() -> None:
    runs = [
        flat.train(toys.network(), order, rounds=5, batch_size=8)
        for order in (toys.clients(), toys.clients()[::-1])
    ]
    left, right = (toys.parameters(run.network) for run in runs)
    torch.testing.assert_close(left, right, rtol=0, atol=1e-12)
    assert runs[0].weights == pytest.approx(runs[1].weights)


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_the_direct_rule_trains_the_same_whatever_the_scale_of_a_loss(factor: float) -> None:
    def losses(scale: float) -> dict[str, float]:
        clients = [toys.client("corner"), toys.client("side"), toys.client("place")]
        clients[2] = toys.client("place", loss_scale=scale)
        weighting = GradNorm(rule="direct")
        run = fgn.train(toys.network(), clients, weighting=weighting, rounds=30, lr=0.01)
        values = run.summary().last_loss.to_dict()
        return {**values, "place": values["place"] / scale}

    assert losses(factor) == pytest.approx(losses(1.0), rel=1e-3)


class TestKeyedByTask:
    @staticmethod
    def client(name: str, size: int, kind: str, task_name: str) -> fgn.Client:
        task = toys.task(kind, name=task_name)
        return fgn.Client(name, task, train=toys.rows(kind, size))

    def clients(self) -> list[fgn.Client]:
        return [
            self.client("near", 30, "corner", "corner"),
            self.client("place", 24, "place", "place"),
            self.client("far", 20, "corner", "corner"),
        ]

    def test_clients_of_one_task_share_its_weight(self) -> None:
        run = flat.train(toys.network(), self.clients(), weight_per="task", rounds=6, batch_size=8)
        assert run.weights["near"] == run.weights["far"] != 1
        assert sum(run.weights.values()) == pytest.approx(3)

    def test_with_one_client_a_task_it_is_the_weight_of_the_client(self) -> None:
        how = {"rounds": 6, "batch_size": 8}  # MGDA by task is FSMGDA, which may have such tasks
        runs = [
            flat.train(toys.network(), toys.clients(), weighting=MGDA(), weight_per=per, **how)
            for per in ("client", "task")
        ]
        assert runs[0].weights == pytest.approx(runs[1].weights, rel=1e-12)
        with pytest.raises(fgn.ConfigError, match="no two of the 3 clients share a task"):
            flat.train(toys.network(), toys.clients(), weight_per="task", **how)

    def test_a_held_task_is_reported_for_its_clients(self) -> None:
        dead = torch.zeros(24, toys.FEATURES)
        clients = [
            *self.clients(),
            fgn.Client("dead", toys.task("side"), train=(dead, torch.arange(24) % 2)),
        ]
        network = nn.Sequential(nn.Linear(toys.FEATURES, 4, bias=False)).double()
        run = flat.train(network, clients, weight_per="task", norm_layer="0.weight", rounds=2)
        batch = run.history[run.history.split == "batch"]
        assert set(batch[batch.weight_frozen == 1].client) == {"dead"}


class TestPartialParticipation:
    def test_everything_of_an_absent_client_stays(self) -> None:
        federation = toys.federation(toys.noisy_network(), toys.clients(), GradNorm())
        federation.round(0, EVERYBODY)
        before, row = federation.state_dict(), toys.row(federation, "side")
        said, weights = federation.round(1, ["corner", "place"])
        after = federation.state_dict()
        assert said.active.tolist() == [True, True]
        assert toys.same(toys.row(federation, "side"), row)
        kept = [state["server"]["weighting"]["rows"] for state in (before, after)]
        place = federation.names.index("side")
        for key in kept[0].keys() - {"weight_frozen"}:
            assert kept[0][key][place] == kept[1][key][place]
        assert float(weights[0] + weights[2]) == pytest.approx(2)

    def test_a_client_that_never_took_part_has_no_first_loss(self) -> None:
        federation = toys.federation(toys.network(), toys.clients(), participation=["side"])
        federation.round(0, ["side"])
        first = {name: toys.first_loss(federation, name) for name in federation.names}
        assert first["side"] > 0
        assert first["corner"] is first["place"] is None

    def test_the_table_counts_only_those_who_took_part(self) -> None:
        plan = [["corner", "side"], ["corner"]]
        run = flat.train(toys.network(), toys.clients(), participation=plan, rounds=4, batch_size=8)
        batch = run.history[run.history.split == "batch"]
        assert batch.client.value_counts().to_dict() == {"corner": 4, "side": 2}
        assert batch[batch.client == "side"].samples.tolist() == [8, 16]
        assert batch[batch.client == "corner"].bytes.diff().dropna().nunique() == 1


class TestFailingClients:
    def test_it_is_left_out_rolled_back_and_named(self) -> None:
        clients = [*toys.clients(), failing_client(rows=24)]
        federation = toys.federation(toys.noisy_network(torch.float64), clients, GradNorm())
        without = toys.federation(toys.noisy_network(torch.float64), clients, GradNorm())
        before = toys.row(federation, "bad")
        said, weights = federation.round(0, [*EVERYBODY, "bad"])
        _, expected = without.round(0, EVERYBODY)
        assert list(said.failed) == ["bad"]
        assert said.active.tolist() == [True, True, True, False]
        assert toys.same(toys.row(federation, "bad"), before)
        assert torch.equal(weights, expected)
        assert torch.equal(federation.server.shared, without.server.shared)

    def test_it_is_named_in_the_log_and_counted_and_comes_back(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        clients = [toys.client("corner"), failing_client(rows=1, size=16)]
        with caplog.at_level(logging.WARNING, "fedgradnorm"):
            run = flat.train(
                toys.network(), clients, rounds=8, batch_size=4, first_loss="first_round"
            )
        bad = run.history[(run.history.client == "bad") & (run.history.split == "batch")]
        assert bad.active.tolist().count(0) == 2  # two passes, one spoilt batch in each
        assert bad[bad.active == 0].loss.isna().all()
        assert bad.samples.iloc[-1] == 6 * 4
        assert torch.isfinite(toys.parameters(run.network)).all()
        assert torch.isfinite(toys.parameters(run.heads["bad"])).all()
        named = [r.getMessage() for r in caplog.records if "'bad' left out" in r.getMessage()]
        assert len(named) == 1
        assert run.manifest["left_out"] == {"corner": 0, "bad": 2}

    def test_a_failed_round_costs_only_that_round(self) -> None:
        """Rounds before a failure are those of a run in which the client never failed."""
        clients = [toys.client("corner"), failing_client(rows=1, size=16)]
        run = flat.train(toys.network(), clients, rounds=4, batch_size=4, first_loss="first_round")
        batch = run.history[run.history.split == "batch"]
        assert batch[batch.client == "corner"].active.tolist() == [1] * 4
        active = batch.groupby("round").active.sum()
        total = batch[batch.active == 1].groupby("round").weight.sum()
        assert total.to_dict() == pytest.approx(active.to_dict())

    def test_when_all_fail_the_run_stops_with_a_checkpoint(self, tmp_path: Path) -> None:
        def go(**options: Any) -> fgn.Run:
            clients = [failing_client("one", rows=24), failing_client("two", rows=24)]
            return flat.train(toys.network(), clients, rounds=3, folder=tmp_path / "run", **options)

        with pytest.raises(fgn.TrainingError, match=r"round 1: .* \(one, two\); lower"):
            go()
        assert (tmp_path / "run" / "checkpoint.safetensors").exists()
        metrics = (tmp_path / "run" / "metrics.csv").read_bytes()
        with pytest.raises(fgn.TrainingError, match="round 1"):
            go(resume=True)
        assert (tmp_path / "run" / "metrics.csv").read_bytes() == metrics

    def test_alone_a_failing_client_does_not_stop_the_others(self) -> None:
        clients = [toys.client("corner"), failing_client(rows=24)]
        run = flat.train(toys.network(), clients, rounds=2, share="none")
        assert run.history[run.history.split == "batch"].active.tolist() == [1, 0, 1, 0]


class TestNothingIsChanged:
    def test_train_leaves_network_heads_weighting_and_data_alone(self) -> None:
        network, head = toys.noisy_network(), nn.Linear(5, 3)
        network[4].weight.requires_grad_(requires_grad=False)
        client = fgn.Client("corner", toys.task("corner"), toys.rows("corner", 24), head=head)
        weighting = GradNorm()
        before = copy.deepcopy((network.state_dict(), head.state_dict(), client.train))
        fgn.train(network, [client, toys.client("side")], weighting=weighting, rounds=3)
        assert toys.same((network.state_dict(), head.state_dict(), client.train), before)
        assert network.training
        assert all(p.grad is None for p in [*network.parameters(), *head.parameters()])
        assert [p.requires_grad for p in network.parameters()].count(False) == 1
        assert weighting.clients == ()
        assert weighting.rows == {}

    def test_train_leaves_the_global_random_states_alone(self) -> None:
        torch_state, numpy_state = torch.random.get_rng_state(), np.random.get_state()  # noqa: NPY002
        run = flat.train(toys.noisy_network(), toys.clients(), rounds=3, participation=0.5)
        run.predict("side", torch.ones(2, toys.FEATURES))
        assert torch.equal(torch.random.get_rng_state(), torch_state)
        assert toys.same(list(np.random.get_state()[1]), list(numpy_state[1]))  # noqa: NPY002

    def test_the_global_random_state_has_no_say(self) -> None:
        runs = []
        for seed in (0, 1):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                runs.append(fgn.train(toys.noisy_network(), toys.clients(), rounds=3))
        assert torch.equal(*(toys.parameters(run.network) for run in runs))
        assert runs[0].table.text() == runs[1].table.text()

    def test_frozen_layers_stay_as_they_were(self) -> None:
        network = toys.network()
        network[0].requires_grad_(requires_grad=False)
        run = fgn.train(network, toys.clients(), rounds=3, lr=0.1)
        assert torch.equal(run.network[0].weight, network[0].weight)
        assert not torch.equal(run.network[2].weight, network[2].weight)


class TestSharing:
    def test_nothing_shared_is_every_client_by_itself(self) -> None:
        together = flat.train(toys.network(), toys.clients(), share="none", rounds=4, batch_size=8)
        for client in toys.clients():
            alone = flat.train(toys.network(), [client], rounds=4, batch_size=8)
            ours = toys.parameters(together.networks[client.name])
            theirs = toys.parameters(alone.network)
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)  # executors differ
        assert set(together.history.bytes) == {0}
        with pytest.raises(fgn.ConfigError, match="nothing was shared"):
            _ = together.network

    def test_no_clients_or_two_of_one_name_are_refused(self) -> None:
        with pytest.raises(fgn.DataError, match="no clients"):
            fgn.train(toys.network(), [])
        with pytest.raises(fgn.DataError, match="two clients are named 'side'"):
            fgn.train(toys.network(), [toys.client("side"), toys.client("side")])

    def test_static_weights_must_name_every_client(self) -> None:
        weighting = fgn.Static({"corner": 1.0, "side": 2.0})
        with pytest.raises(fgn.ConfigError, match="no static weight for client 'place'"):
            fgn.train(toys.network(), toys.clients(), weighting=weighting, rounds=1)

    def test_a_device_that_is_not_there_is_named(self) -> None:
        with pytest.raises(fgn.ConfigError, match="device 'tpu' cannot be used here"):
            flat.train(toys.network(), toys.clients(), rounds=1, device="tpu")

    def test_every_row_of_the_table_carries_round_epoch_samples_and_bytes(self) -> None:
        run = flat.train(toys.network(), toys.clients(), epochs=2, batch_size=8)
        history = run.history
        assert not history[["round", "epoch", "samples", "bytes", "weight"]].isna().any(axis=None)
        assert history["round"].max() == 12
        assert history.epoch.max() == pytest.approx(2)
        per_round = 2 * run.network[0].weight.element_size() * toys.parameters(run.network).numel()
        assert history.bytes.max() == 12 * (per_round + 16)  # two scalars besides the update
