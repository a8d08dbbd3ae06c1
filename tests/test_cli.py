"""The command line: what it prints, what it leaves behind, and its exit codes."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.cells import cell_len
from typer.testing import CliRunner

import fedgradnorm as fgn
import flat
from experiments.small_config import small_config
from fedgradnorm._cli import app, output
from fedgradnorm._errors import RankLost
from fedgradnorm._runs.manifest import read_manifest
from fedgradnorm.experiments import load_config
from fedgradnorm.experiments._config.config_file import build
from fedgradnorm.experiments._execute import execute


def cli(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def one_line(*words, code=2):
    result = cli(*words)
    assert result.exit_code == code, result.exception
    assert len(result.stderr.splitlines()) == 1
    return result.stderr


LONG = "a" * 5000


@pytest.mark.parametrize(
    "words",
    [
        ("init", LONG),
        ("compare", "--from", LONG),
        ("export", LONG, "a", "a.pt2"),
        ("run", LONG),
        ("federation", "init", LONG, "--clients", "a,b"),
        ("report", LONG),
    ],
)
def test_a_path_that_is_too_long_is_one_line(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    line = one_line(*words)
    assert "File name too long" in line
    assert len(line) < 500
    line = one_line("federation", "init", "fed", "--clients", LONG)
    assert "at most 100 characters" in line
    assert not any(tmp_path.iterdir())


def test_a_null_byte_in_a_path_is_one_line(tmp_path):
    config = small_config(tmp_path)
    for words in (("compare", config, "--seeds", 1), ("reproduce", "table2")):
        assert "null byte" in one_line(*words, "--out", "a\0b")


def test_a_rank_that_lost_another_says_so(tmp_path, monkeypatch):
    """Rank 0 speaks for all, but it may be the one that died."""

    def lost(*_, **__):
        raise RankLost("rank 1 of 2: another rank has died")

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr("fedgradnorm.experiments._config.config_file.load_config", lost)
    try:
        assert "another rank has died" in one_line("run", small_config(tmp_path), code=1)
    finally:
        output.out.quiet = output.err.quiet = False


def refused(tmp_path, *words, code=2):
    """The one line of an error that left nothing behind."""
    before = sorted(tmp_path.rglob("*"))
    result = cli(*words)
    assert result.exit_code == code, result.output
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    assert sorted(tmp_path.rglob("*")) == before
    return lines[0]


@pytest.fixture
def config(tmp_path):
    return small_config(tmp_path)


def test_help_and_version():
    for words in ([], ["run"], ["resume"], ["compare"], ["report"], ["methods"], ["demo"],
                  ["benefit"], ["reproduce"], ["export"], ["init"], ["data", "show"]):  # fmt: skip
        result = cli(*words, "--help")
        assert result.exit_code == 0
        assert "Usage" in result.stdout
    assert cli("--version").stdout.strip() == f"fedgradnorm {fgn.__version__}"


def test_run_then_resume_then_report(config, tmp_path):
    result = cli("run", config, "rounds=4", "seed=3")
    assert result.exit_code == 0, result.output
    folder = tmp_path / "runs" / "small-fedgradnorm-seed3"
    assert str(folder) in result.stdout
    assert "MAE" in result.stdout
    assert fgn.load(folder).manifest["rounds"] == 4
    again = cli("resume", folder)
    assert again.exit_code == 0
    assert "is finished" in again.stdout
    drawn = cli("report", folder)
    assert drawn.exit_code == 0
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    assert "page: " in drawn.stdout
    assert cli("run", config, "seed=3").exit_code == 0
    assert (tmp_path / "runs" / "small-fedgradnorm-seed3-2").is_dir()


def test_a_warning_is_shown_once(config, tmp_path):
    """In a process without log handlers, where Python prints what nobody else shows."""
    words = ["run", config, "lr=1e9", "local.head_optimizer=sgd"]
    done = subprocess.run(
        [sys.executable, "-m", "fedgradnorm", *map(str, words)],
        cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "COLUMNS": "300"},
    )  # fmt: skip
    said = [line for line in done.stderr.splitlines() if "client 'value' diverges" in line]
    assert len(said) == 1, done.stderr


def test_compare(config, tmp_path):
    result = cli("compare", config, "--methods", "fedrep, fedgradnorm", "--seeds", 2)
    assert result.exit_code == 0, result.output
    assert "over 2 seeds" in result.stdout
    assert "±" in result.stdout
    folder = tmp_path / "runs" / "small-compare"
    assert (folder / "figures" / "curves.pdf").exists()
    assert {path.suffix for path in (folder / "tables").iterdir()} == {".csv", ".md", ".tex"}
    assert "round" not in cli("compare", config, "-m", "fedrep,fedgradnorm", "-s", 2).stderr
    again = cli("compare", "--from", folder, "--baseline", "fedgradnorm", "--out", tmp_path / "o")
    assert again.exit_code == 0, again.output
    assert "epochs to fedgradnorm's loss" in (tmp_path / "o" / "tables" / "tasks.md").read_text()


def test_compare_a_method_with_a_variant_of_it(config, tmp_path):
    named = "fedrep, fedgradnorm weighting.lr=0.5, fedgradnorm"
    result = cli("compare", config, "-m", named, "-b", "fedgradnorm")
    assert result.exit_code == 0, result.output
    table = (tmp_path / "runs" / "small-compare" / "tables" / "tasks.md").read_text()
    assert "| fedgradnorm weighting.lr=0.5 |" in table
    assert "epochs to fedgradnorm's loss" in table
    refused = cli("compare", config, "-m", named, "-b", "fedgradnorm weighting.lr=0.5")
    assert refused.exit_code == 2
    assert "unknown method" in refused.stderr


@pytest.mark.slow
def test_compare_in_several_processes_says_what_failed_and_shows_the_rest(config, tmp_path):
    words = ["local.head_optimizer=sgd", "server.server_optimizer=sgd"]
    sweep = "sweep.lr=[0.01,1e30]"
    result = cli("compare", config, *words, sweep, "-m", "fedrep", "--jobs", 2)
    assert result.exit_code == 1, result.output
    assert "fedrep lr=0.01 seed 0: done" in result.stderr
    assert "1 of 2 runs failed (the others are done): fedrep lr=1e+30" in result.stderr
    assert "lr=1e+30-seed0 is not finished" in result.stderr
    assert "Sweep over lr" in result.stdout


BENEFIT = ["data.validation_share=0.25", "keep_best=true", "rounds=8"]


def test_benefit(config, tmp_path):
    result = cli("benefit", config, *BENEFIT, "--seeds", 2)
    assert result.exit_code == 0, result.output
    assert "Joining helps " in result.stdout
    assert "fedgradnorm against alone, mean over 2 seeds" in result.stdout
    assert "local seed 1: done; 4 of 4 runs done" in result.stderr
    assert "keep = 'last'" not in result.stderr
    folder = tmp_path / "runs" / "small-benefit"
    names = sorted(path.name for path in folder.iterdir())
    assert names == [
        "benefit.csv", "fedgradnorm-seed0", "fedgradnorm-seed1", "local-seed0", "local-seed1",
        "report.html",
    ]  # fmt: skip
    assert "Benefit over training alone" in (folder / "report.html").read_text()
    table = pd.read_csv(folder / "benefit.csv")
    assert list(table.client) == ["class", "value"]
    again = cli("benefit", config, *BENEFIT, "--seeds", 2)
    assert "round" not in again.stderr
    assert again.stdout == result.stdout


def test_benefit_tries_heads(config, tmp_path):
    first, other = 'train = "class.npz"', 'task = "regression"\ntrain = "value.npz"'
    same = 'task = "classification"\ntask_name = "it"\ntrain = "class.npz"'
    text = config.read_text().replace(first, f'{first}\ntask_name = "it"').replace(other, same)
    config.write_text(text)
    words = [*BENEFIT, "data.seed=0", "--try-heads", "--seeds", 2]
    result = cli("benefit", config, *words)
    assert result.exit_code == 0, result.output
    assert "Validation picks " in result.stdout
    assert "8 of 8 runs done" in result.stderr
    folder = tmp_path / "runs" / "small-benefit"
    table = pd.read_csv(folder / "benefit.csv")
    (named,) = set(table.method)
    assert f"{named} against alone, mean over 2 seeds" in result.stdout
    page = (folder / "report.html").read_text()
    assert "fedgradnorm sharing.head_own=bias sharing.heads=task" in page
    again = cli("benefit", config, *words)
    assert again.stdout == result.stdout
    assert "round" not in again.stderr


def test_benefit_says_what_python_says_and_by_loss(config, tmp_path):
    config_ = load_config(config, BENEFIT)
    network, clients, weighting, settings = build(config_)
    given = {k: v for k, v in asdict(settings).items() if k != "share"}
    found = flat.benefit(network, clients, weighting=weighting, by="loss", **given)
    assert cli("benefit", config, *BENEFIT, "--by", "loss").exit_code == 0
    table = pd.read_csv(tmp_path / "runs" / "small-benefit" / "benefit.csv")
    assert list(table.metric) == ["cross-entropy", "squared error"]
    for column in ("alone", "joined", "gain", "low", "high"):
        assert list(table[column]) == pytest.approx(list(found.table[column]))


def test_benefit_alone_has_what_the_method_fixes_but_not_what_takes_a_server(config, tmp_path):
    """FedBABU's heads stay as they are until the end, alone too; nobody alone tunes afterwards."""
    words = ["method=fedbabu", "personalization.personalize.steps=3", *BENEFIT]
    assert cli("benefit", config, *words).exit_code == 0
    stored = fgn.load(tmp_path / "runs" / "small-benefit" / "local-seed0").manifest["settings"]
    assert (stored["head_steps"], stored["final_head_steps"]) == (0, 200)
    assert stored["personalize"] is None


@pytest.mark.slow
def test_benefit_in_two_processes_warns_once_where_both_overfit(config, tmp_path):
    result = cli("benefit", config, "--jobs", 2)
    assert result.exit_code == 0, result.output
    assert "fedgradnorm seed 0: done" in result.stderr
    words = " ".join(result.stderr.split())
    assert words.count("both trainings end at the last round") == 1
    assert "set validation examples (validation_share), keep_best and early_stopping" in words


def test_benefit_stopped_goes_on(config, tmp_path, monkeypatch):
    @contextmanager
    def stopping():
        def watch(news):
            if any(
                "local" in one.trial.title and one.event and one.event.round == 3 for one in news
            ):
                raise KeyboardInterrupt

        yield watch

    whole = cli("benefit", config, *BENEFIT, "--out", tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr("fedgradnorm._cli.compare_commands.showing_runs", stopping)
        stopped = cli("benefit", config, *BENEFIT, "--out", tmp_path / "part")
    assert stopped.exit_code == 130
    assert "continue with: the same command" in stopped.stderr
    assert cli("benefit", config, *BENEFIT, "--out", tmp_path / "part").exit_code == 0
    left, right = (tmp_path / name / "benefit.csv" for name in ("whole", "part"))
    assert left.read_bytes() == right.read_bytes()
    assert whole.exit_code == 0


def test_a_warning_that_all_runs_have_in_common_is_shown_once(config, tmp_path):
    config.write_text(config.read_text().replace('"value.npz"', '"far.npz"'))
    with np.load(config.parent / "value.npz") as value:
        np.savez(config.parent / "far.npz", x=value["x"], y=1e4 * value["y"])
    result = cli("compare", config, "--methods", "fedrep,fedgradnorm", "--out", tmp_path / "o")
    assert result.exit_code == 0, result.stderr
    assert " ".join(result.stderr.split()).count("far from the size of 1") == 1


def test_benefit_refuses(config, tmp_path):
    assert "shares nothing" in refused(tmp_path, "benefit", config, "method=local")
    assert "at least 1, not 0" in refused(tmp_path, "benefit", config, "--seeds", 0)
    assert "leave [sweep] out" in refused(tmp_path, "benefit", config, "sweep.lr=[0.1]")
    assert "--by" in refused(tmp_path, "benefit", config, "--by", "auc")
    by_validation = [*BENEFIT, "--try-heads"]
    assert "share a task" in refused(tmp_path, "benefit", config, *by_validation)
    text = config.read_text().replace("test_share = 0.25\n", "")
    config.write_text(text)
    assert "no test rows" in refused(tmp_path, "benefit", config)


def test_reproduce_in_small(tmp_path):
    words = ["data.samples=150", "rounds=2", 'network={name="mlp",widths=[4]}']
    result = cli("reproduce", "fig3", *words, "--seeds", 1, "--device", "cpu", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert len(list(tmp_path.glob("*/run.json"))) == 3
    assert "one seed" in result.stdout
    assert (tmp_path / "figures" / "curves.png").exists()


EVERY = [
    'data={source="faces",samples=40}', 'network={name="mlp",widths=[4]}', "rounds=2",
    'compare.methods=["fedrep","fedprox","local"]', "--seeds", 1, "--device", "cpu",
]  # fmt: skip


@pytest.mark.slow
def test_every_method_on_both_data_sets(tmp_path):
    result = cli("reproduce", "methods", *EVERY, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("methods-*/*/run.json")}
    assert len(before) == 6
    assert len(list(tmp_path.glob("methods-*/report.html"))) == 2
    assert cli("reproduce", "methods", *EVERY, "--out", tmp_path).exit_code == 0
    assert before == {path: path.stat().st_mtime_ns for path in before}  # finished runs are kept


@pytest.mark.slow
def test_what_fails_on_one_data_set_does_not_stop_the_other(tmp_path):
    wild = 'compare.own.fedprox.local.head_optimizer={name="sgd",lr=1e38}'
    result = cli("reproduce", "methods", *EVERY, wild, "--out", tmp_path)
    assert result.exit_code == 1
    assert "fedprox" in result.stderr
    assert len(list(tmp_path.glob("methods-radcom/*/run.json"))) == 3
    assert (tmp_path / "methods-radcom" / "report.html").exists()


def test_every_method_has_one_line_of_the_list(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli("methods").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 54  # one screen
    names = [line.split()[0] for line in lines if line.startswith("  ")]
    assert sorted(names) == sorted(fgn.methods())


def test_a_method_is_explained_by_itself(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for name, method in fgn.methods().items():
        text = cli("methods", name).stdout
        assert max(map(cell_len, text.splitlines())) <= 80
        assert "\\" not in text  # LaTeX
        words = " ".join(text.split())
        assert method.source.split(",")[0] in words
        for key, option in method.options().items():
            assert f"{key} ({'required' if option.default is option.empty else ''}" in words
    text = cli("methods", "fedgradnorm").stdout
    assert "gamma (0.9)" in text


def test_configs_of_the_package_are_listed_printed_and_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    listed = cli("configs").stdout
    for name in ("demo", "table2", "radcom", "stations"):
        assert f"\n{name} " in f"\n{listed}"
    text = cli("configs", "radcom").stdout
    Path("mine.toml").write_text(text)
    assert load_config("mine.toml").data == load_config("radcom").data
    assert "did you mean 'table2'" in one_line("configs", "table3")
    assert "did you mean 'radcom'" in one_line("run", "configs/radcom.toml")
    small = ("data.samples=90", "rounds=2", "network.widths=[4]", "network.name=mlp")
    done = cli("run", "radcom", *small, "data.cache=false")
    assert done.exit_code == 0, done.output


def test_help_is_in_groups():
    text = cli("--help").stdout
    titles = re.findall(r"─ (\w+) ─", text)
    assert titles == ["Options", "Start", "Train", "Look", "Federate", "Data"]


def test_demo_in_small(tmp_path):
    result = cli("demo", "data.samples=800", "epochs=2", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    for word in ("fedrep", "fedgradnorm-direct", "modulation", "snr", "One seed cannot tell"):
        assert word in result.stdout
    assert (tmp_path / "demo" / "report.html").exists()
    assert len(list((tmp_path / "demo").glob("*/run.json"))) == 3


@pytest.mark.slow
def test_the_demo_learns_every_task(tmp_path):
    quick = ("data.samples=12000", "lr=1e-3")
    assert cli("demo", *quick, "--out", tmp_path).exit_code == 0
    table = fgn.load(tmp_path / "demo" / "fedgradnorm-direct-seed0").summary()
    names = ["modulation", "signal", "anomaly"]
    assert (table.accuracy[names] > table.baseline[names] + 0.04).all()
    assert table.mae["snr"] < 0.6 * table.baseline["snr"]


def test_data_commands(tmp_path, config):
    shown = cli("data", "show", "faces", "samples=100", "test_samples=20")
    assert shown.exit_code == 0, shown.output
    assert "landmark" in shown.stdout
    own = cli("data", "show", config)
    assert own.exit_code == 0
    assert "2 classes" in own.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["epoch=3"], "did you mean 'epochs'"),
        (["method=fedrap"], "did you mean 'fedrep'"),
        (["weighting.gamma=-1"], "gamma must be >= 0"),
        (["sharing.norm_layer=nowhere"], "norm layer 'nowhere'"),
        (["compute.device=cuda:77"], "device 'cuda:77' cannot be used"),
        (["local.first_loss=log_classes"], "log_classes"),
        (["server.participation=[\"nobody\"]"], "client in participation 'nobody'"),
        (["data.clients=[]"], "no clients"),
        (["data.clients=[{name=\"a\"}]"], "needs the option"),
        (["network={name=\"network2\"}"], "cannot take inputs of shape (3,)"),
        (["network.name=nowhere:f"], "--allow-module nowhere"),
        (["nonsense"], "is not key=value"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["run", "compare"])
def test_bad_config(config, tmp_path, command, words, says):
    assert says in refused(tmp_path, command, config, *words)


def test_bad_files(tmp_path):
    assert "no such file" in refused(tmp_path, "run", tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("= 3")
    assert "not TOML" in refused(tmp_path, "run", tmp_path / "bad.toml")
    assert "cannot be read" in refused(tmp_path, "run", tmp_path)


X = np.ones((12, 3), np.float32)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"class_x": X[:0], "class": np.zeros(0, int)}, "empty"),
        ({"class_x": X, "class": np.zeros(7, int)}, "one row per sample"),
        ({"class_x": np.where(X, np.nan, X), "class": np.arange(12) % 2}, "nan"),
        ({"value_x": np.where(X, np.inf, X), "value": np.arange(12.0)}, "inf"),
        ({"class_x": X, "class": np.arange(12) % 2, "classes": 99}, "99 classes"),
        ({"class_x": X, "class": np.arange(12), "classes": 3}, "3"),
    ],
)
def test_bad_data(tmp_path, arrays, says):
    classes = arrays.pop("classes", None)
    path = small_config(tmp_path, **arrays)
    if classes:
        path.write_text(path.read_text().replace(
            'task = "classification"', f'task = "classification"\nclasses = {classes}'
        ))  # fmt: skip
    assert says in refused(tmp_path, "run", path)


def test_two_clients_of_one_name(config, tmp_path):
    config.write_text(config.read_text().replace('"value"', '"class"'))
    assert "two clients are named 'class'" in refused(tmp_path, "run", config)


def test_bad_places(config, tmp_path):
    assert "did you mean" in refused(tmp_path, "methods", "fedrapp")
    assert "did you mean 'table2'" in refused(tmp_path, "reproduce", "tabel2")
    assert "no config to train" in refused(tmp_path, "compare")
    assert "not both" in refused(tmp_path, "compare", config, "--from", tmp_path)
    assert "holds none" in refused(tmp_path, "compare", "--from", tmp_path / "none")
    assert "no run folder" in refused(tmp_path, "resume", tmp_path / "none")
    assert "is no run folder" in refused(tmp_path, "report", tmp_path / "none")
    assert "must end in" in refused(tmp_path, "report", tmp_path, "--out", "x.gif")
    assert "did you mean 'radcom'" in refused(tmp_path, "data", "show", "radcmo")
    assert "no such file" in refused(tmp_path, "data", "show", "radcom", f"path={tmp_path}/n")
    assert "nowhere" in refused(tmp_path, "data", "show", "mtfl", "path=nowhere.zip")
    (tmp_path / "file").write_text("")
    inside = f"output.folder={tmp_path}/file/runs"
    assert "Not a directory" in refused(tmp_path, "run", config, inside)


def test_failed_training_names_the_checkpoint(config, tmp_path):
    words = ["lr=1e30", "local.head_optimizer=sgd", "server.server_optimizer=sgd"]
    result = cli("run", config, *words)
    assert result.exit_code == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert "checkpoint.safetensors" in last
    assert (tmp_path / "runs" / "small-fedgradnorm-seed0" / "checkpoint.safetensors").exists()


def test_warnings_reach_the_terminal_once(config, tmp_path):
    config.write_text(config.read_text().replace('train = "class.npz"', (
        'train = "class.npz"\non_bad = "drop"'
    )))  # fmt: skip
    with np.load(tmp_path / "class.npz") as arrays:
        x, y = arrays["x"].copy(), arrays["y"]
    x[3] = np.nan
    np.savez(tmp_path / "class.npz", x=x, y=y)
    result = cli("run", config)
    assert result.exit_code == 0
    assert result.stderr.count("WARNING") == 1
    log = (tmp_path / "runs" / "small-fedgradnorm-seed0" / "log.txt").read_text()
    assert log.count("WARNING") == 1


def shell(*words, cwd, **rest):
    command = [sys.executable, "-W", "error", "-m", "fedgradnorm", *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=cwd, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **rest,
    )  # fmt: skip


@pytest.mark.slow
def test_in_a_process_of_its_own(config, tmp_path):
    process = shell("run", config, "output.folder=here", cwd=tmp_path)
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert "run folder: here/small-fedgradnorm-seed0" in out
    assert "round 6/6" in errors
    process = shell("run", config, "epoch=3", cwd=tmp_path)
    out, errors = process.communicate(timeout=300)
    assert (process.returncode, out, errors.count("\n")) == (2, "", 1)


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on_and_resume_ends_the_same(config, tmp_path):
    whole = execute_config(config, tmp_path / "whole", 1200)
    seldom = "checkpoints.every=50"
    process = shell("run", config, "rounds=1200", seldom, cwd=tmp_path)
    folder = tmp_path / "runs" / "small-fedgradnorm-seed0"
    wait_for(folder / "checkpoint.safetensors", process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert f"continue with: fedgradnorm resume {folder}" in errors.splitlines()[-1]
    assert not read_manifest(folder)["finished"]
    assert cli("resume", folder).exit_code == 0
    assert (folder / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()


def execute_config(config, folder: Path, rounds: int) -> Path:
    from fedgradnorm.experiments._config.config_file import load_config

    changes = [f"rounds={rounds}", "checkpoints.every=50"]
    execute(load_config(config, changes), folder)
    return folder


def wait_for(path: Path, process) -> None:
    until = time.monotonic() + 300
    while not path.exists() and process.poll() is None:
        assert time.monotonic() < until, f"no {path.name}"
        time.sleep(0.02)
