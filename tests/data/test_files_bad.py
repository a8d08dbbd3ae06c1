"""Tables and settings that cannot be used, and what is said about them."""

from __future__ import annotations

import logging

import pytest

from data.small_tables import HOUSES, client_from_files, one_line, prices, write
from fedgradnorm import ConfigError, DataError


@pytest.mark.parametrize(
    ("old", "new", "row", "says"),
    [
        ("65,2", ",2", 3, "column 'area' is empty or NaN"),
        ("65,2", "NaN,2", 3, "column 'area' is empty or NaN"),
        ("65,2", "big,2", 3, "column 'area' is 'big', not a number"),
        ("65,2", "1e39,2", 3, "column 'area' is '1e39', too large"),
        ("65,2", "inf,2", 3, "column 'area' is 'inf', too large"),
        ("130.5,", "?,", 3, "column 'price' is '?', not a number"),
        ("80,3,", "80,3,4,", 2, "5 fields where the header has 4"),
        ("80,3,", "80,", 2, "3 fields where the header has 4"),
    ],
)
def test_a_bad_cell_names_file_row_line_and_column(houses, caplog, old, new, row, says):
    write(houses, HOUSES.replace(old, new))
    with pytest.raises(DataError) as caught:
        prices(houses)
    assert f"houses.csv, data row {row} (line {row + 1}): {says}; correct it" in one_line(caught)
    with caplog.at_level(logging.WARNING):
        loaded = prices(houses, on_bad="drop")
    assert loaded.client.size == 3
    assert loaded.dropped == {str(houses): (row,)}
    assert f"dropped 1 of 4 rows: data row {row} (line {row + 1}): {says}" in caplog.text


def test_lines_are_counted_over_blank_and_quoted_lines(tmp_path):
    path = write(tmp_path / "a.csv", 'x,y\n\n1,"two\nlines"\n\nbad,b\n')
    with pytest.raises(DataError, match=r"data row 2 \(line 6\)"):
        client_from_files("a", task="classification", train=path, targets="y")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"\n\n", "empty"),
        (b"area,rooms,price\n", "no rows left to use, it has none"),
        (b"area,room,price\n1,2,3\n", "no column 'rooms'; did you mean 'room'"),
        (b"area,rooms,price,area\n1,2,3,4\n", "more than one column is named 'area'"),
        (b"\xff\xfea\0r\0", "not UTF-8"),
        (b"area,rooms,price\n1,2,\0\n", "line 2: not a text file"),
        (b'area,rooms,price\n1,2,"3\n', "not a CSV file"),
        (b"PAR1\x15\x04\x15\xf0\x9c", "not UTF-8"),
    ],
)
def test_files_that_are_no_such_table(houses, content, says):
    houses.write_bytes(content)
    with pytest.raises(DataError, match=says) as caught:
        prices(houses)
    assert "houses.csv" in one_line(caught)


def test_dropping_everything_is_an_error(houses):
    write(houses, "area,rooms,price\nx,y,z\n")
    with pytest.raises(DataError, match="all 1 were dropped"):
        prices(houses, on_bad="drop")


def test_dropped_rows_are_one_line_a_client_by_kind(tmp_path, caplog):
    good = "1,1,a\n2,2,b\n"
    train = write(tmp_path / "a.csv", "x,z,y\n" + good + "?,1,a\n" * 30 + "1,NA,a\n" * 2 + "1,2\n")
    test = write(tmp_path / "t.csv", "x,z,y\n" + good + "1,inf,a\n")
    settings = {"task": "classification", "train": train, "test": test, "targets": "y"}
    with caplog.at_level(logging.WARNING):
        loaded = client_from_files("north", **settings, on_bad="drop")
    assert [record.getMessage() for record in caplog.records] == [
        "client 'north': dropped 34 of 38 rows: "
        "30 like data row 3 (line 4): column 'x' is '?', not a number [a.csv]; "
        "2 like data row 33 (line 34): column 'z' is empty or NaN [a.csv]; "
        "data row 35 (line 36): 2 fields where the header has 3 [a.csv]; "
        "data row 3 (line 4): column 'z' is 'inf', too large [t.csv] (all in the "
        "log at level DEBUG)"
    ]
    assert loaded.dropped == {str(train): tuple(range(3, 36)), str(test): (3,)}
    with caplog.at_level(logging.DEBUG):
        client_from_files("north", **settings, on_bad="drop")
    assert sum(record.levelno == logging.DEBUG for record in caplog.records) == 34


def test_a_column_without_a_name_is_not_an_input_by_accident(tmp_path):
    path = write(tmp_path / "a.csv", ",x,y\n0,1,2\n1,3,4\n")
    with pytest.raises(DataError, match="column 1 has no name"):
        client_from_files("a", task="regression", train=path, targets="y")
    loaded = client_from_files("a", task="regression", train=path, inputs=["x"], targets="y")
    assert loaded.client.train[0].tolist() == [[1], [3]]


def test_a_test_file_must_have_the_training_columns(houses, tmp_path):
    test = write(tmp_path / "t.csv", "area,price\n1,2\n")
    with pytest.raises(DataError, match=r"t\.csv: no column 'rooms'"):
        prices(houses, test=test)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"targets": None}, ConfigError, "targets"),
        ({"targets": ["price", "price"]}, ConfigError, "more than once"),
        ({"targets": "area"}, ConfigError, "both an input and a target"),
        ({"task": "regresion"}, ConfigError, "did you mean 'regression'"),
        ({"task": "classification", "targets": ["price", "kind"]}, ConfigError, "one target"),
        ({"on_bad": "skip"}, ConfigError, "on_bad"),
        ({"classes": 3}, ConfigError, "classes"),
        ({"inputs": []}, DataError, "no input columns"),
        ({"train": "gone.csv"}, DataError, r"gone\.csv: no such file"),
        ({"train": "."}, DataError, "no such file"),
        ({"test": "gone.csv"}, DataError, "no such file"),
        ({"images": "gone"}, ConfigError, "one column of paths"),
        ({"images": "gone", "inputs": "path"}, DataError, "no such folder"),
    ],
)
def test_bad_settings(houses, options, error, says):
    settings = {"task": "regression", "inputs": ["area", "rooms"], "targets": "price"}
    with pytest.raises(error, match=says) as caught:
        client_from_files("a", **{"train": houses, **settings, **options})
    one_line(caught)


def test_unknown_endings_name_the_known_ones(tmp_path):
    path = write(tmp_path / "a.xlsx", "")
    with pytest.raises(DataError, match=r"'\.xlsx'; use one of \.csv"):
        client_from_files("a", task="regression", train=path, targets="y")


def test_parquet_cells_that_are_no_numbers(tmp_path):
    import pandas as pd

    path = tmp_path / "a.parquet"
    nested = [[1], [2], [3]]
    frame = pd.DataFrame({"x": [1.0, None, 3.0], "t": ["1", "a", "3"], "l": nested, "y": [1, 2, 3]})
    frame.to_parquet(path)
    for column, says in (("x", "is empty or NaN"), ("t", "not a number"), ("l", "not a number")):
        with pytest.raises(DataError, match=rf"a\.parquet, data row \d: column '{column}'.*{says}"):
            client_from_files("a", task="regression", train=path, inputs=column, targets="y")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="not a readable Parquet file") as caught:
        client_from_files("a", task="regression", train=path, targets="y")
    one_line(caught)
