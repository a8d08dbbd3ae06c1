"""A table in Python is what a config's keys describe, and has no other options."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedgradnorm as fgn
from fedgradnorm.data import Arrays, Images, Inputs, Split, Table, Target

FRAME = pd.DataFrame(
    {
        "site": ["north", "south", "south"] * 20,
        "load": np.arange(60) % 7 + 30 * (np.arange(60) % 3 > 0),
        "kind": ["a", "b", "c", "b"] * 15,
        "hours": np.arange(60) * 10.0,
        "state": ["worn", "fine"] * 30,
    }
)
COLUMNS = Inputs(["load", "kind"], categories=["kind"], missing="mean")


def test_objects_and_keys_give_the_same_client(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "a.csv", index=False)
    tasks = {"life": Target("hours", "regression"), "state": Target("state", "binary")}
    cases: list[tuple[Table, dict[str, Any]]] = [
        (
            Table("a.csv", tasks["life"], COLUMNS, Split(0.2, 0.1, rows=50), base=tmp_path),
            {"task": "regression", "targets": "hours", "test_share": 0.2, "validation_share": 0.1,
             "rows": 50},
        ),
        (
            Table("a.csv", tasks, COLUMNS, Split(0.25, stratified="state"), base=tmp_path,
                  standardize=True),
            {"tasks": {"life": {"task": "regression", "targets": "hours"},
                       "state": {"task": "binary", "targets": "state"}},
             "split": {"stratified": "state", "test": 0.25}, "standardize": True},
        ),
        (
            Table("a.csv", tasks["life"], COLUMNS, Split(0.25), base=tmp_path),
            {"task": "regression", "targets": "hours", "split": {"test": 0.25}},
        ),
    ]  # fmt: skip
    for table, keys in cases:
        same = {"train": "a.csv", "base": str(tmp_path), "inputs": ["load", "kind"]}
        same |= {"categories": ["kind"], "missing": "mean", **keys}
        one, two = (each.client("a", seed=3) for each in (table, Table.from_dict(same)))
        assert [r.fingerprint() for r in one.rows] == [r.fingerprint() for r in two.rows]


def test_every_key_is_declared_by_one_object() -> None:
    names = [one.name for kind in (Target, Inputs, Images, Arrays) for one in fields(kind)]
    assert {name for name in names if names.count(name) > 1} == {"y_key"}  # of one of several tasks
    with pytest.raises(fgn.ConfigError, match="did you mean 'targets'"):
        Table.from_dict({"train": FRAME, "task": "regression", "target": "hours"})


def test_a_client_per_value_with_pooled_inputs() -> None:
    table = Table(FRAME, Target("hours", "regression"), ["load"], standardize="pooled")
    clients = table.clients("plant", per="site")
    assert [(c.name, c.size) for c in clients] == [("plant-north", 20), ("plant-south", 40)]
    loads = np.concatenate([np.asarray(c.train[0]) for c in clients])
    assert abs(loads.mean()) < 1e-6
    assert np.asarray(clients[0].train[0]).mean() < -0.5
    assert abs(np.asarray(clients[0].train[1]).mean()) < 1e-6


def test_bad_rows_are_numbered_by_file() -> None:
    gap = FRAME.assign(load=FRAME["load"].astype(float).mask(FRAME.index.isin([4, 9])))
    table = Table(gap, Target("hours", "regression"), ["load"])
    assert table.bad_rows() == {"the DataFrame of train": (5, 10)}
    with pytest.raises(fgn.DataError, match="data row 5: column 'load' is empty"):
        table.client("a")


@pytest.mark.parametrize(
    "given",
    [
        {"inputs": Inputs(["load"], missing="zero")},
        {"inputs": Inputs(without="site")},
        {"split": Split(0.2, time="hours", group="site")},
        {"target": Target("hours", "regresion")},
    ],
)
def test_an_option_that_cannot_be_names_its_client(given: dict[str, Any]) -> None:
    table = Table(**{"train": FRAME, "target": Target("hours", "regression"), **given})
    with pytest.raises(fgn.ConfigError, match=r"^client 'north': "):
        table.client("north")


def test_a_file_with_several_tasks_is_read_once(tmp_path: Path) -> None:
    """A row without a number for one of them is told once, and left out of all."""
    gap = FRAME.astype({"hours": object}).assign(hours=lambda f: f.hours.mask(f.index == 3, "?"))
    gap.to_csv(tmp_path / "a.csv", index=False)
    tasks = {"life": Target("hours", "regression"), "state": Target("state", "binary")}
    table = Table(tmp_path / "a.csv", tasks, ["load"], on_bad="drop")
    assert table.bad_rows() == {str(tmp_path / "a.csv"): (4,)}
    assert {row.size for row in table.client("a").rows} == {59}


def test_a_file_of_many_clients_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was parsed once for each of them, and a bad row told as one of theirs by all of them."""
    FRAME.assign(site=FRAME.index % 20).to_csv(tmp_path / "a.csv", index=False)
    text = (tmp_path / "a.csv").read_text().splitlines()
    (tmp_path / "a.csv").write_text("\n".join([*text, "7,2"]))
    opened = []
    real = Path.open
    monkeypatch.setattr(Path, "open", lambda p, *a, **k: opened.append(p) or real(p, *a, **k))
    table = Table(tmp_path / "a.csv", Target("hours", "regression"), ["load"], on_bad="drop")
    clients = table.clients("plant", per="site")
    assert [client.size for client in clients] == [3] * 20
    assert len(opened) == 2  # for the values, and for the rows
    (told,) = caplog.messages
    assert "client 'plant-7': dropped 1 of 4 rows: data row 61 (line 62): 2 fields" in told
