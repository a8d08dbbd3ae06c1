"""Tables as they are found: other endings and gaps, many clients in one, columns that are empty."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedgradnorm as fgn
from data.small_tables import client_from_files
from fedgradnorm.data import Table, Target
from fedgradnorm.data._sources import load_clients  # what a config's [data] table is given to

ROWS = 120


def frame(seed: int = 0) -> pd.DataFrame:
    """Two hospitals with other levels, a rare state, and gaps written as question marks."""
    rng = np.random.default_rng(seed)
    hospital = np.where(np.arange(ROWS) % 3 > 0, "north", "south")
    age = rng.normal(50, 10, ROWS) + 20 * (hospital == "south")
    return pd.DataFrame(
        {
            "hospital": hospital,
            "age": age.round(3),
            "dose": rng.normal(size=ROWS).round(3),
            "state": np.where(np.arange(ROWS) % 10 == 0, "ill", "well"),
            "days": rng.integers(1, 90, ROWS),
        }
    )


@pytest.fixture
def table(tmp_path: Path) -> Path:
    frame().to_csv(tmp_path / "rows.csv", index=False)
    return tmp_path / "rows.csv"


INPUTS: dict[str, Any] = {"inputs": ["age", "dose"]}
STATE: dict[str, Any] = {"task": "classification", "targets": "state", **INPUTS}


@pytest.mark.parametrize("ending", [".data", "", ".CSV.gz2"])
def test_format_says_what_a_file_is(table: Path, ending: str) -> None:
    other = table.rename(table.with_name(f"rows{ending}"))
    with pytest.raises(fgn.DataError, match="format = 'csv', 'parquet' or 'npz'"):
        client_from_files("a", train=other, **STATE)
    assert client_from_files("a", train=other, format="csv", **STATE).client.size == ROWS
    with pytest.raises(fgn.ConfigError, match="format"):
        client_from_files("a", train=other, format="excel", **STATE)


def test_format_holds_for_archives_and_parquet(tmp_path: Path) -> None:
    with (tmp_path / "a.bin").open("wb") as file:
        np.savez(file, x=np.zeros((4, 2)), y=np.arange(4.0))
    given: dict[str, Any] = {"task": "regression"}
    loaded = client_from_files("a", train=tmp_path / "a.bin", format="npz", **given)
    assert loaded.client.size == 4
    frame().to_parquet(tmp_path / "b.bin")
    for stream in (False, True):
        given = {"format": "parquet", "stream": stream, "targets": "days", **INPUTS}
        loaded = client_from_files("a", train=tmp_path / "b.bin", task="regression", **given)
        assert len(loaded.client.train[0]) == ROWS


def test_texts_that_mean_no_value(table: Path) -> None:
    found = frame().astype({"age": object, "state": object})
    found.loc[3, "age"] = "?"
    found.loc[4, "state"] = "-9"
    found.to_csv(table, index=False)
    with pytest.raises(fgn.DataError, match=r"column 'age' is '\?', not a number"):
        client_from_files("a", train=table, **STATE)
    given: dict[str, Any] = {"na": ["?", "-9"], "missing": "mean"}
    loaded = client_from_files("a", train=table, **STATE, **given)
    assert loaded.label_names == ("ill", "well")
    ages = loaded.client.train[0][:, 0]
    assert len(loaded.client.train[0]) == ROWS
    assert ages[3] == pytest.approx(float(found["age"].drop(3).astype(float).mean()), rel=1e-5)
    for wrong in ([9], 9):
        with pytest.raises(fgn.ConfigError, match="na must be texts"):
            client_from_files("a", train=table, na=wrong, **STATE)  # type: ignore[arg-type]


def test_where_keeps_the_rows_of_a_value(table: Path) -> None:
    given = {**STATE, "inputs": None, "categories": None, "targets": "days", "task": "regression"}
    given |= {"where": {"hospital": "south"}}
    with pytest.raises(fgn.DataError, match="'state' is 'ill'"):  # the hospital is no input
        client_from_files("a", train=table, **given)
    client = client_from_files("a", train=table, **STATE, where={"hospital": "south"}).client
    assert client.size == ROWS // 3
    with pytest.raises(fgn.DataError, match="no column 'town'"):
        client_from_files("a", train=table, **STATE, where={"town": "south"})
    with pytest.raises(fgn.DataError, match="no rows left"):
        client_from_files("a", train=table, **STATE, where={"hospital": "west"})


def test_a_client_for_each_value_of_a_column(table: Path) -> None:
    one = {"name": "at", "train": str(table), "per": "hospital", **STATE}
    clients = load_clients("files", {"clients": [one], "test_share": 0.25}, seed=0)
    assert [client.name for client in clients] == ["at-north", "at-south"]
    assert [client.size for client in clients] == [60, 30]
    with pytest.raises(fgn.DataError, match="no column 'town'"):
        load_clients("files", {"clients": [{**one, "per": "town"}]}, seed=0)
    with pytest.raises(fgn.ConfigError, match="per must name a column"):
        load_clients("files", {"clients": [{**one, "per": 3}]}, seed=0)


@pytest.mark.parametrize("seed", range(5))
def test_stratified_splits_have_each_class_in_proportion(table: Path, seed: int) -> None:
    cut = {"stratified": "state", "test": 0.25, "validation": 0.1}
    client = client_from_files("a", train=table, split=cut, seed=seed, **STATE).client
    assert client.validation is not None
    counts = {len(pair[1]): int((pair[1] == 0).sum()) for pair in (client.test, client.validation)}
    assert counts == {30: 3, 12: 1}
    assert client.size == 78
    again = client_from_files("a", train=table, split=cut, seed=seed + 1, **STATE).client
    assert not torch.equal(client.train[0], again.train[0])


def test_what_cannot_be_stratified(table: Path) -> None:
    with pytest.raises(fgn.DataError, match=r"'age' has 1\d\d values in 120 rows"):
        client_from_files("a", train=table, split={"stratified": "age", "test": 0.2}, **STATE)
    found = frame()
    found["state"] = found["state"].where(found.index != 7)
    found.to_csv(table, index=False)
    split = {"stratified": "state", "test": 0.2}
    assert client_from_files("a", train=table, split=split, **STATE).client.size == 95


def test_pooled_standardisation_keeps_levels(table: Path) -> None:
    one = {"name": "at", "train": str(table), "per": "hospital", **STATE}
    own, pooled = (
        load_clients("files", {"clients": [one], "standardize": how}, seed=0)
        for how in (True, "pooled")
    )
    assert all(abs(float(client.train[0][:, 0].mean())) < 1e-5 for client in own)
    every = torch.cat([torch.as_tensor(client.train[0]) for client in pooled])
    assert torch.allclose(every.mean(0), torch.zeros(2), atol=1e-5)
    assert torch.allclose(every.std(0, correction=0), torch.ones(2), atol=1e-5)
    means = [float(client.train[0][:, 0].mean()) for client in pooled]
    assert means[1] - means[0] > 1
    raw = torch.tensor(frame()[["age", "dose"]].to_numpy()[:1])
    scaling = pooled[1].scaling
    assert scaling is not None
    assert torch.allclose(scaling.scale_inputs(raw).float(), pooled[1].train[0][:1], atol=1e-5)


def test_pooled_standardisation_of_targets_is_each_clients_own(table: Path) -> None:
    days: dict[str, Any] = {"task": "regression", "targets": "days", **INPUTS}
    tasks = {"tasks": {k: {"task": "regression", "targets": k} for k in ("days", "age")}}
    options: dict[str, Any]
    for options in (days, {"inputs": ["dose"], **tasks}):
        one = {"name": "at", "train": str(table), "per": "hospital", **options}
        clients = load_clients("files", {"clients": [one], "standardize": "pooled"}, seed=0)
        for client in clients:
            assert abs(float(torch.as_tensor(client.train[1]).mean())) < 1e-5
            assert abs(float(client.train[0][:, -1].mean())) < 1
    with pytest.raises(fgn.ConfigError, match="'pooled' needs several clients"):
        client_from_files("a", train=table, standardize="pooled", **days)  # type: ignore[arg-type]


def test_a_column_that_is_empty_at_one_client(table: Path, caplog: Any) -> None:
    found = frame()
    found.loc[(found["hospital"] == "south") & (found.index < 100), "age"] = np.nan
    found.to_csv(table, index=False)
    cut = {"column": "part", "test": ["late"]}
    found["part"] = np.where(found.index < 100, "early", "late")
    found.to_csv(table, index=False)
    one = {"name": "at", "train": str(table), "per": "hospital", "split": cut, **STATE}
    with pytest.raises(fgn.DataError, match="'age' is empty"):
        load_clients("files", {"clients": [one]}, seed=0)
    caplog.set_level(logging.WARNING)
    for how in ("mean", "median", "indicator"):
        for standardize in (True, "pooled"):
            options = {"clients": [one], "missing": how, "standardize": standardize}
            clients = load_clients("files", options, seed=0)
            south = clients[1]
            assert clients[0].train[0].shape[1:] == south.train[0].shape[1:]
            assert not south.train[0][:, 0].any()
            assert south.test is not None
            assert not south.test[0][:, 0].any()  # there are values, but none to learn from
    assert "'age' is empty in all training rows" in caplog.text
    run = fgn.train(torch.nn.Linear(4, 4), clients, rounds=2)
    assert len(run.predict("at-south", found[["age", "dose"]])) == ROWS


def test_an_empty_column_of_categories_needs_their_list(tmp_path: Path) -> None:
    found = frame().assign(kind=None)
    given: dict[str, Any] = {**STATE, "inputs": ["age", "kind"], "missing": "indicator"}
    with pytest.raises(fgn.DataError, match=r"categories = \{kind = \[\.\.\.\]\}"):
        client_from_files("a", train=found, categories=["kind"], **given)
    listed = client_from_files("a", train=found, categories={"kind": ["a", "b"]}, **given)
    assert listed.client.train[0].shape[1] == 5


def test_messages_of_columns_name_the_way_out(table: Path) -> None:
    with pytest.raises(
        fgn.ConfigError, match=r"without = \['noise'\] needs inputs: .*in one order"
    ):
        client_from_files("a", train=table, task="regression", targets="days", without="noise")
    with pytest.raises(fgn.DataError, match=r"above = \d+, or use task='classification'"):
        client_from_files("a", train=table, task="binary", targets="days", **INPUTS)


def test_numbers_are_no_classes_and_texts_are_no_numbers() -> None:
    table = pd.DataFrame({"a": np.arange(60.0), "h": ["x", "y"] * 30, "r": np.arange(60) / 7})
    with pytest.raises(fgn.DataError, match=r"are no classes; use task='regression'"):
        Table(table, Target("r", "classification"), ["a"]).client("c")
    with pytest.raises(fgn.DataError, match=r"read its texts with categories=\['h'\]"):
        Table(table, Target("r", "regression"), ["a", "h"]).client("c")
