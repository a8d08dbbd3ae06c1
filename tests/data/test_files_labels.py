"""Labels of a table become classes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedgradnorm as fgn
from data.small_tables import client_from_files, kinds, labelled, one_line, write
from fedgradnorm import DataError


def test_text_labels_become_sorted_classes(houses):
    loaded = kinds(houses)
    assert loaded.label_names == loaded.client.labels == ("flat", "house")
    assert loaded.client.train[1].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("labels", "classes", "names", "codes"),
    [
        (("10", "9", "2.0", "2"), None, ("2", "9", "10"), [2, 1, 0, 0]),
        (("0", "2", "0", "2"), 4, ("0", "1", "2", "3"), [0, 2, 0, 2]),
        (("1", "2", "3", "1"), 3, ("1", "2", "3"), [0, 1, 2, 0]),
        (("0.5", "1", "1e3", "1"), None, ("0.5", "1", "1000"), [0, 1, 2, 1]),
        (("no", "N", "x", "x"), None, ("N", "no", "x"), [1, 0, 2, 2]),
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


@pytest.mark.parametrize(
    ("trained", "others", "names", "codes"),
    [
        (("b", "d"), ("d", "c", "a", "c"), ("b", "d", "a", "c"), [1, 3, 2, 3]),
        (("1", "10"), ("10.0", "2.0", "x", "2"), ("1", "10", "2", "x"), [1, 2, 3, 2]),
    ],
)
def test_a_row_whose_label_was_never_trained_stays_and_counts_as_wrong(
    tmp_path, caplog, trained, others, names, codes
):
    train, test = labelled(tmp_path, *trained * 5), labelled(tmp_path, *others, name="t.csv")
    settings = {"task": "classification", "train": train, "targets": "y", "on_bad": "drop"}
    for split in ("test", "validation"):
        caplog.clear()
        loaded = client_from_files("north", **settings, **{split: test})
        client = loaded.client
        assert loaded.label_names == client.labels == names
        assert client.task.outputs == len(names)
        assert getattr(client, split)[1].tolist() == codes
        (record,) = caplog.records
        assert loaded.dropped == {}
        unseen = ", ".join(map(repr, names[2:]))
        assert f"client 'north': no training rows for label {unseen}; the 3 held-out rows" in (
            record.getMessage()
        )
    torch.manual_seed(0)
    run = fgn.train(nn.Sequential(nn.Linear(1, 4), nn.Tanh()), [client], rounds=300, lr=0.05)
    scored = run.history[run.history.split == "validation"]
    assert scored.accuracy.iloc[-1] <= 1 / 4
    assert (run.predict("north", client.validation[0]) < 2).all()


def test_a_label_beyond_the_classes_asked_for_is_an_error_in_every_mode(tmp_path):
    train, test = labelled(tmp_path, "a", "b"), labelled(tmp_path, "b", "c", name="t.csv")
    for on_bad in ("error", "drop"):
        with pytest.raises(
            DataError, match=r"t\.csv, data row 2 .*label 'c'.*leave classes = 2 out"
        ):
            client_from_files(
                "a", task="classification", train=train, test=test, targets="y", classes=2,
                on_bad=on_bad,
            )  # fmt: skip


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


def test_a_file_without_any_label_is_refused(tmp_path):
    path = labelled(tmp_path, "", "NA")
    with pytest.raises(DataError, match=r"no row has a label"):
        client_from_files("a", task="classification", train=path, targets="y")


MISSING = ("", " ", "NA", "na", "N/A", "NaN", "null", "NULL", "None", " none ")


@pytest.mark.parametrize("text", MISSING)
@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_what_is_missing_among_numbers_is_no_label(tmp_path, text, kind, caplog):
    labels = ["a", text, "b", "a", "b"]
    path, columns = tmp_path / f"a.{kind}", {"targets": "y"}
    if kind == "npz":
        np.savez(path, x=np.arange(5.0), y=np.array(labels))
        columns = {}
    else:
        frame = pd.DataFrame({"x": range(5), "y": labels})
        frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    settings = {"task": "classification", "train": path, **columns}
    with caplog.at_level("INFO"):
        loaded = client_from_files("a", **settings)
    assert "client 'a': 1 of 5 rows have no label" in caplog.text
    assert loaded.label_names == ("a", "b")
    assert loaded.dropped == {}
    assert loaded.client.size == 4
    np.testing.assert_equal(loaded.client.train[1].numpy(), [0, np.nan, 1, 0, 1])
    if kind == "csv":
        swapped = {**settings, "targets": "x", "inputs": "y", "task": "regression"}
        write(path, f"x,y\n1,1\n2,{text}\n3,3\n")
        with pytest.raises(DataError, match=r"data row 2 .*column 'y' is empty or NaN"):
            client_from_files("a", **swapped)


def test_a_client_may_hold_one_of_the_labels_that_are_listed(tmp_path):
    train, test = labelled(tmp_path, "no", "no"), labelled(tmp_path, "yes", "no", name="t.csv")
    for task in ("classification", "binary"):
        settings = {"task": task, "train": train, "test": test, "targets": "y"}
        loaded = client_from_files("a", **settings, labels=["yes", "no"])
        assert loaded.label_names == ("yes", "no")
        assert loaded.client.train[1].tolist() == [1, 1]
        assert loaded.client.test[1].tolist() == [0, 1]
        with pytest.raises(DataError, match=r"the only training label is 'no'.*labels = "):
            client_from_files("a", **settings)
        for on_bad in ("error", "drop"):
            with pytest.raises(DataError, match=r"data row 1 .*'no' is none of labels = \['yes'"):
                client_from_files("a", **settings, labels=["yes", "maybe"], on_bad=on_bad)


def test_a_number_above_a_limit_is_a_yes(tmp_path):
    path = labelled(tmp_path, "0", "0.5", "2", "-3")
    settings = {"task": "binary", "train": path, "targets": "y", "above": 0.5}
    assert client_from_files("a", **settings).label_names == ("no", "yes")
    loaded = client_from_files("a", **settings, labels=["dry", "wet"])
    assert loaded.client.labels == ("dry", "wet")
    assert loaded.client.train[1].tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"labels": ["a"]}, "labels must be at least 2 texts"),
        ({"labels": "ab"}, "labels must be a list of texts"),
        ({"labels": ["a", "b", "a"]}, "labels names 'a' more than once"),
        ({"labels": ["a", "b"], "classes": 2}, "labels and classes are both given"),
        ({"labels": ["a", "b", "c"], "task": "binary"}, "labels of a binary task are two"),
        ({"labels": ["a", "b"], "task": "regression"}, "labels is for a classification or binary"),
        ({"above": 1, "task": "classification"}, "above is for a binary"),
        ({"above": "x", "task": "binary"}, "above must be a number"),
        ({"above": 1, "positive": "a", "task": "binary"}, "above and positive are both given"),
    ],
)
def test_lists_of_labels_that_cannot_be_meant(tmp_path, options, says):
    given = {"task": "classification", "train": labelled(tmp_path, "a", "b"), "targets": "y"}
    with pytest.raises(fgn.ConfigError, match=says) as caught:
        client_from_files("a", **{**given, **options})
    one_line(caught)
