"""Killed at any moment and resumed, a run ends bit-for-bit as if nothing had happened."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

import fedgradnorm as fgn
from experiments.killed_training import ROUNDS, go
from experiments.resuming import assert_equal_to_the_bit, training


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
    folder, heads = tmp_path / "run", ROUNDS - 6 + 2
    places = [("half", 1), ("half", 2), ("unnamed", 5), ("after", 3), ("between", 2)]
    places += [("half", heads - 1)]
    rounds = []
    for where, at in places:
        with training(folder, where, str(at)) as process:
            assert process.stdout is not None
            rounds.append(len(process.stdout.read().splitlines()))
            assert process.wait() == -signal.SIGKILL
    # in run.json, checkpoints, and the file of all heads
    assert rounds == [0, 0, 3, 2, 1, ROUNDS - 7]
    with pytest.raises(fgn.RunFolderError, match="holds no trained network yet"):
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
