"""Files whose rows are no plain table: masks, first parts; and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedgradnorm as fgn
from data.small_tables import client_from_files
from fedgradnorm.experiments import load_config
from fedgradnorm.experiments import run as execute

ROWS, SEQUENCES = 60, 20
GENERATOR = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "load": GENERATOR.normal(size=ROWS),
        "heat": GENERATOR.normal(1e6, 5, ROWS),
        "first": GENERATOR.integers(0, 9, ROWS),
        "last": GENERATOR.integers(0, 9, ROWS),
    }
)
FRAME["hours"] = 500 + 40 * FRAME["load"]
FRAME["state"] = np.where(FRAME.index // 3 % 2, "worn", "fine")
LONG: dict[str, Any] = {
    "task": "classification",
    "train": FRAME,
    "inputs": ["load", "heat"],
    "targets": "state",
}


def test_several_tasks_share_their_inputs() -> None:
    tasks = {
        "state": {"task": "binary", "targets": "state"},
        "hours": {"task": "regression", "targets": "hours"},
    }
    common = {"train": FRAME, "tasks": tasks, "standardize": True}
    client = client_from_files("a", **common, inputs=["load", "heat"]).client
    assert client.rows[0].train[0] is client.rows[1].train[0]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    np.savez(
        tmp_path / "rows.npz",
        tokens=GENERATOR.integers(0, 9, (SEQUENCES, 7)),
        values=GENERATOR.normal(size=(SEQUENCES, 7, 2)),
        still=GENERATOR.normal(size=(SEQUENCES, 3)),
        y=np.arange(SEQUENCES) % 2,
    )
    return tmp_path / "rows.npz"


def test_masks_and_tags_come_from_an_archive(tmp_path: Path) -> None:
    x = GENERATOR.normal(size=(20, 1, 6, 5))
    names = np.where(x[:, 0] > 0, "on", "off")
    names[0, 0, 0] = ""  # which nobody labelled
    two = np.stack([x[:, 0], 2 * x[:, 0]], axis=1)
    np.savez(tmp_path / "m.npz", x=x, names=names, once=x[:, 0], twice=two)
    path: dict[str, Any] = {"train": tmp_path / "m.npz", "shape": [6, 5]}
    mask = client_from_files("m", task="classification", y_key="names", **path).client
    assert mask.labels == ("off", "on")
    assert mask.train[1].isnan().sum() == 1
    assert torch.equal(mask.train[1][1:] == 1, torch.as_tensor(x[1:, 0] > 0))
    above = client_from_files("b", task="binary", y_key="once", above=0.0, **path).client
    assert torch.equal(above.train[1].reshape(20, 6, 5) == 1, torch.as_tensor(x[:, 0] > 0))
    image = client_from_files("i", task="regression", y_key="twice", standardize=True, **path)
    assert image.client.task.outputs == 2
    run = fgn.train(nn.Conv2d(1, 3, 1), [mask, image.client], rounds=2)
    assert run.predict("m", x, kind="label").shape == (20, 6, 5)
    assert run.predict("i", x).shape == (20, 2, 6, 5)


CONFIG = """\
rounds = 2

[data]
source = "files"
standardize = true

[[data.clients]]
name = "plain"
task = "regression"
train = "rows.csv"
inputs = ["load", "heat", "first", "last"]
targets = "hours"

[[data.clients]]
name = "wide"
task = "classification"
train = "rows.npz"
x_key = "still"
stem = { widths = [6, 4], activation = "tanh" }

[network]
name = "mlp"
widths = [5]

"""


def test_a_config_gives_a_client_its_first_part(tmp_path: Path, archive: Path) -> None:
    FRAME.to_csv(tmp_path / "rows.csv", index=False)
    (tmp_path / "run.toml").write_text(CONFIG)
    run = execute(load_config(tmp_path / "run.toml"), tmp_path / "out")
    assert [type(layer).__name__ for layer in run.clients["wide"].stem][-1] == "Tanh"
    again = fgn.load(tmp_path / "out")
    x = np.load(archive)["still"]
    assert np.array_equal(again.predict("wide", x), run.predict("wide", x))
    only = CONFIG[: CONFIG.index("[[data")] + CONFIG[CONFIG.rindex("[[data") :]
    (tmp_path / "run.toml").write_text(only)
    assert (
        execute(load_config(tmp_path / "run.toml"), tmp_path / "other").network[1].in_features == 4
    )


def test_what_cannot_be_is_refused(archive: Path) -> None:
    rows: dict[str, Any] = {"task": "classification", "train": archive, "x_key": "values"}
    table: dict[str, Any] = LONG
    wrong: list[tuple[dict[str, Any], str]] = [
        ({**table, "inputs": {"a": ["load"]}}, "several named inputs in Python"),
        ({**table, "shape": [3]}, "shape is for arrays in an .npz file"),
        ({**rows, "inputs": ["values"]}, "an .npz file has no columns"),
        ({**rows, "x_key": "value"}, "no array 'value'.*did you mean 'values'"),
        ({**rows, "y_key": "tokens"}, r"for a label at each place say shape = \[7\]"),
        ({**rows, "y_key": "tokens", "shape": [6]}, r"must hold labels of shape \(6,\) a row"),
        ({**rows, "stem": [4]}, r"stem must be a table such as \{ widths = \[16, 8\] \}"),
        ({**rows, "stem": {"widths": [4], "depth": 2}}, "key of the stem of client 'a' 'depth'"),
    ]
    for options, says in wrong:
        with pytest.raises(fgn.FedGradNormError, match=says):
            client_from_files("a", **options)
