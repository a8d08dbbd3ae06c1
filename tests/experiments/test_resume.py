"""Killed at any moment and resumed, a run ends as if nothing had happened, to the bit."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import pytest
from torch import Tensor

import fedgradnorm as fgn
import toys
from experiments import killed_training
from experiments.killed_training import ROUNDS, go
from fedgradnorm.experiments import checkpoint
from fedgradnorm.experiments.run import read_about
from fedgradnorm.settings import EngineName
from fedgradnorm.tasks import squared_error

TESTS = Path(killed_training.__file__).parents[1]


@contextmanager
def training(folder: Path, *how_to_die: str) -> Iterator[subprocess.Popen[str]]:
    """A process that trains in ``folder``."""
    command = [sys.executable, "-u", str(killed_training.__file__), str(folder), *how_to_die]
    search = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": search}
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert go(folder).finished
    return folder


def stored(folder: Path) -> dict[str, Any]:
    """Everything a run leaves behind, except time stamps."""
    files = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    tensors = {
        str(path): checkpoint.read_tensors(folder / path)[0]
        for path in files
        if path.suffix == ".safetensors"
    }
    return {"metrics": (folder / "metrics.csv").read_bytes(), "names": files, **tensors}


def assert_equal_to_the_bit(folder: Path, uninterrupted: Path) -> None:
    left, right = stored(folder), stored(uninterrupted)
    assert left["metrics"] == right["metrics"]
    assert left["names"] == right["names"]  # no temporary file is left either
    for name, part in right.items():
        assert toys.same(left[name], part), name
    assert toys.same(
        checkpoint.load(folder / "checkpoint.safetensors"),
        checkpoint.load(uninterrupted / "checkpoint.safetensors"),
    )


@pytest.mark.slow
def test_killed_at_five_random_moments_it_ends_the_same(
    tmp_path: Path, uninterrupted: Path
) -> None:
    generator = random.Random(2)
    folder, died = tmp_path / "run", 0
    for _ in range(5):
        with training(folder) as process:
            assert process.stdout is not None
            for _ in range(generator.randint(1, 5)):
                process.stdout.readline()
            time.sleep(generator.uniform(0, 0.02))
            process.send_signal(signal.SIGKILL)
            died += process.wait() == -signal.SIGKILL
    assert died == 5
    assert go(folder).finished
    assert_equal_to_the_bit(folder, uninterrupted)


@pytest.mark.slow
def test_killed_inside_its_writes_it_ends_the_same(tmp_path: Path, uninterrupted: Path) -> None:
    folder, first_head = tmp_path / "run", ROUNDS - 6 + 2
    places = [("half", 1), ("half", 2), ("unnamed", 4), ("after", 3), ("half", first_head)]
    rounds = []
    for where, at in places:
        with training(folder, where, str(at)) as process:
            assert process.stdout is not None
            rounds.append(len(process.stdout.read().splitlines()))
            assert process.wait() == -signal.SIGKILL
    assert rounds == [0, 0, 3, 2, ROUNDS - 6]  # in run.json, checkpoints, and the first head
    with pytest.raises(fgn.RunFolderError, match="no such file"):
        fgn.load(folder)
    assert go(folder).finished
    assert_equal_to_the_bit(folder, uninterrupted)


@pytest.mark.slow
def test_ctrl_c_leaves_a_checkpoint_of_a_whole_round(tmp_path: Path, uninterrupted: Path) -> None:
    with training(tmp_path / "run") as process:
        assert process.stdout is not None
        for _ in range(7):
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read().splitlines()
        assert process.wait() == 130
    assert rest[-1].startswith("stopped after round ")
    assert rest[-1].endswith("| corner,side,place | finished False")
    assert "resume from" in rest[-1]
    assert go(tmp_path / "run").finished
    assert_equal_to_the_bit(tmp_path / "run", uninterrupted)


@pytest.mark.slow
def test_a_second_process_on_one_folder_is_refused(tmp_path: Path, uninterrupted: Path) -> None:
    with training(tmp_path / "run") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)  # it holds the folder and does not move
        with pytest.raises(fgn.RunFolderError, match="is in use by another process"):
            go(tmp_path / "run")
        process.send_signal(signal.SIGCONT)
        process.stdout.read()
        assert process.wait() == 0
    assert_equal_to_the_bit(tmp_path / "run", uninterrupted)


class TestCtrlC:
    """In this process: a signal in the middle of a round, and one from a callback."""

    @staticmethod
    def clients(at_call: int | None, times: int = 1) -> list[fgn.Client]:
        calls = 0

        def loss(output: Tensor, target: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            if at_call is not None and at_call <= calls < at_call + times:
                signal.raise_signal(signal.SIGINT)
            return squared_error(output, target)

        task = fgn.regression(2, loss=loss)
        return [toys.client("side"), fgn.Client("place", task, train=toys.rows("place", 24))]

    def train(self, folder: Path, at_call: int | None = None, times: int = 1, **more: Any):
        clients = self.clients(at_call, times)
        return fgn.train(toys.noisy_network(), clients, rounds=6, lr=0.01, folder=folder, **more)

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

    def test_twice_it_stops_at_once_and_the_last_checkpoint_stands(self, tmp_path: Path) -> None:
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


class TestWhatIsRefused:
    @staticmethod
    def begun(folder: Path) -> Path:
        def stop(event: Any) -> None:
            if event.round == 2:
                raise KeyboardInterrupt

        with pytest.raises(fgn.Interrupted):
            go(folder, progress=stop)
        return folder

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"lr": 0.02}, "cannot resume with other settings"),
            ({"seed": 1}, "cannot resume with other settings"),
            ({"weighting": fgn.GradNorm(gamma=0.5)}, "cannot resume with other weighting"),
            ({"weighting": fgn.Equal()}, "cannot resume with other weighting"),
        ],
    )
    def test_resuming_with_other_settings(self, tmp_path: Path, change: dict, message: str) -> None:
        folder = self.begun(tmp_path / "run")
        before = (folder / "metrics.csv").read_bytes()
        with pytest.raises(fgn.RunFolderError, match=message):
            go(folder, **change)
        assert (folder / "metrics.csv").read_bytes() == before
        assert go(folder).finished  # and it let go of the folder

    @pytest.mark.parametrize("network", [toys.network, lambda: toys.seeded(Custom)])
    def test_resuming_with_another_network(
        self, tmp_path: Path, network: Callable[[], Any]
    ) -> None:
        folder = self.begun(tmp_path / "run")
        options = {**killed_training.options(), "folder": folder, "resume": True}
        with pytest.raises(fgn.RunFolderError, match="cannot resume with other network"):
            fgn.train(network(), toys.clients(), **options)

    def test_resuming_with_other_clients(self, tmp_path: Path) -> None:
        folder = self.begun(tmp_path / "run")
        options = {**killed_training.options(), "folder": folder, "resume": True}
        with pytest.raises(fgn.RunFolderError, match="cannot resume with other clients"):
            fgn.train(toys.noisy_network(), toys.clients()[:2], **options)

    def test_resuming_a_module_of_ones_own_that_has_another_shape(self, tmp_path: Path) -> None:
        def once(width: int, **more: Any) -> fgn.Run:
            network = toys.seeded(lambda: Custom(width))
            return fgn.train(network, toys.clients(), rounds=2, folder=tmp_path / "run", **more)

        once(5)
        with pytest.raises(fgn.RunFolderError, match="does not fit"):
            once(6, resume=True)

    def test_starting_over_a_run_that_is_there(self, tmp_path: Path) -> None:
        folder = self.begun(tmp_path / "run")
        with pytest.raises(fgn.RunFolderError, match="already holds a run; resume it"):
            fgn.train(toys.noisy_network(), toys.clients(), folder=folder)

    def test_resuming_what_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(fgn.RunFolderError, match="is no run folder"):
            fgn.train(toys.network(), toys.clients(), folder=tmp_path / "run", resume=True)
        assert not (tmp_path / "run").exists()

    def test_loading_what_is_not_finished(self, tmp_path: Path) -> None:
        folder = self.begun(tmp_path / "run")
        with pytest.raises(fgn.RunFolderError, match="holds no trained network yet; resume"):
            fgn.load(folder)

    @pytest.mark.parametrize("name", ["checkpoint.safetensors", "metrics.csv", "run.json"])
    def test_resuming_from_a_damaged_file(self, tmp_path: Path, name: str) -> None:
        folder = self.begun(tmp_path / "run")
        path = folder / name
        path.write_bytes(path.read_bytes()[:40])
        with pytest.raises(fgn.RunFolderError, match=name.replace(".", r"\.")):
            go(folder)

    def test_bad_input_leaves_no_folder(self, tmp_path: Path) -> None:
        for bad in ({"rounds": -1}, {"gauge": "nowhere"}, {"head_optimizer": "adom"}):
            with pytest.raises(fgn.FedGradNormError):
                fgn.train(toys.network(), toys.clients(), folder=tmp_path / "run", **bad)
            assert not (tmp_path / "run").exists()


class Custom(toys.nn.Module):
    """A network that cannot be written down."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.inner = toys.nn.Linear(toys.FEATURES, width)
        self.outer = toys.nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.inner(x))


def test_a_finished_run_resumes_to_itself(tmp_path: Path, uninterrupted: Path) -> None:
    go(tmp_path / "run")
    again = go(tmp_path / "run")
    assert again.finished
    assert_equal_to_the_bit(tmp_path / "run", uninterrupted)
    assert fgn.load(tmp_path / "run").finished


@pytest.mark.parametrize("how", [{"share": "none"}, {"key": "task"}, {"first_loss": "first_round"}])
def test_other_ways_of_training_resume_exactly_too(tmp_path: Path, how: dict) -> None:
    def stop(event: Any) -> None:
        if event.round == 3:
            raise KeyboardInterrupt

    go(tmp_path / "whole", **how)
    with pytest.raises(fgn.Interrupted):
        go(tmp_path / "run", progress=stop, **how)
    go(tmp_path / "run", **how)
    assert_equal_to_the_bit(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("engine", get_args(EngineName))
def test_every_engine_resumes_exactly(tmp_path: Path, engine: str) -> None:
    def train(folder: str, **more: Any) -> fgn.Run:
        how = {"rounds": 8, "batch_size": 8, "lr": 0.01, "participation": 0.7, "engine": engine}
        how = {**how, "folder": tmp_path / folder, **more}
        return fgn.train(toys.network(), toys.clients(), **how)

    def stop(event: Any) -> None:
        if event.round == 3:
            raise KeyboardInterrupt

    train("whole")
    with pytest.raises(fgn.Interrupted):
        train("run", progress=stop)
    train("run", resume=True)
    assert_equal_to_the_bit(tmp_path / "run", tmp_path / "whole")


def test_the_log_keeps_warnings_and_milestones_of_all_attempts(tmp_path: Path) -> None:
    TestWhatIsRefused.begun(tmp_path / "run")
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
    before = read_about(tmp_path / "run")["seconds"]
    assert before >= 0.2
    assert go(tmp_path / "run").about["seconds"] > before
