"""Which rows train, validate and test: by a column, by time, by group; and how many."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedgradnorm as fgn
from data.small_tables import client_from_files, one_line

SPLITS = ("train", "validation", "test")


def frame(rows: int = 50, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.permutation(rows), "D")
    return pd.DataFrame(
        {
            "x": np.arange(rows, dtype=float),
            "day": days.strftime("%Y-%m-%d"),
            "who": rng.integers(0, 9, rows),
            "fold": rng.integers(0, 5, rows),
            "y": rng.normal(size=rows),
        }
    )


def split(table: pd.DataFrame, **options):
    """The rows of each split, by their ``x``."""
    settings = {"task": "regression", "train": table, "inputs": "x", "targets": "y", **options}
    client = client_from_files("a", **settings).client
    pairs = {part: getattr(client, part) for part in SPLITS}
    return {
        part: [] if pair is None else pair[0][:, 0].int().tolist() for part, pair in pairs.items()
    }


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 99),
    way=st.sampled_from(["time", "group"]),
    test=st.floats(0.1, 0.45),
    validation=st.sampled_from([0, 0.1, 0.3]),
)
def test_every_row_is_on_one_side(seed, way, test, validation) -> None:
    rows = frame(seed=seed)
    held = {"test": test, **({"validation": validation} if validation else {})}
    column = "day" if way == "time" else "who"
    parts = split(rows, split={way: column, **held}, seed=seed)
    assert sorted(chain(*parts.values())) == list(range(50))
    assert all(part == sorted(part) for part in parts.values())
    side = {part: set(rows[column].iloc[at]) for part, at in parts.items()}
    if way == "group":
        assert not side["train"] & side["test"]
        assert not side["validation"] & (side["train"] | side["test"])
        assert abs(len(parts["test"]) - test * 50) <= rows.who.value_counts().max()
        assert parts == split(rows, split={way: column, **held}, seed=seed)
    else:
        assert max(side["train"]) < min(side["test"])
        assert len(parts["test"]) == pytest.approx(test * 50, abs=0.51)
        if validation:
            assert max(side["train"]) < min(side["validation"])
            assert max(side["validation"]) < min(side["test"])


def test_time_is_cut_where_it_is_said_and_by_several_columns() -> None:
    rows = frame()
    when = pd.to_datetime(rows.day)
    rows["year"], rows["month"], rows["no"] = when.dt.year, when.dt.month, when.dt.day
    at = split(rows, split={"time": "day", "test": "2020-02-10", "validation": "2020-02-01"})
    assert set(at["test"]) == set(np.flatnonzero(rows.day >= "2020-02-10"))
    assert set(at["validation"]) == set(
        np.flatnonzero((rows.day >= "2020-02-01") & (rows.day < "2020-02-10"))
    )
    columns = {"time": ["year", "month", "no"], "test": 0.2}
    assert split(rows, split=columns) == split(rows, split={"time": "day", "test": 0.2})
    rows["stamp"] = when.astype("int64")
    assert split(rows, split={"time": "stamp", "test": 0.2}) == split(rows, split=columns)


def test_rows_of_one_time_stay_together_and_gaps_do_not_move_the_cut() -> None:
    rows = frame()
    rows["day"] = np.repeat(["2020-01-01", "2020-01-02"], 25)
    at = split(rows, split={"time": "day", "test": 0.2})
    assert at["test"] == list(range(25, 50))
    rows = frame()
    early = rows.day < "2020-01-20"
    at = split(rows.assign(y=rows.y.mask(early)), split={"time": "day", "test": 0.2}, on_bad="drop")
    assert at["test"] == split(rows, split={"time": "day", "test": 0.2})["test"]


def test_a_column_says_which_rows_are_which() -> None:
    rows = frame().assign(part=["Train", "test", "validation", "train", "train"] * 10)
    at = split(rows, split={"column": "part"})
    assert at["test"] == list(range(1, 50, 5))
    assert at["validation"] == list(range(2, 50, 5))
    at = split(rows, split={"column": "fold", "test": [4], "validation": ["0", "1"]})
    assert at["test"] == np.flatnonzero(rows.fold == 4).tolist()
    assert at["train"] == np.flatnonzero(rows.fold.isin([2, 3])).tolist()


def test_a_column_that_decides_the_split_is_no_input() -> None:
    rows = frame().drop(columns=["day", "fold"])
    given = {"task": "regression", "train": rows, "targets": "y", "test_share": 0.0}
    made = client_from_files("a", **given, split={"group": "who", "test": 0.3}).client
    assert made.columns == ("x",)
    timed = frame().drop(columns=["who", "fold"])
    given = {**given, "train": timed, "dates": {"day": ["elapsed"]}}
    made = client_from_files("a", **given, split={"time": "day", "test": 0.3}).client
    assert made.columns == ("x", "day elapsed")


def test_fewer_rows_keep_the_shares_and_depend_on_the_seed() -> None:
    cut = {"split": {"time": "day", "test": 0.4}, "rows": 20}
    at, other = split(frame(), **cut), split(frame(), **cut, seed=1)
    assert (len(at["train"]), len(at["test"])) == (12, 8)
    assert at == split(frame(), **cut) != other
    assert set(at["test"]) <= set(split(frame(), split=cut["split"])["test"])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("day", "split must be a table"),
        ({"time": "day", "group": "who", "test": 0.2}, "one of column, time, group and stratified"),
        ({"times": "day", "test": 0.2}, "did you mean 'time'"),
        ({"time": "day"}, "needs test or validation"),
        ({"time": 3, "test": 0.2}, "time must name a column"),
        ({"time": "day", "test": 1.5}, "split: test must be above 0 and below 1"),
        ({"time": "day", "test": True}, "split: test must be a number"),
        ({"time": "day", "test": 0.6, "validation": 0.5}, "leave no rows to train on"),
        ({"time": "day", "test": "soon"}, "test must be a share of the rows or a time like"),
        ({"group": "who", "test": "2020"}, "test must be a share"),
        ({"column": "fold", "test": 3}, "must list the values of column 'fold'"),
        ({"time": "days", "test": 0.2}, "no column 'days'; did you mean 'day'"),
        ({"column": "fold"}, "data row 1: column 'fold' is '.', not train, validation or test"),
        ({"column": "fold", "test": [77]}, "leaves no usable rows for test"),
        ({"time": "day", "test": "2031-01-01"}, "leaves no usable rows for test"),
        ({"time": "day", "test": "1931-01-01"}, "leaves no usable rows for train"),
    ],
)
def test_a_split_that_cannot_be_is_refused(given, says) -> None:
    with pytest.raises(fgn.FedGradNormError, match=says) as caught:
        split(frame(), split=given)
    one_line(caught)


def test_a_row_without_its_mark_is_a_bad_row() -> None:
    rows = frame().astype({"day": object})
    rows.loc[3, "day"] = None
    rows.loc[5, "day"] = "monday"
    given = {"time": "day", "test": 0.2}
    with pytest.raises(fgn.DataError, match="data row 4: column 'day', which decides the split"):
        split(rows, split=given)
    with pytest.raises(fgn.DataError, match="data row 6: column 'day' is 'monday', not a date"):
        split(rows.assign(day=rows.day.fillna("2020-01-09")), split=given)
    parts = split(rows, split=given, on_bad="drop")
    assert sorted(chain(*parts.values())) == [i for i in range(50) if i not in (3, 5)]


def test_two_ways_to_split_are_refused() -> None:
    given = {"time": "day", "test": 0.2}
    with pytest.raises(fgn.ConfigError, match="split and test data or test_share are both given"):
        split(frame(), split=given, test_share=0.1)
    with pytest.raises(fgn.ConfigError, match="split and validation data"):
        split(frame(), split=given, validation=frame(seed=1))
