"""``fedgradnorm init``: what it writes can be run at once, and nothing is ever written over."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

import fedgradnorm as fgn
from fedgradnorm._cli import app
from fedgradnorm._cli.init_command import PLANTS
from fedgradnorm.experiments import load_config


def cli(*words: object):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def said(tmp_path_factory) -> tuple[Path, str]:
    """Where it was run, and what it said."""
    place = tmp_path_factory.mktemp("start")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        done = cli("init", "my pumps")
    assert done.exit_code == 0, done.output
    return place, done.stdout


def test_what_it_says_to_run_next_runs(said, monkeypatch):
    place, text = said
    monkeypatch.chdir(place)
    commands = [shlex.split(line) for line in re.findall(r"fedgradnorm (.*)", text)]
    assert [words[0] for words in commands] == ["run", "compare", "benefit"]
    for name, *words in commands:
        short = [word if word != "3" else "1" for word in words]
        done = cli(name, *short, "epochs=2")
        assert done.exit_code == 0, done.output
    assert fgn.load("runs/pumps-fedgradnorm-direct-seed0").finished


def test_every_table_of_the_config_says_what_it_is_for(said):
    path = said[0] / "my pumps" / "pumps.toml"
    config = load_config(path)
    tables = path.read_text().split("\n\n")
    assert len(tables) > 8
    assert all("#" in table for table in tables)
    assert config.name == "pumps"


def test_the_first_example_beats_the_constant_answer_without_a_warning(said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = cli("run", said[0] / "my pumps" / "pumps.toml")
    assert done.exit_code == 0, done.output
    assert "warning" not in done.stderr.lower()
    assert "note:" not in done.stderr
    table = fgn.load("runs/pumps-fedgradnorm-direct-seed0").summary()
    states, hours = table[table.accuracy.notna()], table[table.mae.notna()]
    assert len(states) == len(hours) == 3
    assert (states.accuracy > 0.8).all()
    assert (states.baseline < 0.5).all()
    assert (hours.mae < 0.6 * hours.baseline).all()


@pytest.mark.slow
def test_joining_helps_the_clients_of_the_first_example(said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = cli("benefit", said[0] / "my pumps" / "pumps.toml")
    assert done.exit_code == 0, done.output
    gains = pd.read_csv("runs/pumps-benefit/benefit.csv")
    assert (gains.low > 0).sum() >= 5
    assert (gains.high > 0).all()


def test_a_folder_that_is_not_empty_is_refused_and_left_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("mine")
    for words in ([], ["."], [tmp_path]):
        done = cli("init", *words)
        assert done.exit_code == 2
        assert "is not empty" in done.stderr
    assert "cannot be used" in cli("init", "mine.txt").stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_an_empty_working_folder_will_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "fedgradnorm run pumps.toml" in cli("init").stdout
    assert {p.stem for p in tmp_path.glob("*.csv")} == {*PLANTS}
    assert (tmp_path / "pumps.toml").exists()
