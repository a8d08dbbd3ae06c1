"""Run folders that are spoiled, killed or raced for, at random, in processes of their own.

A few cases run in the suite. ``FEDGRADNORM_FUZZ=10000`` and ``FEDGRADNORM_KILLS=1000`` make
campaigns of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedgradnorm as fgn
from experiments.resuming import TESTS

FUZZ = int(os.environ.get("FEDGRADNORM_FUZZ", "40"))
KILLS = int(os.environ.get("FEDGRADNORM_KILLS", "6"))
TRIES = 4


def script(name: str, *words: object) -> list[str]:
    """The lines that a script of this folder prints."""
    search = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(TESTS / "experiments" / name), *map(str, words)],
        env={**os.environ, "PYTHONPATH": search, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, "\n".join(lines[-20:])
    return lines


@pytest.mark.slow
def test_a_spoiled_folder_is_used_or_refused_in_one_line_and_never_changed(tmp_path: Path) -> None:
    outcomes = json.loads(script("spoiling.py", tmp_path, 0, FUZZ)[-1])
    assert sum(outcomes.values()) == FUZZ
    assert outcomes["refused"] > FUZZ / 4


@pytest.mark.slow
def test_killed_at_any_moment_and_resumed_a_run_ends_the_same(tmp_path: Path) -> None:
    counts = json.loads(script("kill_campaign.py", tmp_path, 0, KILLS)[-1])
    assert counts["kills"] == KILLS
    assert counts["different"] == 0


@pytest.mark.slow
def test_of_several_starts_of_one_new_run_one_trains_and_the_others_touch_nothing(
    tmp_path: Path,
) -> None:
    lines = script("start_race.py", tmp_path, TRIES)
    assert len(lines) == TRIES
    for number, codes in enumerate(map(json.loads, lines)):
        trained = codes.count(0)
        # One that comes late with resume=True finds the run finished, and has nothing to do.
        assert trained == 1 if number % 2 == 0 else trained >= 1, lines
        assert codes.count(3) == len(codes) - trained, lines
        folder = tmp_path / "in" / str(number)
        assert fgn.load(folder).finished
        assert (folder / "config.toml").is_file()
        assert (folder / "log.txt").read_text().count("round 0 of 2: training starts") == 1
