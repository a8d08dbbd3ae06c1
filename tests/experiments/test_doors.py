"""No config, run folder or federation's file runs a program: tried through every door."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import fedgradnorm as fgn
from experiments.small_config import small_config
from fedgradnorm._cli import app
from fedgradnorm._errors import ConfigError, FedGradNormError, RunFolderError
from fedgradnorm._flower.setup import fill_client, init_federation
from fedgradnorm._runs.blueprint import rebuild
from fedgradnorm._runs.layout import AGREED
from fedgradnorm.experiments._config.config_file import load_config
from fedgradnorm.experiments._execute import execute

PROGRAMS = {"os:system": "command", "subprocess:getoutput": "cmd", "builtins:exec": "source"}
NETWORK = 'name = "mlp"\nwidths = [6, 5]\n'


@pytest.fixture
def mark(tmp_path):
    """The file that a program would leave."""
    return tmp_path / "program-was-run"


@pytest.fixture(params=PROGRAMS)
def stranger(request, tmp_path, mark):
    """A stranger's config: its network is a program."""
    path = small_config(tmp_path)
    words = f"touch {mark}" if request.param != "builtins:exec" else f"open({str(mark)!r}, 'w')"
    program = f"name = {request.param!r}\n{PROGRAMS[request.param]} = {json.dumps(words)}\n"
    assert NETWORK in path.read_text()
    path.write_text(path.read_text().replace(NETWORK, program))
    return path


def command(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(mark, *words):
    """The one line that refuses the program; nothing is made, and nothing has run."""
    before = sorted(mark.parent.rglob("*"))
    result = command(*words)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert "--allow-module" in line
    assert sorted(mark.parent.rglob("*")) == before


def test_run_and_compare(stranger, mark):
    refused(mark, "run", stranger)
    refused(mark, "run", stranger, "rounds=1", "--allow-module", "mine")
    refused(mark, "compare", stranger, "-m", "fedrep")
    refused(mark, "compare", stranger, "-m", "fedrep,fedgradnorm", "--jobs", 2)


def test_try(stranger, mark):
    pytest.importorskip("flwr")
    refused(mark, "federation", "try", stranger, "rounds=1")


def test_serve(stranger, mark, tmp_path):
    pytest.importorskip("flwr")
    init_federation(tmp_path / "fed", ["class", "value"], ["localhost"])
    refused(mark, "serve", stranger, "--federation", tmp_path / "fed")


def test_join(stranger, mark, tmp_path):
    pytest.importorskip("flwr")
    home, _ = init_federation(tmp_path / "fed", ["class", "value"], ["localhost"])
    fill_client(home, stranger.read_text(), load_config(stranger).table()["data"])
    assert (home / AGREED).read_text() == stranger.read_text()
    refused(mark, "join", home / "client.toml", "--once")


def test_resume(stranger, mark, tmp_path):
    folder = tmp_path / "runs" / "from-a-stranger"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(load_config(stranger).text())
    refused(mark, "resume", folder)


def test_a_sweep_over_programs(tmp_path, mark):
    path = small_config(tmp_path)
    for name, option in PROGRAMS.items():
        tables = f'[{{name="mlp", widths=[3]}}, {{name="{name}", {option}="touch {mark}"}}]'
        refused(mark, "compare", path, f"sweep.network={tables}", "-m", "fedrep")


def test_overrides_alone_allow_nothing(tmp_path, mark):
    words = ["network.name=os:system", f"network.command=touch {mark}", "data.samples=40"]
    refused(mark, "reproduce", "fig3", *words, "--seeds", 1, "--out", tmp_path / "out")


def test_a_finished_run_that_names_a_program_is_shown_and_loaded_without_it(tmp_path, mark):
    path = small_config(tmp_path)
    folder = tmp_path / "runs" / "one"
    execute(load_config(path, ["rounds=1"]), folder)
    text = (folder / "config.toml").read_text()
    evil = f'[network]\nname = "os:system"\ncommand = "touch {mark}"\n'
    (folder / "config.toml").write_text(text.replace(f"[network]\n{NETWORK}", evil))
    assert "os:system" in (folder / "config.toml").read_text()
    assert fgn.load(folder).finished
    assert command("report", folder, "--out", tmp_path / "page.html").exit_code == 0
    assert command("compare", "--from", folder, "--out", tmp_path / "shown").exit_code == 0
    assert command("resume", folder).exit_code == 0  # only shown: it is finished
    assert command("data", "show", folder / "config.toml").exit_code == 0
    assert not mark.exists()


def test_a_stranger_s_config_stops_no_report(tmp_path):
    folder = tmp_path / "runs" / "one"
    execute(load_config(small_config(tmp_path), ["rounds=1"]), folder)
    (folder / "config.toml").write_text(f"method = {'[' * 100_000}")
    result = command("report", folder, "--out", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    assert "config.toml is damaged" in " ".join(result.output.split())
    (folder / "config.toml").unlink()
    os.mkfifo(folder / "config.toml")
    assert command("report", folder, "--out", tmp_path / "page.html").exit_code == 0


@pytest.mark.parametrize("layer", ["os.system", "Module.__init__", "modules", "functional", None])
def test_a_blueprint_names_layers_of_torch_alone(layer):
    with pytest.raises(RunFolderError, match="unknown layer"):
        rebuild({"layer": layer, "options": {"command": "true"}})


@pytest.mark.parametrize(
    "word",
    [
        "output.tracking=os",
        "data.source=os",
        "method=os:system",
        "local.head_optimizer=Optimizer",
        "local.head_optimizer={name='__init__'}",
        "server.server_optimizer=os:system",
        "compute.device=os:system",
        "network.name=__init__",
        "network.activation=os:system",
        "network.activation=Module",
    ],
)
def test_other_names_are_chosen_from_lists(tmp_path, word):
    path = small_config(tmp_path)
    with pytest.raises(FedGradNormError):
        execute(load_config(path, [word]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_processes_of_its_own_take_no_module_from_the_working_folder(tmp_path, mark):
    """Whoever unpacks a server's archive and joins there runs none of the files in it."""
    pytest.importorskip("flwr")
    text = f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n"
    for name in ("fedgradnorm", "typer", "multiprocessing"):
        (tmp_path / f"{name}.py").write_text(text)
    home, _ = init_federation(tmp_path / "fed", ["class", "value"], ["localhost"])
    (home / "client.toml").write_text('name = "class"\nserver = "x:1"\nconfig = "no.toml"\n')
    program = "from fedgradnorm._flower.join import join\nimport pathlib, sys\n"
    program += "join(pathlib.Path(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, str(home / "client.toml")],
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2, done.stderr
    assert "no such file" in done.stderr
    assert not mark.exists()


def test_the_environment_allows_nothing_that_it_does_not_name(stranger, mark, monkeypatch):
    monkeypatch.setenv("FEDGRADNORM_ALLOW_MODULES", "osx,sub process,builtins.exec")
    refused(mark, "run", stranger)
    with pytest.raises(ConfigError):
        execute(load_config(stranger, allow=["torch"]), mark.parent / "out")
