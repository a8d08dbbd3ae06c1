"""TensorBoard and MLflow, read back with their own readers."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedgradnorm as fgn
import flat
import toys
from experiments.small_config import small_config
from fedgradnorm._errors import ConfigError
from fedgradnorm._runs.history import read_history
from fedgradnorm._training import trackers
from fedgradnorm._training.trackers import SILENT_MLFLOW as SILENT
from fedgradnorm._training.trackers import open_sink, scalars
from fedgradnorm.experiments._config.config_file import load_config
from fedgradnorm.experiments._execute import execute

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
]  # the readers warn about their own libraries


def wanted(folder: Path) -> dict[tuple[str, int], float]:
    """Every number of a run's history by name and round."""
    rows = read_history(folder / "metrics.csv").rows
    return {(name, row["round"]): value for row in rows for name, value in scalars(row)}


def in_tensorboard(folder: Path) -> dict[tuple[str, int], float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {
        (tag, event.step): event.value
        for tag in events.Tags()["scalars"]
        for event in events.Scalars(tag)
    }


def mlflow_runs(folder: Path):
    for name, value in SILENT.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("small")
    return client, client.search_runs([experiment.experiment_id], order_by=["start_time"])


def in_mlflow(client, run) -> dict[tuple[str, int], float]:
    return {
        (name, metric.step): metric.value
        for name in run.data.metrics
        for metric in client.get_metric_history(run.info.run_id, name)
    }


def same(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=1e-6), key


@pytest.fixture
def config(tmp_path):
    return lambda kind, *words: load_config(
        small_config(tmp_path), [f"output.tracking={kind}", *words]
    )


def stop_after(number):
    def stop(event):
        if event.round == number:
            raise KeyboardInterrupt

    return stop


def test_tensorboard_has_every_number_of_a_run_that_was_stopped_and_resumed(config, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(fgn.Interrupted):
        execute(config("tensorboard"), folder, progress=stop_after(3))
    assert execute(config("tensorboard"), folder, resume=True).finished
    same(in_tensorboard(folder / "tensorboard"), wanted(folder))


@pytest.mark.parametrize("content", [b"no database", b"SQLite format 3\0" + bytes(4096)])
def test_a_damaged_file_of_mlflow_is_one_line(config, tmp_path, content):
    (tmp_path / "mlflow.db").write_bytes(content)
    with pytest.raises(fgn.TrainingError, match=r"mlflow cannot record .*output\.tracking"):
        execute(config("mlflow"), tmp_path / "run")


def test_mlflow_has_every_number_and_the_config(config, tmp_path):
    folder = tmp_path / "runs" / "run one"
    with pytest.raises(fgn.Interrupted):
        execute(config("mlflow"), folder, progress=stop_after(3))
    client, runs = mlflow_runs(tmp_path / "runs")
    assert [run.info.status for run in runs] == ["KILLED"]
    execute(config("mlflow"), folder, resume=True)
    other = tmp_path / "runs" / "run two"
    execute(config("mlflow", "seed=1", "method=fedrep"), other)
    client, runs = mlflow_runs(tmp_path / "runs")
    assert [run.info.run_name for run in runs] == ["run one", "run two"]
    assert [run.info.status for run in runs] == ["FINISHED", "FINISHED"]
    same(in_mlflow(client, runs[0]), wanted(folder))
    same(in_mlflow(client, runs[1]), wanted(other))
    assert runs[0].data.params["weighting.gamma"] == "0.7"
    assert runs[1].data.params["method"] == "fedrep"
    assert not (Path.cwd() / "mlruns").exists()


def test_a_sink_is_a_progress_callback(tmp_path):
    with open_sink("tensorboard", tmp_path / "run", {"note": "by hand"}) as sink:
        run = flat.train(toys.network(), toys.clients(), rounds=3, batch_size=8, progress=sink)
    found = in_tensorboard(tmp_path / "run" / "tensorboard")
    expected = {(n, row["round"]): v for row in run.table.rows for n, v in scalars(row)}
    same(found, {key: value for key, value in expected.items() if not math.isnan(value)})


def test_failed_training_is_marked(config, tmp_path):
    words = ["lr=1e30", "local.head_optimizer=sgd", "server.server_optimizer=sgd"]
    with pytest.raises(fgn.TrainingError):
        execute(config("mlflow", *words), tmp_path / "runs" / "run")
    _, runs = mlflow_runs(tmp_path / "runs")
    assert [run.info.status for run in runs] == ["FAILED"]


def test_several_processes_write_to_one_mlflow(config, tmp_path):
    from fedgradnorm.experiments._compare import compare

    folders = compare(config("mlflow"), ["fedrep", "fedgradnorm"], 1, jobs=2)
    client, runs = mlflow_runs(folders[0].parent)
    assert {run.info.run_name for run in runs} == {folder.name for folder in folders}
    for run in runs:
        same(in_mlflow(client, run), wanted(folders[0].parent / run.info.run_name))


@pytest.mark.parametrize("kind", ["tensorboard", "mlflow"])
def test_without_the_package_nothing_is_trained_and_the_way_out_is_named(
    config, tmp_path, kind, monkeypatch
):
    monkeypatch.setattr(trackers, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install fedgradnorm\[tracking\]"):
        execute(config(kind), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_unknown_tracking(config):
    with pytest.raises(ConfigError, match="did you mean 'mlflow'"):
        config("mlflo")


OFFLINE = """
import socket, sys, time
def refuse(*args, **rest):
    print("CALLED", args, flush=True)
    raise OSError("no network")
socket.getaddrinfo = socket.create_connection = socket.socket.connect = refuse
from fedgradnorm.experiments import load_config
from fedgradnorm.experiments import run as execute
execute(load_config(sys.argv[1], ["output.tracking=" + sys.argv[2]]), sys.argv[3])
time.sleep(2)
if sys.argv[2] == "mlflow":
    from mlflow.telemetry.client import get_telemetry_client
    print("telemetry", get_telemetry_client())
print("done")
"""


@pytest.mark.parametrize("kind", ["tensorboard", "mlflow"])
def test_nothing_leaves_the_machine(tmp_path, kind):
    # MLflow keeps quiet under pytest by itself: look at it without.
    quiet = {"CI", "PYTEST_CURRENT_TEST", *SILENT}
    environment = {key: value for key, value in os.environ.items() if key not in quiet}
    command = [sys.executable, "-c", OFFLINE, str(small_config(tmp_path)), kind,
               str(tmp_path / "run")]  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "CALLED" not in done.stdout
    assert done.stdout.endswith("done\n")
    if kind == "mlflow":
        assert "telemetry None" in done.stdout


def test_only_the_sinks_import_them():
    code = "import sys; import fedgradnorm.experiments._execute; import fedgradnorm._cli\n"
    code += "assert not {'mlflow', 'tensorboard'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
