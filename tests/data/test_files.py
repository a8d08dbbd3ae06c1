from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedgradnorm.data.files import client_from_files
from fedgradnorm.errors import ConfigError, DataError

HOUSES = """area,rooms,price,kind
50,2,100.5,flat
80,3,200.5,house
65,2,130.5,flat
120,5,400.5,house
"""


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def houses(tmp_path):
    return write(tmp_path / "houses.csv", HOUSES)


def prices(path, **options):
    settings = {"task": "regression", "inputs": ["area", "rooms"], "targets": "price", **options}
    return client_from_files("houses", train=path, **settings)


def kinds(path, **options):
    settings = {
        "task": "classification",
        "inputs": ["area", "rooms"],
        "targets": "kind",
        **options,
    }
    return client_from_files("houses", train=path, **settings)


def one_line(caught):
    message = str(caught.value)
    assert "\n" not in message
    return message


# What is read


def test_a_table_gives_the_named_columns(houses):
    client = prices(houses).client
    assert client.train[0].tolist() == [[50, 2], [80, 3], [65, 2], [120, 5]]
    assert client.train[1].tolist() == [[100.5], [200.5], [130.5], [400.5]]
    assert client.train[0].dtype == client.train[1].dtype == torch.float32


def test_inputs_are_all_other_columns_by_default(tmp_path):
    path = write(tmp_path / "a.csv", "b,y,a\n1,2,3\n4,5,6\n")
    test = write(tmp_path / "t.csv", "a,b,y\n30,10,20\n")
    client = client_from_files("a", task="regression", train=path, test=test, targets="y").client
    assert client.train[0].tolist() == [[1, 3], [4, 6]]
    assert client.test[0].tolist() == [[10, 30]]


def test_several_targets_and_order_of_columns(houses):
    loaded = prices(houses, inputs=["rooms"], targets=["price", "area"])
    assert loaded.client.task.outputs == 2
    assert loaded.client.train[1][0].tolist() == [100.5, 50]


@pytest.mark.parametrize("mark", [";", "\t"])
def test_other_delimiters_bom_and_windows_lines(tmp_path, mark):
    text = "\ufeff" + HOUSES.replace(",", mark).replace("\n", "\r\n")
    (tmp_path / "houses.csv").write_bytes(text.encode("utf-8"))
    assert prices(tmp_path / "houses.csv").client.size == 4


def test_parquet_gives_what_csv_gives(houses, tmp_path):
    import pandas as pd

    pd.read_csv(houses).to_parquet(tmp_path / "houses.parquet")
    for make in (prices, kinds):
        a, b = make(houses), make(tmp_path / "houses.parquet")
        assert a.label_names == b.label_names
        assert all(torch.equal(u, v) for u, v in zip(a.client.train, b.client.train, strict=True))


def test_npz_and_relative_paths(tmp_path):
    x = np.arange(24, dtype=np.uint8).reshape(6, 1, 2, 2)
    np.savez(tmp_path / "a.npz", x=x, kind=np.array(["b", "a"] * 3))
    np.savez(tmp_path / "t.npz", x=x[:2].astype(">f8"), kind=np.array([b"a", b"b"]))
    loaded = client_from_files(
        "a", task="classification", train="a.npz", test="t.npz", y_key="kind", base=tmp_path
    )
    assert loaded.client.train[0].shape == (6, 1, 2, 2)
    assert loaded.client.train[1].tolist() == [1, 0] * 3
    assert loaded.client.test[1].tolist() == [0, 1]
    assert loaded.label_names == ("a", "b")


def test_npz_regression_of_plain_vectors(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.arange(3) * 2.5)
    client = client_from_files("a", task="regression", train=tmp_path / "a.npz").client
    assert client.train[0].tolist() == [[0], [1], [2]]
    assert client.train[1].tolist() == [[0], [2.5], [5]]


# Labels


def test_text_labels_become_sorted_classes(houses):
    loaded = kinds(houses)
    assert loaded.label_names == loaded.client.labels == ("flat", "house")
    assert loaded.client.train[1].tolist() == [0, 1, 0, 1]


def labelled(tmp_path, *labels, name="a.csv"):
    rows = "".join(f"{i},{label}\n" for i, label in enumerate(labels))
    return write(tmp_path / name, "x,y\n" + rows)


@pytest.mark.parametrize(
    ("labels", "classes", "names", "codes"),
    [
        (("10", "9", "2.0", "2"), None, ("2", "9", "10"), [2, 1, 0, 0]),
        (("0", "2", "0", "2"), 4, ("0", "1", "2", "3"), [0, 2, 0, 2]),
        (("1", "2", "3", "1"), 3, ("1", "2", "3"), [0, 1, 2, 0]),
        (("0.5", "1", "1e3", "1"), None, ("0.5", "1", "1000"), [0, 1, 2, 1]),
        (("None", "NA", "x", "x"), None, ("NA", "None", "x"), [1, 0, 2, 2]),
    ],
)
def test_label_rules(tmp_path, labels, classes, names, codes):
    path = labelled(tmp_path, *labels)
    loaded = client_from_files("a", task="classification", classes=classes, train=path, targets="y")
    assert loaded.label_names == names
    assert loaded.client.train[1].tolist() == codes


def test_labels_of_other_splits_must_be_known(tmp_path):
    train, test = labelled(tmp_path, "a", "b"), labelled(tmp_path, "b", "c", name="t.csv")
    settings = {"task": "classification", "train": train, "test": test, "targets": "y"}
    with pytest.raises(DataError, match=r"t\.csv, data row 2 \(line 3\): label 'c'") as caught:
        client_from_files("a", **settings)
    assert "on_bad='drop'" in one_line(caught)
    loaded = client_from_files("a", **settings, on_bad="drop")
    assert loaded.client.test[1].tolist() == [1]
    assert loaded.dropped == {str(test): (2,)}


@pytest.mark.parametrize(
    ("labels", "classes", "says"),
    [
        (("a", "a"), None, "only training label is 'a'"),
        (("a", "b"), 3, "3 classes asked for, the training labels are 2: a, b"),
        (("1", "2", "4"), 4, r"0 \.\. 3"),
        (("a", "b", "c"), 2, "2 classes asked for"),
    ],
)
def test_labels_that_do_not_fit_the_classes(tmp_path, labels, classes, says):
    path = labelled(tmp_path, *labels)
    with pytest.raises(DataError, match=says) as caught:
        client_from_files("a", task="classification", classes=classes, train=path, targets="y")
    one_line(caught)


# Standardisation and hold-out


def test_raw_values_go_in_and_come_out(houses):
    loaded = prices(houses, standardize=True, test_share=0.25)
    assert loaded.client.size == 3
    assert loaded.client.scaling is loaded.scaling
    assert torch.allclose(loaded.client.train[0].mean(dim=0), torch.zeros(2), atol=1e-6)
    restored = loaded.scaling.restore_targets(loaded.client.train[1])
    assert set(restored[:, 0].tolist()) < {100.5, 200.5, 130.5, 400.5}


def test_standardisation_happens_before_rounding_to_single(tmp_path):
    path = write(tmp_path / "a.csv", "t,y\n1700000000,0\n1700000001,1\n1700000002,2\n")
    loaded = client_from_files("a", task="regression", train=path, targets="y", standardize=True)
    assert torch.allclose(loaded.client.train[0][:, 0], torch.tensor([-1.2247449, 0, 1.2247449]))


# Bad input


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


def test_an_empty_label_is_a_bad_row(tmp_path):
    path = labelled(tmp_path, "a", "", "b")
    with pytest.raises(DataError, match=r"data row 2 .* column 'y' has no label"):
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


def test_long_lists_of_dropped_rows_are_cut_in_the_log_only(tmp_path, caplog):
    path = write(tmp_path / "a.csv", "x,y\n1,1\n" + "?,1\n" * 30)
    with caplog.at_level(logging.WARNING):
        loaded = client_from_files("a", task="regression", train=path, targets="y", on_bad="drop")
    assert "and 10 more" in caplog.text
    assert loaded.dropped == {str(path): tuple(range(2, 32))}


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


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": [1.0, 2.0]}, "no array 'y'"),
        ({"x": [1.0, 2.0], "y": [1.0]}, "one row per sample"),
        ({"x": 1.0, "y": 1.0}, "one row per sample"),
        ({"x": ["a"], "y": [1.0]}, "array 'x' must hold numbers"),
        ({"x": [1j], "y": [1.0]}, "array 'x' must hold numbers"),
        ({"x": [1.0, np.nan], "y": [1.0, 2.0]}, "data row 2: array 'x' holds nan"),
        ({"x": [1.0, 2.0], "y": [1e300, 2.0]}, "data row 1: array 'y' holds 1e"),
        ({"x": np.zeros((0, 2)), "y": []}, "no rows left"),
        ({"x": np.array([{}, []], dtype=object), "y": [1, 2]}, "plain arrays"),
    ],
)
def test_npz_that_does_not_fit(tmp_path, arrays, says):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=says) as caught:
        client_from_files("a", task="regression", train=tmp_path / "a.npz")
    assert "a.npz" in one_line(caught)


def test_npz_label_arrays_that_do_not_fit(tmp_path):
    path = tmp_path / "a.npz"
    for y, says in (
        (np.ones((2, 2)), "one label per row"),
        (["a", " "], "row 2: array 'y' has no"),
    ):
        np.savez(path, x=[1.0, 2.0], y=y)
        with pytest.raises(DataError, match=says):
            client_from_files("a", task="classification", train=path)
    with pytest.raises(ConfigError, match="x_key and y_key"):
        client_from_files("a", task="regression", train=path, targets="y")


def test_a_single_array_or_rubbish_is_no_archive(tmp_path):
    path = tmp_path / "a.npz"
    with path.open("wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(DataError, match=r"not an \.npz"):
        client_from_files("a", task="regression", train=path)
    path.write_bytes(b"rubbish")
    with pytest.raises(DataError, match="plain arrays"):
        client_from_files("a", task="regression", train=path)


# Images


@pytest.fixture
def folder(tmp_path):
    inner = tmp_path / "faces" / "in"
    inner.mkdir(parents=True)
    Image.new("RGB", (20, 10), (255, 0, 0)).save(inner / "red.png")
    Image.new("L", (8, 8), 51).save(inner / "dark.jpg")
    deep = np.full((6, 6), 32896, dtype=np.uint16)
    Image.fromarray(deep).save(inner / "deep.png")
    Image.new("L", (8, 8), 0).save(tmp_path / "secret.png")
    (inner / "broken.jpg").write_bytes((inner / "dark.jpg").read_bytes()[:-60])
    return tmp_path / "faces"


def faces(folder, *rows, **options):
    table = "path,y\n" + "".join(f"{path},{i}\n" for i, path in enumerate(rows))
    path = write(folder.parent / "labels.csv", table)
    return client_from_files(
        "faces", task="regression", train=path, images=folder, targets="y", **options
    )


def test_images_are_read_scaled_and_sized(folder):
    rows = ("in/red.png", r"in\dark.jpg", "in/deep.png")
    x = faces(folder, *rows).client.train[0]
    assert x.shape == (3, 1, 40, 40)
    assert torch.allclose(x[:, 0, 20, 20], torch.tensor([76, 51, 128]) / 255)
    x = faces(folder, *rows, size=12, color="rgb").client.train[0]
    assert x.shape == (3, 3, 12, 12)
    assert x[0, :, 5, 5].tolist() == [1, 0, 0]


def test_images_are_standardised_per_channel(folder):
    loaded = faces(folder, "in/red.png", "in/dark.jpg", color="rgb", size=4, standardize="inputs")
    assert loaded.scaling.input_mean.shape == (3, 1, 1)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("../secret.png", "leads outside the image folder"),
        (r"..\secret.png", "leads outside the image folder"),
        ("in/../../secret.png", "leads outside the image folder"),
        ("link.png", "leads outside the image folder"),
        ("in/gone.png", "no image 'in/gone.png'"),
        ("in", "no image 'in'"),
        ("in/broken.jpg", "cannot be read"),
        ("x" * 300, "not a usable path|no image"),
        ("", "no image path"),
    ],
)
def test_bad_images_name_the_row_or_are_dropped(folder, path, says):
    (folder / "link.png").symlink_to(folder.parent / "secret.png")
    with pytest.raises(DataError, match=rf"labels\.csv, data row 2 .*'path'.*({says})") as caught:
        faces(folder, "in/red.png", path)
    one_line(caught)
    loaded = faces(folder, "in/red.png", path, on_bad="drop")
    assert loaded.client.size == 1
    assert list(loaded.dropped.values()) == [(2,)]


def test_an_absolute_path_is_outside(folder):
    with pytest.raises(DataError, match="outside"):
        faces(folder, str(Path(folder.parent / "secret.png").resolve()))


@pytest.mark.parametrize("options", [{"size": 0}, {"size": 2.5}, {"color": "gray"}])
def test_bad_image_settings(folder, options):
    with pytest.raises(ConfigError):
        faces(folder, "in/red.png", **options)
