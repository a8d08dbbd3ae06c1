"""Binary and multilabel tasks, and weights of classes, from files and from a config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedgradnorm as fgn
from data.small_tables import client_from_files
from fedgradnorm.experiments import load_config, run

ROWS = 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    x = np.random.default_rng(0).normal(size=(ROWS, 3))
    state = np.where(x[:, 0] > 0.7, "broken", "fine")
    tags = (x > [0, 0.5, -0.5]).astype(int)
    level = (x[:, 1] > 0).astype(int) + (x[:, 1] > 1)
    lines = ["a,b,c,state,hot,loud,wet,level"]
    for row, s, t, k in zip(x, state, tags, level, strict=True):
        lines.append(",".join([*(f"{v:.4f}" for v in row), s, *map(str, t), str(k)]))
    (tmp_path / "pumps.csv").write_text("\n".join(lines) + "\n")
    np.savez(tmp_path / "pumps.npz", x=x, y=tags)
    return tmp_path


def load(folder: Path, task: Any, targets: Any, **options: Any) -> Any:
    pieces = {"train": folder / "pumps.csv", "inputs": ["a", "b", "c"], "test_share": 0.25}
    return client_from_files("p", task=task, targets=targets, **{**pieces, **options})


def test_two_labels_become_zero_and_one(folder: Path) -> None:
    usual = load(folder, "binary", "state")
    assert usual.label_names == usual.client.labels == ("broken", "fine")
    turned = load(folder, "binary", "state", positive="broken", pos_weight="balanced")
    assert turned.label_names == ("fine", "broken")
    assert (usual.client.train[1] + turned.client.train[1] == 1).all()
    assert turned.client.task.outputs == 1
    y = turned.client.train[1].double()
    ((zero, one),) = turned.client.task.class_weights()["used"]
    assert one / zero == pytest.approx(float((1 - y).sum() / y.sum()))


def test_columns_of_zeros_and_ones_become_labels(folder: Path) -> None:
    loaded = load(folder, "multilabel", ["hot", "loud", "wet"])
    assert loaded.label_names == ("hot", "loud", "wet")
    assert loaded.client.train[1].shape == (30, 3)
    plain = client_from_files("p", task="multilabel", train=folder / "pumps.npz")
    assert plain.client.task.outputs == 3
    assert plain.label_names is None


@pytest.mark.parametrize(
    ("task", "targets", "options", "said"),
    [
        ("binary", "level", {}, "2 classes asked for.*use task='classification'"),
        ("binary", "state", {"positive": "wet"}, "positive is 'wet', the training labels are"),
        ("binary", "state", {"classes": 2}, "classes is for a classification"),
        ("binary", "state", {"class_weights": "balanced"}, "class_weights is for a classif"),
        ("classification", "state", {"pos_weight": 2.0}, "pos_weight is for a binary or multil"),
        ("classification", "state", {"positive": "fine"}, "positive is for a binary"),
        ("multilabel", ["hot", "level"], {}, "is 2.0; each label must be 0 or 1"),
        ("binary", "state", {"metrics": ["auroq"]}, "did you mean 'auroc'"),
        ("binary", "state", {"metrics": 3}, "metrics must be a list of names"),
        ("multilabels", ["hot", "wet"], {}, "did you mean 'multilabel'"),
        ("classification", "level", {"class_weights": [1, 2]}, "'balanced' or 3 numbers"),
    ],
)
def test_what_does_not_fit_is_named(
    folder: Path, task: Any, targets: Any, options: Any, said: str
) -> None:
    with pytest.raises(fgn.FedGradNormError, match=said):
        load(folder, task, targets, **options)


CONFIG = """
seed = 1
rounds = 3

[data]
source = "files"
inputs = ["a", "b", "c"]
train = "pumps.csv"
test_share = 0.25

[[data.clients]]
name = "state"
task = "binary"
targets = "state"
positive = "broken"
pos_weight = "balanced"
metrics = ["auroc", "f1"]

[[data.clients]]
name = "tags"
task = "multilabel"
targets = ["hot", "loud", "wet"]
pos_weight = [1.0, 2.0, 0.5]

[[data.clients]]
name = "level"
task = "classification"
targets = "level"
class_weights = "balanced"

[network]
name = "mlp"
widths = [8, 4]

[local]
batch_size = 8
"""


def test_a_config_says_it_all(folder: Path) -> None:
    (folder / "pumps.toml").write_text(CONFIG)
    done = run(load_config(folder / "pumps.toml"), folder / "run")
    loaded = fgn.load(folder / "run")
    x = np.random.default_rng(1).normal(size=(5, 3))
    shapes = {"state": (5,), "tags": (5, 3), "level": (5,)}
    for name, shape in shapes.items():
        assert loaded.predict(name, x).shape == shape
        assert (loaded.predict(name, x) == done.predict(name, x)).all()
    assert loaded.history[["auroc", "f1"]].notna().any().all()
    kept = loaded.manifest["clients"]
    assert {name: kept[name]["kind"] for name in kept} == {
        "state": "binary",
        "tags": "multilabel",
        "level": "classification",
    }
    assert kept["tags"]["class_weights"]["given"] == [1.0, 2.0, 0.5]
    assert kept["tags"]["labels"] == ["hot", "loud", "wet"]
    assert loaded.clients["state"].labels == ("fine", "broken")
