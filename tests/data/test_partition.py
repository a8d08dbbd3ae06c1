from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgradnorm import Client, classification, regression
from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm.data._partition import (
    Dirichlet,
    Iid,
    Pathological,
    Size,
    partition_client,
    partitioner,
)

LABELS = np.random.default_rng(0).integers(0, 5, size=500)
EXAMPLES = [
    Iid(7),
    Size([100, 30, 370]),
    Dirichlet(5, 0.5),
    Pathological(20, 2),
]
each = pytest.mark.parametrize("example", EXAMPLES, ids=repr)


def assert_disjoint_and_sorted(parts, rows):
    together = np.concatenate(parts)
    assert len(set(together.tolist())) == len(together)
    assert together.min() >= 0
    assert together.max() < rows
    for part in parts:
        assert part.dtype == np.int64
        assert (np.diff(part) > 0).all()
        assert len(part) > 0


def assert_covers(parts, rows):
    assert sorted(np.concatenate(parts).tolist()) == list(range(rows))


@each
def test_parts_are_disjoint_sorted_and_cover(example):
    parts = example.split(LABELS, seed=3)
    assert_disjoint_and_sorted(parts, len(LABELS))
    assert_covers(parts, len(LABELS))


@each
def test_the_seed_decides(example):
    first, again, other = (example.split(LABELS, seed=seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_a_config_describes_them():
    assert partitioner({"name": "iid", "parts": 3}) == Iid(3)
    assert partitioner({"name": "size", "sizes": [1, 2]}) == Size((1, 2))
    assert partitioner({"name": "dirichlet", "parts": 2, "alpha": 1}) == Dirichlet(2, 1)
    found = partitioner({"name": "pathological", "parts": 2, "classes_per_part": 1})
    assert found == Pathological(2, 1)


@each
def test_labels_may_be_tensors_lists_or_texts(example):
    expected = example.split(LABELS, seed=0)
    texts = [f"class {label}" for label in LABELS]
    for labels in (torch.tensor(LABELS), LABELS.tolist(), texts, LABELS.astype(float)):
        for a, b in zip(example.split(labels, seed=0), expected, strict=True):
            assert np.array_equal(a, b)


@settings(deadline=None, max_examples=100)
@given(rows=st.integers(1, 300), parts=st.integers(1, 20), seed=st.integers(0, 2**32))
def test_iid_law(rows, parts, seed):
    if rows < parts:
        with pytest.raises(DataError, match="cannot fill"):
            Iid(parts).split(rows, seed)
        return
    split = Iid(parts).split(rows, seed)
    sizes = [len(part) for part in split]
    assert_disjoint_and_sorted(split, rows)
    assert_covers(split, rows)
    assert len(split) == parts
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None, max_examples=100)
@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=8), rows=st.integers(1, 200))
def test_size_law(sizes, rows):
    if sum(sizes) > rows:
        with pytest.raises(DataError, match="add up to"):
            Size(sizes).split(rows, 0)
    else:
        parts = Size(sizes).split(rows, 0)
        assert [len(part) for part in parts] == sizes
        assert_disjoint_and_sorted(parts, rows)


@settings(deadline=None, max_examples=150)
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=120),
    parts=st.integers(1, 8),
    alpha=st.floats(1e-6, 1e6),
    min_size=st.integers(1, 12),
    seed=st.integers(0, 1000),
)
def test_dirichlet_law(labels, parts, alpha, min_size, seed):
    try:
        split = Dirichlet(parts, alpha, min_size).split(labels, seed)
    except DataError as error:
        assert "Dirichlet" in str(error)  # noqa: PT017
        return
    assert_disjoint_and_sorted(split, len(labels))
    assert_covers(split, len(labels))
    assert min(len(part) for part in split) >= min_size


@settings(deadline=None, max_examples=150)
@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=120),
    parts=st.integers(1, 8),
    held=st.integers(1, 6),
    seed=st.integers(0, 1000),
)
def test_pathological_law(labels, parts, held, seed):
    try:
        split = Pathological(parts, held).split(labels, seed)
    except DataError as error:
        assert "lower" in str(error)  # noqa: PT017
        return
    assert_disjoint_and_sorted(split, len(labels))
    classes = [set(np.array(labels)[part].tolist()) for part in split]
    assert all(len(each) == held for each in classes)
    everything = sorted(label for label in labels if label in set.union(*classes))
    assert sorted(np.array(labels)[np.concatenate(split)].tolist()) == everything


def test_small_alpha_is_more_uneven_than_large():
    def unevenness(alpha):
        shares = [
            np.bincount(LABELS[part], minlength=5) / len(part)
            for seed in range(5)
            for part in Dirichlet(4, alpha, min_size=1).split(LABELS, seed)
        ]
        return float(np.var(shares, axis=0).mean())

    assert unevenness(0.1) > 5 * unevenness(100)


def test_rows_left_out_are_said(caplog):
    with caplog.at_level(logging.WARNING):
        Size([3]).split(10, 0)
        Pathological(1, 1).split([0, 0, 1, 1], 0)
    assert "7 of 10 rows go to no part" in caplog.text
    assert "(2 rows) goes to no part" in caplog.text


@pytest.mark.parametrize(
    ("example", "labels", "says"),
    [
        (Iid(4), 3, "3 rows cannot fill 4"),
        (Iid(1), 0, "0 rows"),
        (Size([5, 6]), 10, "add up to 11"),
        (Dirichlet(2, 1.0), 100, "needs a label per row"),
        (Dirichlet(2, 1.0), np.linspace(0, 1, 50), "not real numbers"),
        (Dirichlet(2, 1.0), np.ones((50, 2)), "one label per row"),
        (Dirichlet(11, 1.0), [0] * 100, "need 110 rows"),
        (Dirichlet(10, 1e-6, min_size=9), [0, 1] * 50, "in 100 draws"),
        (Pathological(2, 3), [0, 1] * 5, "the data has 2"),
        (Pathological(5, 1), [0] * 4, "class 0 has 4 rows for the 5"),
        (Pathological(2, 1), [], "one label per row"),
    ],
)
def test_requests_that_cannot_be_met_say_why(example, labels, says):
    with pytest.raises(DataError, match=says) as caught:
        example.split(labels, seed=0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Iid(0), "parts"),
        (lambda: Iid(2.5), "parts"),
        (lambda: Size([]), "at least one part"),
        (lambda: Size([3, 0]), "sizes"),
        (lambda: Dirichlet(2, -1.0), "alpha"),
        (lambda: Dirichlet(2, float("nan")), "alpha"),
        (lambda: Dirichlet(2, 1.0, min_size=0), "min_size"),
        (lambda: Pathological(2, 0), "classes_per_part"),
        (lambda: partitioner({"name": "idd", "parts": 2}), "did you mean 'iid'"),
        (lambda: partitioner({"name": "iid", "part": 2}), "part"),
        (lambda: Iid(2).split(5, seed=-1), "seed"),
    ],
)
def test_settings_out_of_range_are_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


@pytest.mark.parametrize(
    ("given", "same"),
    [
        (Iid(3.0), Iid(3)),
        (Size([3.0, 1.0]), Size([3, 1])),
        (Dirichlet(3.0, 1.0, min_size=2.0), Dirichlet(3, 1.0, min_size=2)),
        (Pathological(3.0, 2.0), Pathological(3, 2)),
    ],
)
def test_a_whole_number_may_be_written_as_a_float(given, same):
    labels = np.arange(60) % 3
    parts, others = given.split(labels, seed=0), same.split(labels, seed=0)
    assert given == same
    assert all(map(np.array_equal, parts, others))


def test_a_client_is_shared_out():
    x, y = np.arange(40.0).reshape(20, 2), np.arange(20) % 2
    held_out = (x[:3], y[:3])
    whole = Client("digits", classification(2), train=(x, y), test=held_out, labels=("a", "b"))
    parts = partition_client(whole, Iid(3), seed=0)
    assert [part.name for part in parts] == ["digits-0", "digits-1", "digits-2"]
    assert {part.task_name for part in parts} == {"digits"}
    assert {part.labels for part in parts} == {("a", "b")}
    assert all(torch.equal(part.test[0], whole.test[0]) for part in parts)
    rows = torch.cat([part.train[0] for part in parts])
    assert sorted(rows[:, 0].tolist()) == x[:, 0].tolist()
    for part in parts:
        assert torch.equal(part.train[1], (part.train[0][:, 0] / 2).long() % 2)


def test_a_task_that_has_a_name_keeps_it():
    whole = Client("a", regression(1, name="price"), train=(np.ones((4, 1)), np.ones(4)))
    assert [part.task_name for part in partition_client(whole, Iid(2), 0)] == ["price"] * 2


def test_a_regression_has_no_classes_to_go_by():
    whole = Client("a", regression(1), train=(np.ones((40, 1)), np.ones(40)))
    with pytest.raises(DataError, match=r"client 'a': Dirichlet .* use Iid"):
        partition_client(whole, Dirichlet(2, 1.0), 0)
