"""Labels as texts: listed in the task, or learned on the training targets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from torch import nn

import fedgradnorm as fgn


def test_an_array_of_texts_is_as_good_as_class_numbers() -> None:
    x = np.random.default_rng(0).normal(size=(9, 2))
    names = np.array(["mid", "low", "high"] * 3)
    learned = fgn.Client("a", fgn.classification(3), train=(x, names), test=(x[:2], names[:2]))
    assert learned.labels == ("high", "low", "mid")
    assert learned.train[1].tolist() == [2, 1, 0] * 3
    order = ["low", "mid", "high"]
    tasks = (fgn.classification(labels=order), fgn.classification(3, labels=order))
    for task in tasks:
        for y in (names, names.tolist(), names[:, None], pd.Series(names, dtype="category")):
            listed = fgn.Client("a", task, train=(x, y))
            assert listed.labels == ("low", "mid", "high")
            assert listed.train[1].tolist() == [1, 0, 2] * 3
    ones = fgn.Client("a", fgn.binary(labels=["no", "yes"]), train=(x, ["yes"] * 9))
    assert ones.train[1].tolist() == [1] * 9
    numbers = fgn.Client("a", fgn.binary(labels=["no", "yes"]), train=(x, np.arange(9) % 2))
    assert numbers.labels == ("no", "yes")
    run = fgn.train(nn.Sequential(nn.Linear(2, 4)), [ones], rounds=2)
    assert set(run.predict("a", x, kind="label")) <= {"no", "yes"}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: fgn.classification(), "a number of classes or a list of labels"),
        (lambda: fgn.classification(3, labels=["a", "b"]), "2 labels for 3 classes"),
        (lambda: fgn.classification(labels=["a", "a"]), "labels names 'a' more than once"),
        (lambda: fgn.binary(labels=["a", "b", "c"]), "a binary task has two labels, not 3"),
        (lambda: client(fgn.classification(2), ["a", "b", "c"]), "2 classes asked for"),
        (lambda: client(fgn.classification(2), ["a", "a", "a"]), "the only training label is 'a'"),
        (
            lambda: client(fgn.classification(labels=["a", "b"]), ["a", "b", "c"]),
            r"client 'a', train data: y\[2\] is 'c', none of its labels \('a', 'b'\); correct it",
        ),
        (lambda: client(fgn.regression(1), ["a", "b", "c"]), "must hold numbers"),
        (lambda: client(fgn.classification(2), np.array(["a", 3], object)), "must hold numbers"),
    ],
)
def test_labels_that_do_not_fit_are_named(make: Any, says: str) -> None:
    with pytest.raises(fgn.FedGradNormError, match=says):
        make()


def client(task: fgn.Task, y: Any) -> fgn.Client:
    return fgn.Client("a", task, train=(np.ones((len(y), 2)), y))


def test_no_text_is_no_label_and_several_tasks_have_their_own() -> None:
    x = np.random.default_rng(0).normal(size=(6, 2))
    state = np.array(["b", None, "a", "", "b", "a"], dtype=object)
    one = client(fgn.classification(2), state)
    assert one.size == 4
    assert one.labels == ("a", "b")
    tasks = {"state": fgn.classification(2), "dry": fgn.binary(labels=["no", "yes"])}
    both = fgn.Client("c", tasks=tasks, train=(x, {"state": state, "dry": ["yes"] * 6}))
    assert [row.labels for row in both.rows] == [("a", "b"), ("no", "yes")]
    assert both.rows[1].train[1].tolist() == [1] * 6
    with pytest.raises(fgn.DataError, match=r"task 'dry': y\[0\] is 'wet', none of its labels"):
        fgn.Client("c", tasks=tasks, train=(x, {"state": state, "dry": ["wet"] * 6}))
