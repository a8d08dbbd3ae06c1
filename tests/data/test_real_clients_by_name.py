"""School, Landmine and Beijing by their names: on the command line, and in their configs."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedgradnorm as fgn
from beijing_files import beijing_files, write_beijing
from cell_files import write_landmine, write_school
from fedgradnorm._cli import app
from fedgradnorm.data.beijing import FILES

CONFIGS = Path(__file__).parents[2] / "configs"
SMALL = {"school": (), "landmine": (), "beijing": ("data.rows=90",)}


@pytest.fixture(autouse=True)
def _data_folder(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    folder.mkdir()
    write_school(folder / "school.mat")
    write_landmine(folder / "LandmineData.mat")
    write_beijing(folder / FILES[0], beijing_files("Dongsi", "Shunyi", days=6))
    monkeypatch.setenv("FEDGRADNORM_DATA", str(folder))
    monkeypatch.setenv("FEDGRADNORM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


def cli(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("school", ["schools=[1,3]"], ["school-1", "school-3", "28", "mean"]),
        ("landmine", ["test_share=0.5"], ["field-3", "clutter", "mine"]),
        ("beijing", ["rows=80", 'tasks=["co","rain"]'], ["Dongsi", "Shunyi", "dry", "64", "16"]),
    ],
)
def test_show_lists_the_clients(name, options, said):
    shown = cli("data", "show", name, *options)
    assert shown.exit_code == 0, shown.output
    assert [word for word in said if word not in shown.stdout] == []
    assert "school-2" not in shown.stdout


@pytest.mark.parametrize("name", SMALL)
def test_the_config_runs_on_small_files_and_predicts_raw_values(name, tmp_path):
    done = cli("run", CONFIGS / f"{name}.toml", "rounds=2", *SMALL[name])
    assert done.exit_code == 0, done.output
    run = fgn.load(tmp_path / "runs" / f"{name}-fedgradnorm-seed0")
    client, about = next(iter(run.manifest["clients"].items()))
    assert about["task"] in ("score", "mine", "pm25")
    width = {"school": 28, "landmine": 9, "beijing": 8}[name]
    assert len(run.predict(client, [[1.0] * width] * 3)) == 3


def test_a_wrong_option_names_the_nearest(tmp_path):
    shown = cli("data", "show", "beijing", "row=3")
    assert shown.exit_code == 2
    assert "did you mean 'rows'" in shown.stderr
    shown = cli("data", "show", "school", "path=nowhere.mat")
    assert "nowhere.mat: no such file; give the path of school.mat" in shown.stderr
