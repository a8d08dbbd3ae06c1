"""Files whose inputs stay on the disk: the same clients as in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedgradnorm as fgn
from data.small_tables import client_from_files
from fedgradnorm.experiments import load_config, run
from fedgradnorm.models._streamed import Streamed

ROWS = 60
RNG = np.random.default_rng(1)
X = RNG.normal(size=(ROWS, 3)) * [1.0, 5.0, 100.0] + [0.0, 2.0, 1e6]
TEXTS = np.where(X[:, 0] > 0, "warm", "cold")
SHARES = {"validation_share": 0.2, "test_share": 0.2, "seed": 4}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDGRADNORM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """The same rows in each format."""
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(state=TEXTS, value=X[:, 1] * 2)
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=7)
    (tmp_path / "rows").mkdir()
    for key, values in (("x", X), ("state", TEXTS), ("value", X[:, 1] * 2)):
        np.save(tmp_path / "rows" / f"{key}.npy", values)
    np.savez(tmp_path / "rows.npz", x=X, state=TEXTS, value=X[:, 1] * 2)
    names = ("rows.parquet", "rows", "rows.npz")
    return {name: tmp_path / name for name in names}


def columns(path: Path, target: str) -> dict[str, Any]:
    if path.suffix == ".parquet":
        return {"inputs": ["a", "b", "c"], "targets": target}
    return {"y_key": target}


def assert_alike(lazy: fgn.Client, plain: fgn.Client) -> None:
    for split in ("train", "validation", "test"):
        one, two = getattr(lazy, split), getattr(plain, split)
        assert isinstance(one[0], Streamed)
        assert one[0][:].dtype == torch.float32
        assert torch.allclose(one[0][:], two[0], rtol=1e-6, atol=1e-6)
        assert torch.equal(one[1], two[1])
    assert lazy.labels == plain.labels


@pytest.mark.parametrize("name", ["rows.parquet", "rows"])
@pytest.mark.parametrize("standardize", [False, True])
def test_each_format_gives_the_client_in_memory(
    files: dict[str, Path], name: str, standardize: bool
) -> None:
    for kind, target in (("classification", "state"), ("regression", "value")):
        options: dict[str, Any] = {"task": kind, "standardize": standardize, **SHARES}
        plain = client_from_files("a", train=files["rows.npz"], y_key=target, **options).client
        path = files[name]
        given = {"train": path, **columns(path, target), **options}
        assert_alike(client_from_files("a", **given, stream=True).client, plain)


def test_several_tasks_and_a_split_by_column(files: dict[str, Path], tmp_path: Path) -> None:
    tasks = {
        "state": {"task": "binary", "targets": "state"},
        "value": {"task": "regression", "targets": "value"},
    }
    given: dict[str, Any] = {"train": files["rows.parquet"], "tasks": tasks, "standardize": True}
    lazy, plain = (
        client_from_files("a", **given, stream=stream).client for stream in (True, False)
    )
    for one, two in zip(lazy.rows, plain.rows, strict=True):
        assert torch.allclose(one.train[0][:], two.train[0], atol=1e-6)
        assert torch.equal(one.train[1], two.train[1])
    frame = pd.read_parquet(files["rows.parquet"])
    frame["part"] = np.where(np.arange(ROWS) % 3, "train", "test")
    frame.to_parquet(tmp_path / "parts.parquet")
    cut: dict[str, Any] = {"task": "classification", "targets": "state", "inputs": ["a", "b"]}
    cut |= {"train": tmp_path / "parts.parquet", "split": {"column": "part"}}
    assert len(client_from_files("a", **cut, stream=True).client.test[0]) == ROWS // 3


def test_a_bad_cell_names_file_row_and_column(tmp_path: Path) -> None:
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(value=1.0)
    frame.loc[11, "b"] = np.nan
    frame.to_parquet(tmp_path / "bad.parquet")
    given: dict[str, Any] = {"task": "regression", "targets": "value", "stream": True}
    client = client_from_files("a", train=tmp_path / "bad.parquet", **given).client
    words = r"client 'a', train data, .*bad.parquet, data row 12: column 'b' is nan"
    with pytest.raises(fgn.DataError, match=words):
        client.fingerprint()
    frame.assign(b="text").to_parquet(tmp_path / "bad.parquet")
    with pytest.raises(fgn.DataError, match=r"column 'b' holds .*string"):
        client_from_files("a", train=tmp_path / "bad.parquet", **given)
    with pytest.raises(fgn.DataError, match="no column 'q'"):
        client_from_files("a", train=tmp_path / "bad.parquet", inputs=["q"], **given)


def test_what_a_stream_cannot_do_is_refused(files: dict[str, Path], tmp_path: Path) -> None:
    two: dict[str, Any] = {"task": "classification", "stream": True}
    for options in (
        {"train": files["rows"], "y_key": "state", "on_bad": "drop"},
        {"train": files["rows.parquet"], "targets": "value", "categories": ["state"]},
        {"train": files["rows"], "y_key": "state", "inputs": ["a"]},
        {"train": files["rows"], "y_key": "state", "stream": 1},
    ):
        with pytest.raises(fgn.ConfigError):
            client_from_files("a", **{**two, **options})
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    for path, words in (
        (tmp_path / "rows.csv", "stream reads"),
        (files["rows.npz"], "stream reads"),
        (tmp_path / "none.parquet", "no such file"),
        (files["rows"], r"y\.npy: no such file"),
    ):
        targets = {"targets": "state"} if path.suffix == ".parquet" else {}
        with pytest.raises(fgn.DataError, match=words):
            client_from_files("a", train=path, **targets, **two)


def test_parquet_is_written_to_the_cache_once(files: dict[str, Path], caplog: Any) -> None:
    given: dict[str, Any] = {"task": "classification", "targets": "state", "inputs": ["a", "b"]}
    caplog.set_level("INFO")
    for _ in range(2):
        client_from_files("a", train=files["rows.parquet"], stream=True, **given)
    assert caplog.text.count("writing its 60 rows") == 1


CONFIG = """
rounds = 4

[data]
source = "files"
stream = true

[[data.clients]]
name = "hot"
task = "classification"
train = "rows"
y_key = "state"
test_share = 0.2

[[data.clients]]
name = "level"
task = "regression"
train = "rows"
y_key = "value"
standardize = true

[network]
name = "mlp"
inputs = 3
widths = [4]

[local]
batch_size = 8
"""


def test_a_config_says_stream(files: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(CONFIG)
    config = load_config(tmp_path / "run.toml")
    found = run(config, folder=tmp_path / "run")
    assert found.finished
    again = run(load_config(tmp_path / "run.toml"), folder=tmp_path / "run", resume=True)
    assert again.finished
