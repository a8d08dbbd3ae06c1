"""Bad data is refused when a client is made, in one line that names it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from fedgradnorm import Client, ConfigError, DataError, Task, classification, regression

X = np.ones((6, 3))
LABELS = np.array([0, 1, 2, 0, 1, 2])
VALUES = np.ones((6, 2))


def bad(index: tuple[int, ...], value: float, like: np.ndarray = X) -> np.ndarray:
    spoilt = like.astype(float)
    spoilt[index] = value
    return spoilt


@pytest.mark.parametrize(
    ("x", "y", "task", "message"),
    [
        (np.empty((0, 3)), np.empty(0), classification(3), "x is empty"),
        (X, LABELS[:4], classification(3), "x has 6 rows but y has 4"),
        (X, np.float64(1), classification(3), "x has 6 rows but y has 0"),
        (X, LABELS + 1, classification(3), "y[2] is 3; labels must be 0 .. 2"),
        (X, LABELS - 1, classification(3), "y[0] is -1; labels must be 0 .. 2"),
        (X, LABELS + 0.5, classification(3), "y[0] is 0.5; labels must be 0 .. 2"),
        (X, bad((1,), np.inf, LABELS), classification(3), "y[1] is inf"),
        (X, np.full(6, np.nan), classification(3), "none of its 6 rows has a label"),
        (X, VALUES, classification(3), "class labels must be one number a row"),
        (bad((4, 2), np.nan), LABELS, classification(3), "x[4, 2] is nan"),
        (bad((0, 1), np.inf), LABELS, classification(3), "x[0, 1] is inf"),
        (X, bad((5, 0), -np.inf, VALUES), regression(2), "y[5, 0] is -inf"),
        (X, VALUES, regression(3), "y has 2 numbers per row, and the task 3 outputs"),
        (X, LABELS, classification(7), "7 classes but only 6 training rows"),
        (np.array([["a"] * 3] * 6), LABELS, classification(3), "x must hold numbers"),
        ([[1, 2], [3]], [0, 1], classification(2), "the rows of x differ in shape"),
        (X + 1j, LABELS, classification(3), "x holds complex numbers"),
        (torch.ones(6, 3) + 1j, LABELS, classification(3), "x holds complex numbers"),
    ],
)
def test_bad_data_is_refused_by_name(x: Any, y: Any, task: Task, message: str) -> None:
    with pytest.raises(DataError) as error:
        Client("gender", task, train=(x, y))
    text = str(error.value)
    assert message in text
    assert "client 'gender'" in text
    assert "\n" not in text


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_every_split_is_checked_and_named(split: str) -> None:
    splits = {"train": (X, LABELS), split: (bad((2, 0), np.nan), LABELS)}
    with pytest.raises(DataError, match=rf"client 'a', {split} data: x\[2, 0\] is nan"):
        Client("a", classification(3), **splits)


@pytest.mark.parametrize("pair", [X, (X,), (X, LABELS, LABELS), {"x": X, "y": LABELS}])
def test_a_split_is_a_pair(pair: Any) -> None:
    with pytest.raises(DataError, match="expected a pair"):
        Client("a", classification(3), train=pair)


@pytest.mark.parametrize("name", ["", "  ", None, 3])
def test_a_client_has_a_name(name: Any) -> None:
    with pytest.raises(DataError, match="name must be a non-empty text"):
        Client(name, classification(3), train=(X, LABELS))


def test_a_name_that_no_file_can_hold_is_refused() -> None:
    with pytest.raises(DataError, match=r"client 'a\\udcff': UTF-8 cannot write character 2"):
        Client("a\udcff", classification(3), train=(X, LABELS))
    tasks = {"\ud800": classification(3)}
    with pytest.raises(DataError, match="cannot write character 3"):
        Client("a", tasks=tasks, train=(X, {"\ud800": LABELS}))


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "int8", "uint16", "int64", "uint8", "bool", ">f4"]
)
def test_any_kind_of_number_is_welcome(dtype: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client = Client("a", classification(3), train=(X.astype(dtype), LABELS.astype("uint8")))
    assert torch.equal(client.train[0].double(), torch.from_numpy(X))
    assert client.train[1].dtype == torch.int64


def test_lists_tensors_and_long_doubles_are_welcome() -> None:
    for x in (X.tolist(), torch.from_numpy(X), X.astype(np.longdouble), X[:, ::-1], X.T.copy().T):
        client = Client("a", classification(3), train=(x, LABELS.tolist()))
        assert torch.equal(client.train[0].double(), torch.from_numpy(X))


def test_labels_may_be_a_column_and_single_targets_a_plain_vector() -> None:
    assert Client("a", classification(3), train=(X, LABELS[:, None])).train[1].shape == (6,)
    assert Client("a", regression(1), train=(X, VALUES[:, 0])).train[1].shape == (6, 1)


def test_changing_the_array_afterwards_does_not_change_the_client() -> None:
    x = X.copy()
    client = Client("a", classification(3), train=(x, LABELS))
    x[:] = np.nan
    assert torch.isfinite(client.train[0]).all()


def test_a_client_without_a_task_name_is_its_own_task() -> None:
    assert Client("a", regression(2), train=(X, VALUES)).task_name == "a"
    assert Client("a", regression(2, name="pose"), train=(X, VALUES)).task_name == "pose"


@pytest.mark.parametrize("outputs", [1, 0, -1, 2.5])
def test_a_classification_needs_two_classes(outputs: Any) -> None:
    with pytest.raises(ConfigError, match="at least 2 outputs"):
        classification(outputs)


def test_values_whose_sum_overflows_are_finite_all_the_same():
    x = np.full((4, 2), 3e38, dtype=np.float32)
    assert Client("a", regression(1), (x, np.ones(4))).size == 4
    x[1], x[2] = np.inf, -np.inf
    with pytest.raises(DataError, match=r"x\[1, 0\] is inf"):
        Client("a", regression(1), (x, np.ones(4)))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
def test_a_fingerprint_is_of_values_and_not_of_where_they_lie(kind: torch.dtype) -> None:
    whole, y = torch.arange(60).view(10, 6).to(kind), torch.arange(20.0)[::2, None]
    some = whole[:, ::2]
    lying = [some, some.contiguous(), some.t().contiguous().t()]
    found = {Client("a", regression(1), (x, y)).fingerprint() for x in lying}
    assert found == {Client("a", regression(1), (some, y.contiguous())).fingerprint()}
    assert Client("a", regression(1), (some + 1, y)).fingerprint() not in found
