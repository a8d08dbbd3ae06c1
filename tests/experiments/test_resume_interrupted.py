"""Ctrl-C in the middle of a round, from a callback, and in other threads."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedgradnorm as fgn
import flat
import toys
from experiments.resuming import assert_equal_to_the_bit
from fedgradnorm._runs import checkpoint
from fedgradnorm._training import interrupt
from fedgradnorm.tasks._measures import squared_error


class TestCtrlC:
    """In this process: a signal in the middle of a round, and one from a callback."""

    @staticmethod
    def clients(at_call: int | None, times: int = 1) -> list[fgn.Client]:
        calls = 0

        def loss(output: Tensor, target: Tensor) -> Tensor:
            nonlocal calls
            # Before the first round the loss is tried on a few rows, and on one answer for all.
            calls += len(target) > 3 and not torch.equal(output, output[:1].expand_as(output))
            if at_call is not None and at_call <= calls < at_call + times:
                signal.raise_signal(signal.SIGINT)
            return squared_error(output, target)

        task = fgn.regression(2, loss=loss)
        return [toys.client("side"), fgn.Client("place", task, train=toys.rows("place", 24))]

    def train(self, folder: Path, at_call: int | None = None, times: int = 1, **more: Any):
        clients = self.clients(at_call, times)
        return flat.train(toys.noisy_network(), clients, rounds=6, lr=0.01, folder=folder, **more)

    @pytest.mark.parametrize("at_call", [1, 2, 3, 7, 12])
    def test_in_the_middle_of_a_round_it_waits_for_its_end(
        self, tmp_path: Path, at_call: int
    ) -> None:
        self.train(tmp_path / "whole")
        with pytest.raises(fgn.Interrupted, match=r"stopped after round \d of 6") as stop:
            self.train(tmp_path / "run", at_call)
        assert set(stop.value.run.heads) == {"side", "place"}
        assert isinstance(stop.value, KeyboardInterrupt)
        assert stop.value.run.history["round"].max() >= 1
        self.train(tmp_path / "run", resume=True)
        assert_equal_to_the_bit(tmp_path / "run", tmp_path / "whole")

    def test_two_signals_of_one_press_wait_as_one_does(self, tmp_path: Path) -> None:
        self.train(tmp_path / "whole")
        with pytest.raises(fgn.Interrupted) as stop:
            self.train(tmp_path / "run", at_call=7, times=2)
        saved = checkpoint.load(tmp_path / "run" / "checkpoint.safetensors")["trainer"]
        assert f"stopped after round {saved['round']} of 6" in str(stop.value)
        assert saved["round"] >= 1
        self.train(tmp_path / "run", resume=True)
        assert_equal_to_the_bit(tmp_path / "run", tmp_path / "whole")

    def test_twice_it_stops_at_once_and_the_last_checkpoint_stands(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(interrupt, "ONE_PRESS", 0.0)
        self.train(tmp_path / "whole", checkpoint_every=2)
        with pytest.raises(fgn.Interrupted):
            self.train(tmp_path / "run", at_call=10, times=2, checkpoint_every=2)
        self.train(tmp_path / "run", resume=True, checkpoint_every=2)
        assert_equal_to_the_bit(tmp_path / "run", tmp_path / "whole")

    def test_a_callback_may_stop_the_run(self, tmp_path: Path) -> None:
        def stop(event: Any) -> None:
            if event.round == 3:
                raise KeyboardInterrupt

        self.train(tmp_path / "whole")
        with pytest.raises(fgn.Interrupted, match="stopped after round 3 of 6; resume from"):
            self.train(tmp_path / "run", progress=stop)
        self.train(tmp_path / "run", resume=True)
        assert_equal_to_the_bit(tmp_path / "run", tmp_path / "whole")

    def test_the_usual_handler_is_back_afterwards(self, tmp_path: Path) -> None:
        self.train(tmp_path / "run")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_in_another_thread_signals_are_left_alone(self, tmp_path: Path) -> None:
        thread = threading.Thread(target=self.train, args=(tmp_path / "run",))
        thread.start()
        thread.join()
        assert fgn.load(tmp_path / "run").finished

    def test_an_interrupted_run_can_be_saved_and_used(self, tmp_path: Path) -> None:
        with pytest.raises(fgn.Interrupted) as stop:
            fgn.train(toys.noisy_network(), self.clients(5), rounds=6)
        loaded = fgn.load(stop.value.run.save(tmp_path / "saved"))
        assert not loaded.finished
        assert loaded.predict("side", toys.rows("side", 4)[0]).shape == (4,)
