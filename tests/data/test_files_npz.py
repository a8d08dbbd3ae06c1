"""Clients from .npz archives, and archives that are none."""

from __future__ import annotations

import numpy as np
import pytest

from data.small_tables import client_from_files, one_line
from fedgradnorm import ConfigError, DataError


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
        ([" ", ""], "no row has a label"),
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
