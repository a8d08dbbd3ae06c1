"""A resumed run continues exactly, whatever the training, with its log and time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import fedgradnorm as fgn
import flat
import toys
from experiments.killed_training import ROUNDS, go
from experiments.overfitting import paired_clients
from experiments.resuming import assert_equal_to_the_bit, begun
from fedgradnorm._round.executor import AUTO, EXECUTORS
from fedgradnorm._runs.manifest import read_manifest


def test_a_finished_run_resumes_to_itself(tmp_path: Path, uninterrupted: Path) -> None:
    go(tmp_path / "run")
    again = go(tmp_path / "run")
    assert again.finished
    assert_equal_to_the_bit(tmp_path / "run", uninterrupted)
    assert fgn.load(tmp_path / "run").finished


BY_TASK = {"weight_per": "task", "clients": paired_clients()}


@pytest.mark.parametrize("how", [{"share": "none"}, BY_TASK, {"first_loss": "first_round"}])
def test_other_ways_of_training_resume_exactly_too(tmp_path: Path, how: dict) -> None:
    def stop(event: Any) -> None:
        if event.round == 3:
            raise KeyboardInterrupt

    go(tmp_path / "whole", **how)
    with pytest.raises(fgn.Interrupted):
        go(tmp_path / "run", progress=stop, **how)
    go(tmp_path / "run", **how)
    assert_equal_to_the_bit(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("executor", [AUTO, *EXECUTORS])
def test_every_engine_resumes_exactly(tmp_path: Path, executor: str) -> None:
    def train(folder: str, **more: Any) -> fgn.Run:
        how = {"rounds": 8, "batch_size": 8, "lr": 0.01, "participation": 0.7, "executor": executor}
        how = {**how, "folder": tmp_path / folder, "device": "cpu", **more}  # tells every round
        return flat.train(toys.network(), toys.clients(), **how)

    def stop(event: Any) -> None:
        if event.round == 3:
            raise KeyboardInterrupt

    train("whole")
    with pytest.raises(fgn.Interrupted):
        train("run", progress=stop)
    train("run", resume=True)
    assert_equal_to_the_bit(tmp_path / "run", tmp_path / "whole")


def test_the_log_keeps_warnings_and_milestones_of_all_attempts(tmp_path: Path) -> None:
    begun(tmp_path / "run")
    go(tmp_path / "run")
    log = (tmp_path / "run" / "log.txt").read_text()
    assert f"round 0 of {ROUNDS}: training starts" in log
    assert f"round 2 of {ROUNDS}: training starts" in log
    assert f"round {ROUNDS}: finished" in log


def test_the_time_a_run_took_includes_what_was_before_an_interruption(tmp_path: Path) -> None:
    def stop(event: Any) -> None:
        time.sleep(0.05)
        if event.round == 4:
            raise KeyboardInterrupt

    with pytest.raises(fgn.Interrupted):
        go(tmp_path / "run", progress=stop)
    before = read_manifest(tmp_path / "run")["seconds"]
    assert before >= 0.2
    assert go(tmp_path / "run").manifest["seconds"] > before
