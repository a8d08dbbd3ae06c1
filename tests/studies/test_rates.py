"""Rates: what is fitted on sequences whose rate is known."""

import pytest
import torch

from fedgradnorm import DataError
from studies.theory.rates import fit_rate, power_law, spectral_radius

K = torch.arange(500, dtype=torch.float64)


@pytest.mark.parametrize("rate", [0.8, 0.93, 0.97])
def test_a_pure_exponential_is_found_exactly(rate):
    found = fit_rate(3.0 * rate**K)
    assert found.value == pytest.approx(rate, rel=1e-10)
    assert found.low <= rate <= found.high
    assert found.high - found.low < 1e-9


def test_a_dying_mode_and_rounding_are_covered_by_the_interval():
    errors = 0.94**K + 5 * 0.90**K + 1e-15
    found = fit_rate(errors)
    assert found.value == pytest.approx(0.94, rel=1e-3)
    assert found.low <= 0.94 <= found.high


def test_a_sequence_that_does_not_fall_has_no_rate():
    with pytest.raises(DataError, match="run longer"):
        fit_rate(torch.ones(100, dtype=torch.float64))


def test_power_law_and_spectral_radius():
    x = torch.tensor([1.0, 2.0, 4.0])
    assert power_law(x, 3 * x**1.5) == pytest.approx(1.5, rel=1e-5)
    turn = 0.9 * torch.tensor([[0.0, -1.0], [1.0, 0.0]])  # a complex pair
    assert spectral_radius(turn) == pytest.approx(0.9)
