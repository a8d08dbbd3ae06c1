"""Weights & Biases, offline, read back from its own file."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from experiments.small_config import small_config
from fedgradnorm._runs.csv_table import read_rows
from fedgradnorm._training.sinks import open_sink, scalars
from fedgradnorm._training.sinks.wandb_sink import SILENT
from fedgradnorm.experiments._config.config_file import load_config

PROGRAM = """
import json, socket, sys
from pathlib import Path

def refuse(*_):
    raise AssertionError("W&B must not leave the machine")

socket.getaddrinfo = socket.create_connection = refuse
from fedgradnorm.experiments import load_config, run
run(load_config(sys.argv[1], ["output.tracking=wandb"]), sys.argv[2])

from wandb.proto import wandb_internal_pb2
from wandb.sdk.internal.datastore import DataStore

(file,) = Path(sys.argv[2]).parent.joinpath("wandb-runs").rglob("*.wandb")
store, numbers, config = DataStore(), [], {}
store.open_for_scan(str(file))
while (data := store.scan_data()) is not None:
    record = wandb_internal_pb2.Record()
    record.ParseFromString(data)
    items = {i.key or "/".join(i.nested_key): i.value_json for i in record.history.item}
    step = json.loads(items.pop("_step", "0"))
    numbers += [(k, step, json.loads(v)) for k, v in items.items() if not k.startswith("_")]
    config |= {i.key: json.loads(i.value_json) for i in record.run.config.update}
Path(sys.argv[3]).write_text(json.dumps([numbers, config]))
"""
"""Trains offline, and reads W&B's own file in the process that has loaded W&B already."""


def test_wandb_has_every_number_and_the_config_and_stays_on_the_machine(tmp_path):
    if find_spec("wandb") is None:
        pytest.skip("wandb is not installed: pip install 'fedgradnorm[wandb]'")
    config, folder, found = small_config(tmp_path), tmp_path / "runs" / "run one", tmp_path / "f"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WANDB")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(config), str(folder), str(found)],
        capture_output=True, text=True, cwd=tmp_path, env={**environment, "HTTPS_PROXY": "no:1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "wandb" not in re.sub(r"wandb-runs", "", done.stdout + done.stderr)
    read, written = json.loads(found.read_text())
    numbers = {(name, step): value for name, step, value in read}
    rows = read_rows(folder / "metrics.csv")
    expected = {(n, row["round"]): v for row in rows for n, v in scalars(row)}
    assert numbers.keys() == expected.keys()
    assert all(numbers[key] == pytest.approx(value) for key, value in expected.items())
    assert written["weighting.gamma"] == "0.7"
    assert load_config(config, ["output.tracking=wandb"]).output.tracking == "wandb"


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    from fedgradnorm import ConfigError
    from fedgradnorm._training import sinks

    monkeypatch.setattr(sinks, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install fedgradnorm\[wandb\]"):
        open_sink("wandb", tmp_path, {})
    assert SILENT["WANDB_ERROR_REPORTING"] == "false"
