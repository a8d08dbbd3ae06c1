"""A private client in a federation: its terms stay at home, and nothing is spent twice."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")

import torch

import fedgradnorm as fgn
import flat
import toys
from engines.flower.direct import Together, answered
from fedgradnorm._flower.federation_file import read_client
from fedgradnorm._flower.wire.messages import Order, Refused
from fedgradnorm._privacy.noise import SeededNoise
from fedgradnorm._round.private import private_gradients
from fedgradnorm._runs.layout import LEDGER


def clients(**terms: Any) -> Callable[[], Sequence[fgn.Client]]:
    """The toys, the first of them private."""

    def make() -> Sequence[fgn.Client]:
        first, *others = toys.clients()
        given = {"epsilon": 5.0, "delta": 1e-5, "noise_multiplier": 3.0, **terms}
        return [replace(first, privacy=fgn.Privacy(**given)), *others]

    return make


def together(folder: Path, **terms: Any) -> Together:
    return Together(folder, fgn.GradNorm(rule="direct"), clients=clients(**terms))


def order_of(federation: Together, name: str) -> Order:
    return federation.server._order("train", name)


def spent(federation: Together, name: str) -> list[int]:
    lines = (federation.folder / name / LEDGER).read_text().splitlines()
    return [json.loads(line)["round"] for line in lines[1:]]


def test_a_federation_with_the_same_noise_is_the_run_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deployment refuses seeded noise, so the test lets the fresh noise be the seeded one."""
    monkeypatch.setattr(private_gradients, "noise_from", lambda _, seed: SeededNoise(seed))
    federation = together(tmp_path, norm="noised")
    shared = federation.run()
    own = clients(norm="noised")()
    settings = {**vars(federation.settings), "executor": "loop"}
    run = flat.train(toys.network(), own, weighting=fgn.GradNorm(rule="direct"), **settings)
    assert run.network is not None
    assert torch.equal(shared, torch.cat([p.detach().flatten() for p in run.network.parameters()]))
    name = own[0].name
    there = federation.results()[name].history
    here = run.history[(run.history["client"] == name) & (run.history["split"] == "batch")]
    told = there[there["split"] == "batch"]
    assert told["epsilon"].tolist() == pytest.approx(here["epsilon"].tolist())
    assert told["round"].tolist() == list(range(1, 7))


def test_a_deployed_client_refuses_seeded_noise(tmp_path: Path) -> None:
    with pytest.raises(fgn.ConfigError, match="a deployed client must not use it"):
        together(tmp_path, noise="seeded")


def test_the_same_order_gets_the_stored_answer_and_another_one_is_charged(tmp_path: Path) -> None:
    federation = together(tmp_path)
    name = federation.names[0]
    federation.run(2)
    order = order_of(federation, name)
    first = answered(federation.exchange.participants[name], order)
    federation.restart(name)
    again = answered(federation.exchange.participants[name], order)
    assert first.update is not None
    assert again.update is not None
    assert torch.equal(first.update, again.update)
    assert first.scalars == again.scalars
    assert spent(federation, name) == [0, 1, 2]
    other = replace(order, shared=order.shared + 1e-7)
    asked = answered(federation.exchange.participants[name], other)
    assert asked.update is not None
    assert float((asked.update - first.update).norm()) > 0.01  # fresh noise
    assert spent(federation, name) == [0, 1, 2, 2]
    ledger = tmp_path / name / LEDGER
    assert stat.S_IMODE(ledger.stat().st_mode) == 0o600
    assert not (tmp_path / federation.names[1] / LEDGER).exists()


def test_a_client_whose_budget_is_spent_is_left_behind_and_still_gets_the_network(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation = together(tmp_path, rounds=2, noise_multiplier=None)
    name = federation.names[0]
    federation.run()
    assert federation.server.round == 6
    assert spent(federation, name) == [0, 1]
    table = federation.server.history.rows
    took = {row["round"] for row in table if row["client"] == name and row["active"]}
    assert took == {1, 2}
    result = federation.results()[name]
    epsilon = result.history["epsilon"].dropna().tolist()
    assert len(epsilon) == 2
    assert 4.9 < epsilon[-1] <= 5.0
    assert any("is spent, and another round" in r.message for r in caplog.records)
    said = [r.message for r in caplog.records if "left out" in r.message]
    assert said
    assert not any("epsilon" in line for line in said)  # as the server may read it
    federation.server.run, federation.server.round = "another", 0  # which begins no new budget
    federation.server.states[name] = 0
    with pytest.raises(Refused, match="budget is spent"):
        answered(federation.exchange.participants[name], order_of(federation, name))


def test_nothing_of_the_terms_leaves_the_client(tmp_path: Path) -> None:
    """Messages have the records and names that those of any other client have."""
    sent = []
    for folder, terms in (("a", {}), ("b", {"clip": 0.25})):
        federation = together(tmp_path / folder, **terms)
        federation.run(1)
        names = {name: _shape(content) for name, content in federation.exchange.sent}
        sent.append(names)
    own, other = federation.names[:2]
    assert sent[0] == sent[1]
    assert sent[0][own] == sent[0][other]


def _shape(content: Any) -> list[str]:
    return sorted(content)


def test_a_private_client_refuses_to_tune_without_noise(tmp_path: Path) -> None:
    with pytest.raises(fgn.ConfigError, match="personalize"):
        Together(tmp_path, clients=clients(), personalize={"steps": 3})


CLIENT = """
name = "left"
server = "localhost:1"
config = "run.toml"
[data]
source = "files"
[[data.clients]]
name = "left"
task = "regression"
train = "rows.npz"
[privacy]
epsilon = 2.0
delta = 1e-6
ledger = "spent"
"""
RUN = """
rounds = 2

[data]
source = "files"
[[data.clients]]
name = "left"
task = "regression"
train = "rows.npz"
[network]
name = "mlp"
widths = [4]

"""


def test_a_clients_own_file_says_what_it_promises(tmp_path: Path) -> None:
    import numpy as np

    from fedgradnorm._flower.agreement import agree
    from fedgradnorm.experiments import load_config

    np.savez(tmp_path / "rows.npz", x=np.ones((4, 3)), y=np.ones(4))
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "client.toml").write_text(CLIENT)
    given = read_client(tmp_path / "client.toml")
    config = given.run_config()
    client = given.load(config)
    assert client.privacy == fgn.Privacy(2.0, 1e-6, ledger=str(tmp_path / "spent"))
    plain = load_config(tmp_path / "run.toml")
    assert agree(config).digest == agree(plain).digest  # the server need not know
    assert agree(plain).sent == agree(config).sent
