"""Batches come from a counter and nothing else."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedgradnorm._round.batches import AT_ONCE, Batches, permutations
from fedgradnorm._round.seeding import number

sizes, batch_sizes = st.integers(1, 40), st.integers(1, 12)


@given(size=sizes, batch_size=batch_sizes, passes=st.integers(1, 4))
def test_every_row_is_read_once_a_pass(size: int, batch_size: int, passes: int) -> None:
    batches = Batches({"a": size}, batch_size, seed=3)
    steps = -(-passes * size // batches.batch["a"])
    stream = batches.many(["a"], 0, steps)["a"].ravel()
    for start in range(0, passes * size, size):
        assert sorted(stream[start : start + size]) == list(range(size))


@given(size=sizes, batch_size=batch_sizes, step=st.integers(0, 200))
def test_a_batch_does_not_depend_on_what_was_read_before(
    size: int, batch_size: int, step: int
) -> None:
    fresh, used = (Batches({"a": size, "b": 7}, batch_size, seed=0) for _ in range(2))
    used.many(["a", "b"], 0, 5)
    used.rows("a", step + 3)
    assert np.array_equal(fresh.rows("a", step), used.rows("a", step))


@given(size=sizes, batch_size=batch_sizes, first=st.integers(0, 50), steps=st.integers(1, 9))
def test_many_batches_are_the_single_ones_in_order(
    size: int, batch_size: int, first: int, steps: int
) -> None:
    batches = Batches({"a": size}, batch_size, seed=1)
    together = batches.many(["a"], first, steps)["a"]
    single = [batches.rows("a", step) for step in range(first, first + steps)]
    assert np.array_equal(together, np.stack(single))


def test_a_batch_may_straddle_two_passes() -> None:
    batches = Batches({"a": 5}, 3, seed=0)
    first, second = batches.rows("a", 0), batches.rows("a", 1)
    assert len(second) == 3
    assert set(first) | set(second[:2]) == set(range(5))


@pytest.mark.parametrize("batch_size", [None, 5, 500])
def test_a_full_batch_is_all_rows(batch_size: int | None) -> None:
    batches = Batches({"a": 5}, batch_size, seed=0)
    for step in range(4):
        assert sorted(batches.rows("a", step)) == list(range(5))


def test_seeds_clients_and_passes_read_in_different_orders() -> None:
    orders = [
        tuple(Batches({"a": 50, "b": 50}, None, seed).rows(name, step))
        for seed, name, step in itertools.product((0, 1), "ab", (0, 1))
    ]
    assert len(set(orders)) == len(orders)


def test_who_else_takes_part_does_not_matter() -> None:
    alone, among = Batches({"a": 20}, 4, seed=5), Batches({"z": 9, "a": 20}, 4, seed=5)
    assert np.array_equal(alone.rows("a", 11), among.rows("a", 11))


def test_the_rows_of_a_seed_never_change() -> None:
    """A published seed must give the same batches on every machine and in every version."""
    batches = Batches({"gender": 10}, 4, seed=0)
    assert batches.many(["gender"], 0, 3)["gender"].tolist() == [
        [2, 9, 6, 5],
        [0, 8, 7, 1],
        [4, 3, 6, 5],
    ]


def test_permutations_are_uniform_over_places() -> None:
    first = permutations(torch.arange(4000) * 977, 5)[:, 0]
    counts = torch.bincount(first, minlength=5)
    assert ((counts > 700) & (counts < 900)).all(), counts


def test_number_is_stable_and_tells_its_parts_apart() -> None:
    assert number(0, "head", "a") == 6299312106647080345
    assert len({number(0, "a"), number("a", 0), number(1, "a"), number(0, "b")}) == 4


@given(
    batch_size=batch_sizes,
    steps=st.integers(1, 4),
    rounds=st.lists(st.integers(0, 60), min_size=1, max_size=6),
)
def test_a_round_reads_the_next_steps_in_whatever_order_rounds_are_asked_for(
    batch_size: int, steps: int, rounds: list[int]
) -> None:
    sizes = {"a": 13, "b": 30, "c": 13}
    by_round, single = (Batches(sizes, batch_size, 2, n) for n in (steps, 1))
    for round_number in rounds:
        for name, rows in by_round.of_round(round_number).items():
            expected = single.many([name], round_number * steps, steps)[name]
            assert np.array_equal(rows, expected)


def test_large_clients_are_drawn_one_by_one_to_the_same_rows(monkeypatch):
    sizes = {"a": 50, "b": 50, "c": 21}
    together = Batches(sizes, 8, seed=3, steps=2).many(["a", "b", "c"], 5, 40)
    monkeypatch.setitem(AT_ONCE, "cpu", 1)
    apart = Batches(sizes, 8, seed=3, steps=2).many(["a", "b", "c"], 5, 40)
    for name, rows in together.items():
        assert (rows == apart[name]).all()
