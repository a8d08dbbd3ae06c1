"""Predictions go by the names of columns, and refuse values that no prediction can be made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedgradnorm as fgn
import flat
from data.small_tables import client_from_files
from fedgradnorm.data import partition_client
from fedgradnorm.data._arrays import client_from_arrays

NAMES = ("flow", "pressure", "noise")
FRAME = pd.DataFrame(np.random.default_rng(0).normal(size=(30, 3)) * [100, 1, 9], columns=NAMES)
TARGET = FRAME.flow * 3 + FRAME.noise


def from_file(tmp_path: Path) -> fgn.Client:
    path = tmp_path / "pumps.csv"
    FRAME.assign(hours=TARGET).to_csv(path, index=False)
    settings = {"task": "regression", "targets": "hours", "standardize": True, "test_share": 0.2}
    return client_from_files("pump", train=path, **settings).client


def from_frame(_: Path) -> fgn.Client:
    return fgn.Client("pump", fgn.regression(1), (FRAME, TARGET), test=(FRAME[::-1], TARGET[::-1]))


def from_helper(_: Path) -> fgn.Client:
    return client_from_arrays(
        "pump", fgn.regression(1), (FRAME, TARGET), test_share=0.2, standardize=True
    )


def trained(client: fgn.Client, **options: Any) -> fgn.Run:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 8), nn.ReLU())
    return flat.train(network, [client], rounds=3, lr=0.01, **options)


def unnamed() -> fgn.Run:
    return trained(fgn.Client("pump", fgn.regression(1), (FRAME.to_numpy(), TARGET)))


@pytest.mark.parametrize("make", [from_file, from_frame, from_helper])
def test_the_order_of_a_frames_columns_changes_nothing(tmp_path: Path, make: Any) -> None:
    client = make(tmp_path)
    assert client.columns == NAMES
    run = trained(client, folder=tmp_path / "run")
    expected = run.predict("pump", FRAME.to_numpy())
    mixed = FRAME[["noise", "flow", "pressure"]].assign(pump_id="a text")
    saved = fgn.load(run.save(tmp_path / "saved"))
    resumed = trained(client, folder=tmp_path / "run", resume=True)
    for each in (run, saved, fgn.load(tmp_path / "run"), resumed):
        assert np.array_equal(each.predict("pump", FRAME), expected)
        assert np.array_equal(each.predict("pump", FRAME[list(reversed(NAMES))]), expected)
        assert np.array_equal(each.predict("pump", mixed), expected)
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert manifest["clients"]["pump"]["columns"] == list(NAMES)


def test_a_frame_without_a_column_is_told_which() -> None:
    run = trained(from_frame(Path()))
    with pytest.raises(fgn.DataError, match=r"client 'pump': x lacks columns 'flow', 'noise'; it"):
        run.predict("pump", FRAME[["pressure"]])
    with pytest.raises(fgn.DataError, match="more than one column of x is named 'flow'"):
        run.predict("pump", pd.concat([FRAME, FRAME], axis=1))


def test_a_frame_is_refused_where_the_training_columns_have_no_names() -> None:
    with pytest.raises(fgn.DataError, match=r"no names to match.*x\.to_numpy\(\)"):
        unnamed().predict("pump", FRAME)
    with pytest.raises(fgn.DataError, match=r"test data: x is a DataFrame"):
        fgn.Client("pump", fgn.regression(1), (FRAME.to_numpy(), TARGET), test=(FRAME, TARGET))


def test_other_splits_are_read_by_the_training_columns() -> None:
    client = fgn.Client(
        "pump",
        fgn.regression(1),
        (FRAME, TARGET),
        validation=(FRAME[["noise", *NAMES[:2]]], TARGET),
    )
    assert torch.equal(client.validation[0], client.train[0])
    with pytest.raises(fgn.DataError, match=r"validation data: x lacks columns 'flow', 'pressure'"):
        fgn.Client(
            "pump", fgn.regression(1), (FRAME, TARGET), validation=(FRAME[["noise"]], TARGET)
        )


def test_columns_may_be_named_for_arrays_and_chosen_of_frames() -> None:
    client = fgn.Client("pump", fgn.regression(1), (FRAME.to_numpy(), TARGET), columns=NAMES)
    run = trained(client)
    assert np.array_equal(run.predict("pump", FRAME[[*NAMES[::-1]]]), run.predict("pump", FRAME))
    two = fgn.Client("pump", fgn.regression(1), (FRAME, TARGET), columns=("noise", "flow"))
    assert two.train[0].tolist() == FRAME[["noise", "flow"]].to_numpy().tolist()
    for wrong in (("a", "b"), ("a", "a", "b"), "abc", (1, 2, 3)):
        with pytest.raises(fgn.DataError, match=r"client 'pump': columns"):
            fgn.Client("pump", fgn.regression(1), (FRAME.to_numpy(), TARGET), columns=wrong)


def test_names_that_are_numbers_are_names_too() -> None:
    frame = pd.DataFrame(FRAME.to_numpy())
    run = trained(fgn.Client("pump", fgn.regression(1), (frame, TARGET)))
    expected = run.predict("pump", frame.to_numpy())
    assert np.array_equal(run.predict("pump", frame[[2, 0, 1]]), expected)


def test_parts_of_a_client_keep_its_columns() -> None:
    parts = partition_client(from_frame(Path()), "iid", parts=2)
    assert [part.columns for part in parts] == [NAMES, NAMES]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_value_that_is_not_finite_names_its_row_and_column(value: float, scaled: bool) -> None:
    client = from_helper(Path()) if scaled else from_frame(Path())
    run, spoilt = trained(client), FRAME.copy()
    spoilt.loc[4, "pressure"] = value
    said = rf"client 'pump': row 4 of x, column 'pressure' is {value}".replace("+", r"\+")
    for x in (spoilt, spoilt[[*NAMES[::-1]]], spoilt.to_numpy(), torch.tensor(spoilt.to_numpy())):
        with pytest.raises(fgn.DataError, match=said) as caught:
            run.predict("pump", x)
        assert "\n" not in str(caught.value)
    with pytest.raises(fgn.DataError, match=r"row 4 of x, column \[1\] is"):
        unnamed().predict("pump", spoilt.to_numpy())


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (FRAME.to_numpy()[0], r"x has shape \(3,\), a training row \(3,\); give one row"),
        (FRAME.iloc[0], r"x has shape \(3,\)"),
        (np.ones((2, 4)), r"its network cannot take rows of shape \(4,\)"),
        (FRAME.to_numpy().astype(str), "x must hold numbers"),
        (FRAME.assign(flow="much"), "x must hold numbers"),
        ([[1, 2], [3]], "differ in shape"),
        (None, "x must hold numbers"),
        (np.ones((2, 3)) + 1j, "complex"),
    ],
)
def test_inputs_that_do_not_fit_are_our_error(x: Any, said: str) -> None:
    with pytest.raises(fgn.DataError, match=said) as caught:
        trained(from_frame(Path())).predict("pump", x)
    assert "client 'pump'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_rows_give_no_predictions() -> None:
    assert trained(from_frame(Path())).predict("pump", FRAME[:0]).shape == (0, 1)


def test_the_summary_says_which_split_its_metrics_are_of() -> None:
    x, y = FRAME.to_numpy(), TARGET.to_numpy()
    pairs = {"test": (x[:5], y[:5]), "validation": (x[5:9], y[5:9])}
    clients = [
        fgn.Client("both", fgn.regression(1), (x, y), **pairs),
        fgn.Client("validated", fgn.regression(1), (x, y), validation=pairs["validation"]),
        fgn.Client("alone", fgn.regression(1), (x, y)),
    ]
    torch.manual_seed(0)
    run = fgn.train(nn.Sequential(nn.Linear(3, 8), nn.ReLU()), clients, rounds=3)
    summary, history = run.summary(), run.history
    assert summary.split.to_dict() == {"both": "test", "validated": "validation", "alone": "train"}
    for name, split in summary.split.items():
        rows = history[(history.client == name) & (history.split == split)]
        assert summary.loc[name, "mae"] == rows.mae.iloc[-1]


def test_the_same_columns_in_another_order_are_aligned_and_the_log_says_so(caplog: Any) -> None:
    caplog.set_level("INFO", "fedgradnorm")

    def logged(*orders: list[str], **options: Any) -> list[str]:
        caplog.clear()
        clients = [
            fgn.Client(name, fgn.regression(1), (FRAME[order], TARGET))
            for name, order in zip("ab", orders, strict=True)
        ]
        network = nn.Sequential(nn.Linear(3, 8), nn.ReLU())
        flat.train(network, clients, rounds=1, **options)
        said = (r.getMessage() for r in caplog.records)
        return [line for line in said if "columns" in line]

    names, other = list(NAMES), list(reversed(NAMES))
    (line,) = logged(names, other)
    assert line == "columns of b are reordered by name, to the order of client 'a'"
    assert not logged(names, names)
    assert not logged(names, other, share="none")
