"""Categories, gaps and dates: what is learned, what a network sees, what ``predict`` takes."""

from __future__ import annotations

import json
import logging

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedgradnorm as fgn
from data.small_tables import client_from_files, one_line, write
from fedgradnorm.data._files.encoding import PARTS, part
from fedgradnorm.experiments import load_config
from fedgradnorm.experiments import run as execute

INPUTS = ["load", "kind", "when", "angle"]
WISHES = {
    "categories": ["kind"],
    "dates": {"when": list(PARTS)},
    "cyclic": {"angle": 360},
    "missing": {"load": "indicator", "kind": "indicator", "when": "mean"},
}


def table(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "load": rng.normal(50, 10, rows),
            "kind": rng.choice(["a", "b", "c"], rows),
            "when": pd.Timestamp("2023-11-30 22:15") + pd.to_timedelta(np.arange(rows) * 7, "h"),
            "angle": rng.uniform(0, 360, rows),
            "y": rng.normal(size=rows),
        }
    )
    frame.loc[rng.choice(rows, 6, replace=False), "load"] = np.nan
    frame.loc[rng.choice(rows, 6, replace=False), "kind"] = None
    frame.loc[rng.choice(rows, 6, replace=False), "when"] = pd.NaT
    return frame


def client(train, name="a", **options):
    settings = {"task": "regression", "inputs": INPUTS, "targets": "y", **WISHES, **options}
    return client_from_files(name, train=train, **settings).client


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two clients, one of which does not have all columns, and their raw rows."""
    path = tmp_path_factory.mktemp("columns") / "rows.csv"
    frame = table()
    frame.to_csv(path, index=False)
    listed = {**WISHES, "categories": {"kind": ["c", "a", "b"]}, "standardize": True}
    here = [client(path, **listed), client(frame, "b", **{**listed, "without": ["kind"]})]
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(here[0].train[0].shape[1], 8), nn.Tanh())
    return fgn.train(network, here, rounds=3), here, frame


def test_numbers_are_those_of_scikit_learn() -> None:
    impute = pytest.importorskip("sklearn.impute")
    encoders = pytest.importorskip("sklearn.preprocessing")
    frame = table()
    for how in ("mean", "median", "indicator"):
        made = client(frame, inputs=["load", "kind"], dates=None, cyclic=None, missing=how)
        fill = impute.SimpleImputer(
            strategy="mean" if how == "indicator" else how, add_indicator=how == "indicator"
        )
        one_hot = encoders.OneHotEncoder(
            categories=[["a", "b", "c"]], handle_unknown="ignore", sparse_output=False
        )
        expected = [fill.fit_transform(frame[["load"]]), one_hot.fit_transform(frame[["kind"]])]
        expected += [frame[["kind"]].isna().to_numpy()] if how == "indicator" else []
        assert np.allclose(made.train[0], np.hstack(expected), atol=1e-5)
        assert len(made.columns) == made.train[0].shape[1]


def test_parts_of_a_date_are_those_of_the_calendar() -> None:
    times = pd.Series(pd.date_range("1899-12-28 13:37:21", "2105-03-02", periods=5000))
    since = (times - pd.Timestamp("1970-01-01")).dt.total_seconds().tolist()
    seconds = torch.tensor(since, dtype=torch.float64)
    expected = {
        "hour": (times - times.dt.normalize()).dt.total_seconds() / 86400,
        "weekday": times.dt.day_of_week / 7,
    }
    for name, share in expected.items():
        turn = 2 * np.pi * share.to_numpy()
        found = part(name, seconds).numpy()
        assert np.allclose(found, np.stack([np.sin(turn), np.cos(turn)], axis=1), atol=1e-9)
    begins = torch.tensor([946684800.0, 1767225600.0])  # of 2000 and 2026
    assert part("year", begins.double())[:, 1].min() > np.cos(2 * np.pi / 365)
    (years,) = part("elapsed", torch.tensor([946684800.0 + 86400 * 365.2425])).tolist()[0]
    assert years == pytest.approx(1)


def test_what_is_learned_comes_from_training_rows_alone() -> None:
    frame = table()
    frame["part"] = np.where(np.arange(60) < 40, "train", "test")
    changed = frame.copy()
    changed.loc[40:, "load"], changed.loc[40:, "kind"] = 1e6, "new"
    one, other = (client(f, split={"column": "part"}) for f in (frame, changed))
    assert one.encoding == other.encoding
    assert torch.equal(one.train[0], other.train[0])
    assert not torch.equal(one.test[0], other.test[0])
    places = [i for i, name in enumerate(other.columns) if name.startswith("kind=")]
    assert (other.test[0][:, places] == 0).all()


def test_predict_takes_raw_rows_as_training_did(trained, tmp_path, caplog) -> None:
    run, here, frame = trained
    again = fgn.load(run.save(tmp_path / "run"))
    for one in here:
        expected = run.clients[one.name].scaling.restore_targets(
            run.head_outputs(one.name, one.train[0])
        )
        mixed = frame[["y", *INPUTS[::-1]]]
        codes = run.clients[one.name].encoding.codes(frame, "x")
        for rows in (frame, mixed, mixed.astype({"when": str}), frame[INPUTS].to_numpy(), codes):
            found = torch.as_tensor(run.predict(one.name, rows))
            assert torch.allclose(found, expected, atol=1e-5)
            assert torch.equal(torch.as_tensor(again.predict(one.name, rows)), found)
    assert not caplog.records
    assert run.predict("b", frame.drop(columns="kind")).shape == (60, 1)


def test_an_unknown_category_is_all_zeros_and_said(trained, caplog) -> None:
    run, _, frame = trained
    few = frame.head(3).assign(kind=["zebra", "a", None])
    encoding = run.clients["a"].encoding
    with caplog.at_level(logging.WARNING):
        seen = encoding.encode(encoding.codes(few, "client 'a'"))
    places = [i for i, name in enumerate(encoding.features) if name.startswith("kind=")]
    assert seen[:, places].tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert seen[:, encoding.features.index("kind missing")].tolist() == [0, 0, 1]
    (record,) = caplog.records
    assert "client 'a': column 'kind' is 'zebra' in 1 of 3 rows" in record.getMessage()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"angle": np.nan}, "row 0 of x, column 'angle' is empty or NaN; fill it, or train"),
        ({"load": "much"}, "row 0 of x, column 'load' is 'much', not a number"),
        ({"load": 1e300}, "row 0 of x, column 'load' is 1e\\+300, too large"),
        ({"when": "yesterday"}, "column 'when' is 'yesterday', not a date"),
    ],
)
def test_a_raw_row_that_cannot_be_read_is_named(trained, change, says) -> None:
    run, _, frame = trained
    with pytest.raises(fgn.DataError, match=f"client 'a': .*{says}") as caught:
        run.predict("a", frame.astype({"when": object}).assign(**change))
    one_line(caught)
    with pytest.raises(fgn.DataError, match="x lacks column 'kind'"):
        run.predict("a", frame.drop(columns="kind"))
    with pytest.raises(fgn.DataError, match="a column for each of the 4 inputs"):
        run.predict("a", frame[["load", "angle"]].to_numpy())


def test_a_program_holds_the_encoding(trained, tmp_path) -> None:
    run, _, frame = trained
    program = torch.export.load(run.export("a", tmp_path / "a.pt2", x=frame)).module()
    codes = run.clients["a"].encoding.codes(frame, "x")
    assert torch.isnan(codes).any()
    assert torch.allclose(program(codes), torch.from_numpy(run.predict("a", frame)))


@pytest.mark.filterwarnings("ignore")
def test_torch_turns_the_program_into_an_onnx_model(trained, tmp_path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    run, _, frame = trained
    files = {"columns.json": ""}
    program = torch.export.load(run.export("a", tmp_path / "a.pt2"), extra_files=files)
    torch.onnx.export(program, dynamo=True, verbose=False).save(tmp_path / "a.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx")
    codes = run.clients["a"].encoding.codes(frame, "x")
    codes[0, 1] = -1
    for rows in (codes, codes[:1]):
        (found,) = session.run(None, {"x": rows.numpy()})
        assert np.allclose(found, run.predict("a", rows), atol=1e-5)
    about = json.loads(files["columns.json"])
    assert [column["name"] for column in about] == INPUTS
    assert about[1]["categories"] == ["c", "a", "b"]


def test_clients_that_share_a_network_have_the_same_categories() -> None:
    one, other = client(table(), "one"), client(table().replace({"kind": {"c": "d"}}), "other")
    with pytest.raises(fgn.ConfigError) as caught:
        fgn.train(nn.Sequential(nn.Linear(one.train[0].shape[1], 4)), [one, other], rounds=1)
    assert 'categories = {kind = ["a", "b", "c", "d"]}' in one_line(caught)


def test_a_damaged_encoding_is_named(trained, tmp_path) -> None:
    run, _, _ = trained
    folder = run.save(tmp_path / "run")
    manifest = json.loads((folder / "run.json").read_text())
    del manifest["checksum"]  # only its shape is checked then
    for wrong in ({"kind": "number"}, {"kind": "odd", "name": "x"}, {"kind": "date", "name": 3}):
        manifest["clients"]["a"]["encoding"][0] = wrong
        (folder / "run.json").write_text(json.dumps(manifest))
        with pytest.raises(fgn.RunFolderError, match="encoding of client 'a' does not fit"):
            fgn.load(folder)


CONFIG = """
rounds = 4

[data]
source = "files"
train = "rows.csv"
inputs = ["load", "kind", "when", "angle"]
categories = { kind = ["a", "b", "c"] }
dates = { when = ["hour", "elapsed"] }
cyclic = { angle = 360 }
missing = "indicator"
split = { time = "load", test = 0.25 }
standardize = true
on_bad = "drop"

[[data.clients]]
name = "a"
task = "regression"
targets = "y"

[[data.clients]]
name = "b"
task = "binary"
targets = "y"
above = 0.5
labels = ["low", "high"]
without = ["kind"]

[network]
name = "mlp"
widths = [8]

"""


def test_a_config_says_the_same_and_resumes(tmp_path) -> None:
    frame = table()
    frame.to_csv(tmp_path / "rows.csv", index=False)
    write(tmp_path / "rows.toml", CONFIG)
    config = load_config(tmp_path / "rows.toml")
    done = execute(config, tmp_path / "run")
    assert done.predict("b", frame, kind="label").shape == (60,)
    half = execute(load_config(tmp_path / "rows.toml", ["rounds=2"]), tmp_path / "half")
    assert half.manifest["clients"] == done.manifest["clients"]
    resumed = execute(config, tmp_path / "run", resume=True)
    assert np.array_equal(resumed.predict("a", frame), done.predict("a", frame))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"missing": "none"}, "missing"),
        ({"missing": {"load": "zero"}}, "missing of 'load'"),
        ({"categories": ["kinds"]}, "'kinds' is named among categories.*but is no input"),
        ({"categories": {"kind": ["a", "a"]}}, "categories of 'kind' names 'a' more than once"),
        ({"categories": {"kind": 3}}, "categories of 'kind' must be a list of texts"),
        ({"categories": ["kind", "when"]}, "column 'when' is in categories and in dates"),
        ({"categories": 3}, "categories: expected a name or a list"),
        ({"dates": {"when": ["hours"]}}, "a part of date 'when'.*did you mean 'hour'"),
        ({"dates": {"when": ["hour"]}, "date_format": 3}, "date_format must be a text"),
        ({"cyclic": {"angle": 0}}, "the period of 'angle' in cyclic must be > 0"),
        ({"cyclic": {"angle": "x"}}, "the period of 'angle' in cyclic must be a number"),
        ({"without": ["y"]}, "'y' is named among"),
        ({"inputs": None, "without": ["kind"]}, "needs inputs: a file cannot say"),
        ({"without": ["kind"], "missing": "mean"}, "its categories cannot be learned; list them"),
        ({"targets": "kind", "task": "classification"}, r"or say without = \['kind'\]"),
    ],
)
def test_what_cannot_be_meant_is_refused(options, says) -> None:
    with pytest.raises(fgn.ConfigError, match=says) as caught:
        client(table(), **options)
    one_line(caught)


def test_a_column_of_gaps_names_the_way_out() -> None:
    says = r"data row 1: column 'load' is empty or NaN; correct it.*missing='mean'"
    with pytest.raises(fgn.DataError, match=says) as caught:
        client(table().assign(load=np.nan), missing="error")
    one_line(caught)


def test_rows_left_out_are_one_line_in_the_log_and_listed_in_the_run_folder(tmp_path) -> None:
    frame = table()
    frame["angle"] = frame.angle.astype(object).mask(frame.index == 2, "north")
    frame.to_csv(tmp_path / "rows.csv", index=False)
    write(tmp_path / "rows.toml", CONFIG.replace('time = "load"', 'time = "when"'))
    execute(load_config(tmp_path / "rows.toml"), tmp_path / "run")
    told = [s for s in (tmp_path / "run/log.txt").read_text().splitlines() if "dropped" in s]
    listed = (tmp_path / "run/dropped.txt").read_text().splitlines()
    empty = int(frame.when.isna().sum())
    for name, line in zip("ab", told, strict=True):
        assert f"client {name!r}: dropped {1 + empty} of 60 rows: " in line
        assert line.endswith("; every row is in dropped.txt")
    assert len(listed) == 2 * (1 + 1 + empty)
    assert "  data row 3 (line 4): column 'angle' is 'north', not a number [rows.csv]" in listed
