"""Labels of a table become classes."""

from __future__ import annotations

import pytest

from data.small_tables import kinds, labelled, one_line
from fedgradnorm.data.files import client_from_files
from fedgradnorm.errors import DataError


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


def test_an_empty_label_is_a_bad_row(tmp_path):
    path = labelled(tmp_path, "a", "", "b")
    with pytest.raises(DataError, match=r"data row 2 .* column 'y' has no label"):
        client_from_files("a", task="classification", train=path, targets="y")
