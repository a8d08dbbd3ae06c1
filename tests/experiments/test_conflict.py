"""Conflict between clients: the cosines are right, and recording them changes nothing."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

import fedgradnorm as fgn
import flat
import toys
from alone_clients import assert_close
from experiments.resuming import assert_equal_to_the_bit, stored
from fedgradnorm._federation.federation import Federation
from fedgradnorm._methods import find_method
from fedgradnorm._round.executor import AUTO, EXECUTORS
from fedgradnorm._round.reports import Record, Reports, pairs

BY_GRADIENT = ("pcgrad", "upgrad", "graddrop", "trimmed-mean", "config")


def train(folder: Path | None = None, network: nn.Module | None = None, **how: Any) -> fgn.Run:
    how = {"rounds": 7, "batch_size": 8, "lr": 0.01, "folder": folder, "seed": 3, **how}
    return flat.train(network or toys.network(), toys.clients(), **how)


def by_pair(run: fgn.Run, round_number: int = 1) -> dict[tuple[str, str], float]:
    rows = [row for row in run.pairs.rows if row["round"] == round_number]
    return {(row["client"], row["other"]): row["cosine"] for row in rows}


def first_cosines() -> dict[tuple[str, str], float]:
    """From the first round's updates themselves, by torch's own cosine."""
    federation = toys.federation(toys.network(), toys.clients(), lr=0.01, seed=3)
    shared = federation.server.shared.data
    updates = federation.engine.run_clients(shared, 0, toys.NAMES).gradients()
    found = {(0, 1), (0, 2), (1, 2)}
    return {
        (toys.NAMES[i], toys.NAMES[j]): float(cosine_similarity(updates[i], updates[j], dim=0))
        for i, j in found
    }


def reports(updates: Tensor, active: list[bool]) -> Reports:
    row = torch.ones(len(updates), dtype=torch.float64)
    return Reports(torch.tensor(active), row, row, row, row, (), updates=updates)


def test_cosines_of_those_that_reported_and_have_a_direction() -> None:
    updates = torch.tensor([[2.0, 0.0], [-3.0, 0.0], [1.0, 1.0], [0.0, 0.0], [9.0, 9.0]])
    found = pairs(reports(updates, [True, True, True, True, False]), list("abcde"))
    assert [(one, two) for one, two, _ in found] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [c for _, _, c in found] == pytest.approx([-1, 0.5**0.5, -(0.5**0.5)])
    assert found[0][2] == -1  # never beyond, whatever is rounded


@pytest.mark.parametrize("executor", [AUTO, *EXECUTORS])
def test_every_engine_records_them_and_trains_the_same(tmp_path: Path, executor: str) -> None:
    """To the bit, but for a joint pass: its recorded rounds are the loop's."""
    plain = train(tmp_path / "plain", executor=executor)
    run = train(tmp_path / "run", executor=executor, record_conflict=3)
    assert by_pair(run) == pytest.approx(first_cosines())
    assert sorted({row["round"] for row in run.pairs.rows}) == [1, 4, 7]
    assert plain.conflict.empty
    left, right = stored(tmp_path / "run"), stored(tmp_path / "plain")
    assert left["names"] - right["names"] == {Path("conflict.csv")}
    if executor in ("joint", "auto"):
        assert_close(run.table.rows, plain.table.rows)
        assert_close(run.network.state_dict(), plain.network.state_dict())
        return
    for name in right.keys() - {"names", "checkpoint.safetensors"}:
        assert toys.same(left[name], right[name]), name
    assert toys.same(run.network.state_dict(), plain.network.state_dict())


@pytest.mark.parametrize("how", [
    {"head_steps": 3, "first_loss": "first_round"}, {"phases": "joint"},
    {"shared_steps": 2}, {"sends": "model", "shared_steps": 2}, {"ditto": 0.5},
    {"network": toys.noisy_network()}, {"participation": 0.7},
])  # fmt: skip
def test_every_way_of_training_is_left_alone(how: dict[str, Any]) -> None:
    how = {"executor": "vmap", **how}
    run, plain = train(**how, record_conflict=1), train(**how)
    assert run.table.rows == plain.table.rows
    for name, head in plain.heads.items():
        assert toys.same(run.heads[name].state_dict(), head.state_dict())
    assert len(run.pairs.rows) == 7 * (1 if "participation" in how else 3)


@pytest.mark.parametrize("method", BY_GRADIENT)
def test_they_are_of_the_updates_as_sent_whatever_the_weighting_makes_of_them(method: str) -> None:
    run = train(rounds=1, weighting=find_method(method).build({}), record_conflict=1)
    assert by_pair(run) == pytest.approx(first_cosines())


def test_rounds_that_run_together_are_recorded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def together(self: Federation, first: int, actives: Any) -> list[Record]:
        lengths.append(len(actives))
        return rounds(self, first, actives)

    expected, lengths, rounds = train(executor="joint", record_conflict=3), [], Federation.rounds
    monkeypatch.setattr(Federation, "burst", 512)  # as on a GPU
    monkeypatch.setattr(Federation, "rounds", together)
    run = train(executor="joint", record_conflict=3, eval_every=0, checkpoint_every=100)
    assert run.pairs.rows == expected.pairs.rows
    assert lengths == [3, 3, 1]
    train(executor="joint", eval_every=0, checkpoint_every=100)
    assert lengths == [3, 3, 1, 7]


def test_resumed_they_are_the_same_to_the_bit(tmp_path: Path) -> None:
    def stop(event: Any) -> None:
        if event.round == 5:
            raise KeyboardInterrupt

    train(tmp_path / "whole", record_conflict=2)
    with pytest.raises(fgn.Interrupted):
        train(tmp_path / "run", record_conflict=2, checkpoint_every=2, progress=stop)
    settings = {"record_conflict": 2, "checkpoint_every": 2}
    train(tmp_path / "run", resume=True, **settings)
    train(tmp_path / "other", **settings)
    assert_equal_to_the_bit(tmp_path / "run", tmp_path / "other")
    text = (tmp_path / "whole" / "conflict.csv").read_text()
    assert (tmp_path / "run" / "conflict.csv").read_text() == text
    assert text.startswith("round,epoch,client,other,cosine\n1,")


def test_the_server_of_a_federation_records_the_same(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed")
    from engines.flower.direct import OPTIONS, Together

    together = Together(tmp_path, record_conflict=3)
    together.run()
    how = {**OPTIONS, "weighting": fgn.GradNorm()}
    alone = train(**how, executor="loop", record_conflict=3)
    there = [(r["round"], r["client"], r["other"], r["cosine"]) for r in alone.pairs.rows]
    found = together.server.conflict.rows
    assert [(r["round"], r["client"], r["other"], r["cosine"]) for r in found] == there
    assert set(together.server.tables) == {"metrics.csv", "conflict.csv"}


def test_saved_and_loaded_they_come_back(tmp_path: Path) -> None:
    run = train(record_conflict=4)
    again = fgn.load(run.save(tmp_path / "saved"))
    assert again.conflict.equals(run.conflict)
    assert list(run.conflict.columns) == ["round", "epoch", "client", "other", "cosine"]
    assert not (train().save(tmp_path / "without") / "conflict.csv").exists()


def test_alone_nobody_is_in_conflict() -> None:
    assert train(share="none", record_conflict=1).conflict.empty


@pytest.mark.parametrize(("executor", "told"), [("joint", True), ("loop", False)])
def test_the_log_says_what_it_costs(caplog: Any, executor: str, told: bool) -> None:
    with caplog.at_level(logging.INFO, "fedgradnorm"):
        train(rounds=1, executor=executor, record_conflict=5)
    text = "recorded rounds are run client by client, because executor joint forms no single"
    assert (text in caplog.text) == told


def test_bad_values() -> None:
    with pytest.raises(fgn.ConfigError, match=r"history.conflict must be a whole number >= 0"):
        train(record_conflict=-1)


def test_a_setting_that_the_manifest_lacks_has_its_default(tmp_path: Path) -> None:
    def stop(event: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(fgn.Interrupted):
        train(tmp_path / "run", progress=stop)
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    del manifest["checksum"]  # only its shape is checked then
    del manifest["settings"]["record_conflict"]
    (tmp_path / "run" / "run.json").write_text(json.dumps(manifest))
    with pytest.raises(fgn.RunFolderError, match="other settings"):
        train(tmp_path / "run", resume=True, record_conflict=2)
    assert train(tmp_path / "run", resume=True).finished
