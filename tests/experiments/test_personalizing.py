"""A client that comes when the run is over: what it tunes, what it keeps, and that it lasts."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedgradnorm as fgn
import flat
import toys
from fedgradnorm._federation.heads import first_head
from fedgradnorm._round.batches import Batches
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs.manifest import read_manifest
from fedgradnorm._runs.reader import read_run
from fedgradnorm.experiments._groups import group

X = np.random.default_rng(5).normal(size=(9, toys.FEATURES))
SGD = {"name": "sgd", "lr": 0.3, "momentum": 0.5}
HOW = {"rounds": 3, "batch_size": 8, "lr": 0.05, "device": "cpu", "weighting": fgn.Equal()}


def train(clients: list[fgn.Client] | None = None, network: nn.Module | None = None, **more: Any):
    network = toys.noisy_network() if network is None else network
    return flat.train(network, clients or toys.clients(), **{**HOW, **more})


def late(name: str = "late", kind: str = "side", *, validation: bool = True) -> fgn.Client:
    client = toys.client(name, 120, kind)
    return replace(client, validation=toys.rows(kind, 60)) if validation else client


def state(run: fgn.Run) -> dict[str, Any]:
    """All numbers of a run, and what it says of itself."""
    parts = {"shared": run.shared, **run.heads, **{f"own {n}": m for n, m in run.networks.items()}}
    tensors = {n: dict(m.state_dict()) for n, m in parts.items() if m is not None}
    buffers = {name: one.buffers for name, one in run.clients.items()}
    return copy.deepcopy(
        {**tensors, "buffers": buffers, "manifest": run.manifest, "rows": run.table.rows}
    )


@pytest.mark.parametrize("what", ["head", "network", ["4"]], ids=str)
def test_a_new_client_is_in_the_new_run_and_the_old_one_is_as_it_was(
    what: Any, tmp_path: Path
) -> None:
    run = train()
    before = state(run)
    more = run.personalize(late(), steps=30, lr=0.02, what=what)
    assert toys.same(before, state(run))
    assert list(more.clients) == [*toys.NAMES, "late"]
    assert more.shared is run.shared
    assert (more.clients["late"].network is None) == (what == "head")
    kept = more.manifest["personal"]["late"]
    assert kept["step"] > 0
    assert kept["after"] < kept["before"]
    for name in toys.NAMES:
        assert np.array_equal(more.predict(name, X), run.predict(name, X))
    loaded = fgn.load(more.save(tmp_path / "more"))
    for name in more.clients:
        one, two = (r.predict(name, X, outputs=True) for r in (more, loaded))
        assert np.array_equal(one, two)
    assert loaded.table.text() == more.table.text()
    assert loaded.manifest["personalized"]["late"] == {"steps": 30, "lr": 0.02, "what": what}
    assert loaded.summary().loc["late", "split"] == "test"


def test_what_is_recorded_is_what_predict_gives() -> None:
    client = late()
    more = train().personalize(client, steps=30, lr=0.02, what="network")
    x, y = client.validation
    loss = nn.functional.cross_entropy(more.predict("late", x, outputs=True), y)
    rows = {r["split"]: r for r in more.table.rows if r["client"] == "late"}
    assert rows["validation"]["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert rows["validation"]["loss"] == more.manifest["personal"]["late"]["after"]
    assert rows["untuned-validation"]["loss"] == more.manifest["personal"]["late"]["before"]


@pytest.mark.parametrize("what", ["head", "network"])
def test_tuning_by_hand(what: str) -> None:
    """Without validation rows: all steps from a fresh head, on the client's batches 0, 1, 2."""
    run, client = train(network=toys.network(), head_optimizer=SGD), late(validation=False)
    more = run.personalize(client, steps=3, lr=0.1, what=what)
    assert more.manifest["personal"]["late"] == {"step": 3}
    model = nn.Sequential(copy.deepcopy(run.network), first_head(run.network, client, Settings()))
    moved = model if what == "network" else model[1]
    optimizer = torch.optim.SGD(moved.parameters(), lr=0.1, momentum=0.5)
    batches = Batches({"late": client.size}, 8, 0, 1)
    x, y = client.train
    for step in range(3):
        rows = torch.from_numpy(batches.rows("late", step))
        optimizer.zero_grad()
        client.task.loss(model(x[rows].double()), y[rows]).backward()
        optimizer.step()
    torch.testing.assert_close(toys.parameters(more.heads["late"]), toys.parameters(model[1]))
    torch.testing.assert_close(toys.parameters(more.networks["late"]), toys.parameters(model[0]))


@pytest.mark.parametrize("how", [{}, {"share": "none"}, {"ditto": 0.1}], ids=str)
def test_a_client_of_the_run_goes_on_with_what_it_has(how: dict) -> None:
    """Head, statistics and own network; steps that its validation rows dislike are not taken."""
    run = train(**how)
    client = replace(toys.clients()[1], validation=toys.rows("side", 21))
    same = run.personalize(client, steps=2, lr=1e9, what="network")
    assert same.manifest["personal"]["side"]["step"] == 0
    assert list(same.clients) == list(run.clients)
    assert np.array_equal(
        same.predict("side", X, outputs=True), run.predict("side", X, outputs=True)
    )
    better = run.personalize(client, steps=30, lr=0.01)
    kept = better.manifest["personal"]["side"]
    assert kept["before"] == same.manifest["personal"]["side"]["before"]
    assert kept["after"] <= kept["before"]
    own, before = better.networks["side"], run.networks["side"]
    assert torch.equal(toys.parameters(own), toys.parameters(before))


def test_another_task_under_a_known_name_begins_afresh(tmp_path: Path) -> None:
    more = train().personalize(late("side", "place"), steps=20, lr=0.05)
    assert more.clients["side"].kind == "regression"
    loaded = fgn.load(more.save(tmp_path / "more"))
    assert loaded.predict("side", X).shape == (9, 2)
    assert read_manifest(tmp_path / "more")["clients"]["side"]["kind"] == "regression"


def test_a_new_client_begins_with_the_mean_of_all_statistics() -> None:
    run = train()
    more = run.personalize(late(), steps=1, what="head")
    for key, value in more.clients["late"].buffers.items():
        others = [run.clients[name].buffers[key] for name in toys.NAMES]
        expected = torch.stack(others).mean(0) if value.is_floating_point() else others[0]
        torch.testing.assert_close(value, expected)


def test_a_run_of_the_network_alone_will_do(tmp_path: Path) -> None:
    """As the server of a deployment has it: no client is in it, because heads stay with them."""
    run = train()
    manifest = {
        **run.manifest,
        "clients": {},
        "blueprints": {**run.manifest["blueprints"], "heads": {}},
    }
    run = fgn.load(replace(run, clients={}, manifest=manifest).save(tmp_path / "server"))
    more = run.personalize(late(), steps=20, lr=0.02)
    assert list(fgn.load(more.save(tmp_path / "more")).clients) == ["late"]
    again = train(start=run)
    assert again.manifest["start"]["heads"] == []


def test_a_new_client_of_a_task_begins_with_its_head() -> None:
    task = fgn.classification(2, name="t")
    twins = [fgn.Client(n, task, toys.rows("side", 30)) for n in "ab"]
    run = train([*twins, toys.client("corner")], heads="task")
    third = fgn.Client("c", task, toys.rows("side", 30), validation=toys.rows("side", 12))
    more = run.personalize(third, steps=1, lr=1e-30)
    assert torch.allclose(toys.parameters(more.heads["c"]), toys.parameters(run.heads["a"]))


def test_the_new_run_can_be_exported_and_gone_on_from(tmp_path: Path) -> None:
    more = train().personalize(late(), steps=5, lr=0.02, what="network")
    more = fgn.load(more.save(tmp_path / "more"))
    program = torch.export.load(more.export("late", tmp_path / "late.pt2")).module()
    x = torch.from_numpy(X).float()
    torch.testing.assert_close(program(x), more.predict("late", x, outputs=True))
    again = train([*toys.clients(), late()], start=more)
    assert again.manifest["start"]["heads"] == [*toys.NAMES, "late"]
    twice = more.personalize(late("later"), steps=5)
    assert list(twice.manifest["personalized"]) == ["late", "later"]


def test_a_run_with_a_later_client_is_another_arm(tmp_path: Path) -> None:
    run = train(folder=tmp_path / "run")
    run.personalize(late(), steps=2).save(tmp_path / "more")
    assert len(group([read_run(tmp_path / name) for name in ("run", "more")])[0]) == 2


def test_what_does_not_fit_is_refused() -> None:
    run = train()
    narrow = fgn.Client("narrow", fgn.classification(2), (X[:, :2], np.arange(9) % 2))
    with pytest.raises(fgn.ModelError, match="client 'narrow': the shared network cannot take"):
        run.personalize(narrow)
    with pytest.raises(fgn.DataError, match=r"client must be an fgn\.Client"):
        run.personalize("late")
    with pytest.raises(fgn.ConfigError, match=r"personalize\.steps must be a whole number >= 1"):
        run.personalize(late(), steps=0)
    with pytest.raises(fgn.ConfigError, match=r"unknown personalization\.personalize\.what 'hed'"):
        run.personalize(late(), what="hed")
    with pytest.raises(fgn.ModelError, match=r"personalize\.what '9' is no trainable layer"):
        run.personalize(late(), what=["9"])
    with pytest.raises(fgn.ConfigError, match=r"client 'late': nothing was shared in this run"):
        train(share="none").personalize(late())
