"""Who participates in a round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedgradnorm as fgn
import flat
import toys
from fedgradnorm._round.participation import participants
from fedgradnorm._round.settings import Settings

NAMES = ["ann", "bob", "cy", "dee", "eve"]


@given(seed=st.integers(0, 1000), share=st.floats(0.01, 1), round_number=st.integers(0, 999))
def test_a_fraction_draws_that_many_clients_from_seed_and_round(
    seed: int, share: float, round_number: int
) -> None:
    active = participants(share, seed, NAMES, round_number)
    assert len(active) == max(1, round(share * len(NAMES)))
    assert active == [name for name in NAMES if name in active]  # in their own order
    assert active == participants(share, seed, NAMES, round_number)


def test_drawing_is_fair_and_differs_between_rounds_and_seeds() -> None:
    draws = [tuple(participants(0.4, seed, NAMES, r)) for seed in (0, 1) for r in range(200)]
    assert draws[:200] != draws[200:]
    for name in NAMES:
        assert 0.3 < sum(name in draw for draw in draws) / len(draws) < 0.5


def test_everybody_takes_part_by_default() -> None:
    assert participants(Settings().participation, 0, NAMES, 3) == NAMES


def test_a_list_of_names_is_taken_every_round_and_lists_in_turn() -> None:
    assert participants(["cy", "ann"], 0, NAMES, 7) == ["ann", "cy"]
    plan = [["ann"], ["bob", "cy"]]
    drawn = [participants(plan, 0, NAMES, r) for r in range(3)]
    assert drawn == [["ann"], ["bob", "cy"], ["ann"]]


@pytest.mark.parametrize("plan", [["bobb"], [["ann"], ["bobb"]], [], [[]]])
def test_a_list_with_an_unknown_client_or_none_is_refused_before_training(
    plan: Any, tmp_path: Path
) -> None:
    clients = [toys.client(name, 20, "side") for name in NAMES]
    with pytest.raises(fgn.ConfigError, match=r"client in (server\.)?participation"):
        flat.train(toys.network(), clients, rounds=9, participation=plan, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
