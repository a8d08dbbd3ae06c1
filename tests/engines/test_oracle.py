"""Every engine gives the same run as the plain one-file version of the paper."""

from __future__ import annotations

import pytest
import torch
from oracle import EXAMPLE, compare_with_oracle, mixed_clients

import fedgradnorm as fgn

ENGINES = ["loop"]
STEPS = [(1, 1), (3, 1), (1, 5)]
TWO_OF_THREE = 0.67


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize(
    ("make", "shape"), [(fgn.models.network1, (1, 40, 40)), (fgn.models.network2, (256,))]
)
def test_engine_equals_oracle(make, shape, steps, optimizer, engine):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = make().double()
    gaps = compare_with_oracle(
        network, mixed_clients(shape), 50, optimizer, *steps, TWO_OF_THREE, engine
    )
    assert gaps.pop("moved") > 1e-6
    assert max(gaps.values()) < 1e-10, gaps


def test_oracle_is_one_page():
    assert len(EXAMPLE.read_text().splitlines()) <= 150
