"""Runs give the numbers that were recorded, whoever computes them and however they are carried out.

Where numbers are meant to change, ``python tests/golden/record.py tests/golden/golden.npz`` records
them anew; ``--compare`` says what has changed by how much.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch

from golden.adapter import Result, result
from golden.cases import CASES, PROBLEMS, SOLVED, Case
from golden.record import GOLDEN, difference, read

AGREED = 1e-10
"""How far cases of one problem may be apart, relative to the largest number of an array."""

DRAWN = -5.07158279500436
"""The sum of start values as PyTorch drew them where the runs were recorded."""


def alike() -> bool:
    """Whether PyTorch draws the same start values here.

    It draws those of heads in float32, and rounds them otherwise on processors without AVX2.
    """
    chance = torch.Generator().manual_seed(5)
    drawn = torch.empty(500).uniform_(-0.37, 0.37, generator=chance)
    return abs(float(drawn.double().sum()) - DRAWN) < 1e-9


@cache
def recorded() -> dict[str, Result]:
    return read(GOLDEN)


@cache
def computed(name: str) -> Result:
    """A case as it runs today; once in a process."""
    if CASES[name].carried == "flower":
        pytest.importorskip("flwr", reason="Flower is not installed")
    torch.manual_seed(0)
    return result(CASES[name])


def marked(case: Case) -> object:
    return pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.slow else [])


@pytest.mark.parametrize("case", [marked(case) for case in CASES.values()])
def test_a_run_gives_the_recorded_numbers(case: Case) -> None:
    if not alike():
        pytest.skip("PyTorch draws other start values on this processor")
    found = difference(recorded()[case.name], computed(case.name))
    assert found.relative <= case.tolerance, found


@pytest.mark.parametrize(
    ("first", "other"),
    [
        pytest.param(those[0], other, id=f"{those[0].name} and {other.name}", marks=marks)
        for those in PROBLEMS.values()
        for other in those[1:]
        for marks in [[pytest.mark.slow] if other.slow else []]
    ],
)
def test_cases_of_one_problem_agree(first: Case, other: Case) -> None:
    partial = other.carried == "flower"  # a server there does not evaluate
    found = difference(computed(first.name), computed(other.name), common=partial)
    assert found.relative <= (AGREED if first.tolerance < SOLVED else SOLVED), found


def test_every_case_is_recorded() -> None:
    assert list(recorded()) == list(CASES)
