"""Checkpoints take a small share of the time, and never much of the work with them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import fedgradnorm as fgn
import flat
import toys
from experiments.resuming import assert_equal_to_the_bit
from fedgradnorm._engines.ranks import World
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs.folder import RunFolder
from fedgradnorm._training import checkpoints as due
from fedgradnorm._training.checkpoints import Checkpoints
from fedgradnorm._training.trainer import Trainer


class Costly:
    """Keeps nothing, at a price; its clock is moved by hand."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.now, self.times = seconds, 0.0, 0

    def clock(self) -> float:
        return self.now

    def save_checkpoint(self) -> None:
        self.times += 1
        self.now += self.seconds


def kept(seconds: float, epochs: int, every: int | None = None, epoch: float = 0.001) -> Costly:
    """A keeper after so many epochs, a round and ``epoch`` seconds each."""
    settings = Settings(batch_size=None, rounds=epochs + 1, checkpoint_every=every)
    trainer = Trainer(toys.network(), toys.clients(), fgn.Equal(), settings, toys.CPU)
    keeper = Costly(seconds)
    checkpoints = Checkpoints(keeper, trainer, World(), keeper.clock)  # type: ignore[arg-type]
    for trainer.round in range(1, epochs + 1):
        keeper.now += epoch
        checkpoints.on_round(trainer)
    return keeper


@pytest.mark.parametrize("seconds", [0.0001, 0.01, 0.1, 0.2])
def test_checkpoints_take_a_twentieth_of_the_time_at_most(seconds: float) -> None:
    keeper = kept(seconds, epochs=5000)
    assert keeper.times > 1
    assert (keeper.times - 1) * seconds <= due.SHARE * keeper.now


def test_what_costs_little_beside_an_epoch_is_written_every_epoch() -> None:
    assert kept(seconds=0.1, epochs=20, epoch=2.5).times == 20


def test_an_interval_that_was_asked_for_is_obeyed() -> None:
    assert kept(seconds=1.0, epochs=20, every=4).times == 5


def test_no_more_than_the_longest_time_is_lost_whatever_a_checkpoint_costs() -> None:
    keeper = kept(seconds=3.0, epochs=100, epoch=0.5)
    assert keeper.times == 1 + 99 // 11  # the first epoch past five seconds


def test_rank_0_decides_for_all() -> None:
    class Follower(World):
        def leaders(self, value: Any) -> Any:
            return not value

    trainer = Trainer(toys.network(), toys.clients(), fgn.Equal(), Settings(rounds=9), toys.CPU)
    trainer.round, keeper = 1, Costly(0)
    Checkpoints(keeper, trainer, Follower(1, 2)).on_round(trainer)  # type: ignore[arg-type]
    assert keeper.times == 0


def test_a_run_of_tiny_epochs_writes_few_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that needs 50 ms for each one, where an epoch of 13 rows needs about one."""
    times = 0
    save = RunFolder.save_checkpoint

    def slow(folder: RunFolder) -> None:
        nonlocal times
        times += 1
        time.sleep(0.05)
        save(folder)

    monkeypatch.setattr(RunFolder, "save_checkpoint", slow)
    clients = [toys.client(name, 13) for name in toys.NAMES]
    began = time.perf_counter()
    flat.train(toys.network(), clients, epochs=60, eval_every=0, folder=tmp_path / "run")
    taken = time.perf_counter() - began
    assert times <= 2 + due.SHARE * taken / 0.05 + taken / due.LONGEST


@pytest.mark.parametrize("share", [0.0, 1e9])
def test_the_moments_of_checkpoints_leave_no_trace(
    share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(event: Any) -> None:
        if event.round == 7:
            raise KeyboardInterrupt

    def train(name: str, **more: Any) -> fgn.Run:
        how = {"epochs": 9, "batch_size": 24, "folder": tmp_path / name, **more}
        return flat.train(toys.noisy_network(), toys.clients(), **how)

    train("whole")
    monkeypatch.setattr(due, "SHARE", share)
    with pytest.raises(fgn.Interrupted):
        train("run", progress=stop)
    train("run", resume=True)
    assert_equal_to_the_bit(tmp_path / "run", tmp_path / "whole")
