"""Every engine gives the same run as the plain one-file version of the paper."""

from __future__ import annotations

import pytest
import torch

import fedgradnorm as fgn
from oracle import EXAMPLE, compare_with_oracle, mixed_clients

STEPS = {
    (1, 1): ("loop", "joint"),
    (3, 1): ("loop", "joint", "vmap"),
    (1, 5): ("loop", "vmap"),
}
TWO_OF_THREE = 0.67
ROUNDS = 7
"""In so many each client misses a round and comes back."""


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("steps", STEPS, ids=str)
@pytest.mark.parametrize(
    ("make", "shape"), [(fgn.models.network1, (1, 40, 40)), (fgn.models.network2, (256,))]
)
def test_engines_equal_the_oracle(make, shape, steps, optimizer):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = make().double()
    clients = mixed_clients(shape)
    found = compare_with_oracle(
        network, clients, ROUNDS, optimizer, *steps, TWO_OF_THREE, STEPS[steps]
    )
    for executor, gaps in found.items():
        assert gaps.pop("moved") > 1e-6
        assert max(gaps.values()) < 1e-10, (executor, gaps)


def test_oracle_is_one_page():
    assert len(EXAMPLE.read_text().splitlines()) <= 150
