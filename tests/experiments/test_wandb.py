"""Weights & Biases, offline, read back from its own file."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.small_config import small_config
from fedgradnorm._runs.history import read_history
from fedgradnorm._training.trackers import SILENT_WANDB as SILENT
from fedgradnorm._training.trackers import open_sink, scalars
from fedgradnorm.experiments._config.config_file import load_config

pytestmark = pytest.mark.slow

PROGRAM = """
import socket, sys

def refuse(*_):
    raise AssertionError("W&B must not leave the machine")

socket.getaddrinfo = socket.create_connection = refuse
from fedgradnorm.experiments import load_config, run
run(load_config(sys.argv[1], ["output.tracking=wandb"]), sys.argv[2])
"""


def found_in(folder: Path) -> tuple[dict[tuple[str, int], float], dict]:
    """Every number by name and round, and the config, from W&B's file."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    (file,) = folder.rglob("*.wandb")
    store, numbers, config = DataStore(), {}, {}
    store.open_for_scan(str(file))
    while (data := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        items = {i.key or "/".join(i.nested_key): i.value_json for i in record.history.item}
        step = json.loads(items.pop("_step", "0"))
        numbers |= {(k, step): json.loads(v) for k, v in items.items() if not k.startswith("_")}
        config |= {i.key: json.loads(i.value_json) for i in record.run.config.update}
    return numbers, config


@pytest.mark.filterwarnings("ignore")  # W&B's reader warns about its own libraries
def test_wandb_has_every_number_and_the_config_and_stays_on_the_machine(tmp_path):
    pytest.importorskip("wandb")
    config, folder = small_config(tmp_path), tmp_path / "runs" / "run one"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WANDB")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(config), str(folder)],
        capture_output=True, text=True, cwd=tmp_path, env={**environment, "HTTPS_PROXY": "no:1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "wandb" not in re.sub(r"wandb-runs", "", done.stdout + done.stderr)
    numbers, written = found_in(tmp_path / "runs" / "wandb-runs")
    rows = read_history(folder / "metrics.csv").rows
    expected = {(n, row["round"]): v for row in rows for n, v in scalars(row)}
    assert numbers.keys() == expected.keys()
    assert all(numbers[key] == pytest.approx(value) for key, value in expected.items())
    assert written["weighting.gamma"] == "0.7"
    assert load_config(config, ["output.tracking=wandb"]).output.tracking == "wandb"


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    from fedgradnorm import ConfigError
    from fedgradnorm._training import trackers

    monkeypatch.setattr(trackers, "find_spec", lambda _: None)
    sink = open_sink("wandb", tmp_path, {})
    with pytest.raises(ConfigError, match=r"pip install fedgradnorm\[wandb\]"), sink:
        pass
    assert SILENT["WANDB_ERROR_REPORTING"] == "false"
