"""The accountant: noise for an epsilon, held against an outside one and against closed forms."""

from __future__ import annotations

import math
import warnings

import pytest
from scipy import stats

pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")

from fedgradnorm._errors import ConfigError
from fedgradnorm._privacy.accountant import epsilon_of, most_steps, noise_for, spent

DELTA = 1e-5
USUAL = {"rate": 64 / 2000, "steps": 1000}  # 2,000 records, batches of 64


@pytest.mark.parametrize(("epsilon", "noise"), [(1, 3.9), (3, 1.6), (8, 0.91)])
def test_the_noise_of_a_usual_run_is_the_known_one(epsilon: float, noise: float) -> None:
    found = noise_for(epsilon, DELTA, **USUAL)
    assert found == pytest.approx(noise, rel=0.02)
    assert epsilon_of(found, USUAL["rate"], 1000, DELTA) <= epsilon


@pytest.mark.parametrize(("epsilon", "noise"), [(1, 1.4), (3, 0.81), (8, 0.59)])
def test_the_noise_of_a_hundred_of_ten_thousand_clients_is_the_known_one(
    epsilon: float, noise: float
) -> None:
    assert noise_for(epsilon, DELTA, 0.01, 1000) == pytest.approx(noise, rel=0.03)


@pytest.mark.parametrize("noise", [3.9, 1.6])
def test_an_outside_accountant_finds_the_same(noise: float) -> None:
    """Opacus: PRV is as tight as ours, RDP is an upper bound."""
    accountants = pytest.importorskip("opacus.accountants", reason="opacus is not installed")
    ours = epsilon_of(noise, USUAL["rate"], 1000, DELTA)
    values = {}
    for kind in (accountants.PRVAccountant, accountants.RDPAccountant):
        account = kind()
        account.history = [(noise, USUAL["rate"], 1000)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it would like more orders to try
            values[kind.__name__] = account.get_epsilon(DELTA)
    assert ours == pytest.approx(values["PRVAccountant"], rel=0.01, abs=0.01)
    assert ours < values["RDPAccountant"] < 1.25 * ours


@pytest.mark.parametrize(("noise", "steps"), [(30.0, 200), (4.0, 1)])
def test_without_sampling_it_is_the_gaussian_mechanism(noise: float, steps: int) -> None:
    """Balle and Wang (2018): delta = Phi(m/2 - e/m) - exp(e) Phi(-m/2 - e/m), m = sqrt(T)/sigma."""
    epsilon, m = epsilon_of(noise, 1.0, steps, DELTA), math.sqrt(steps) / noise
    phi = stats.norm.cdf
    delta = phi(m / 2 - epsilon / m) - math.exp(epsilon) * phi(-m / 2 - epsilon / m)
    assert delta == pytest.approx(DELTA, rel=0.02)


def test_a_sum_over_all_records_is_paid_for() -> None:
    plain = epsilon_of(3.9, USUAL["rate"], 1000, DELTA)
    with_first = epsilon_of(3.9, USUAL["rate"], 1000, DELTA, 39.0)
    alone = epsilon_of(39.0, 1.0, 1, DELTA)
    assert plain < with_first < plain + alone
    noise = noise_for(1.0, DELTA, **USUAL, first_factor=10.0)
    assert epsilon_of(noise, USUAL["rate"], 1000, DELTA, 10 * noise) <= 1.0


@pytest.mark.parametrize("noise", [3.9, 0.91])
def test_what_is_said_on_the_way_is_close_to_the_exact_and_never_falls(noise: float) -> None:
    said = [spent(noise, USUAL["rate"], k, DELTA) for k in (1, 3, 9, 11, 40, 48, 300, 700)]
    assert said == sorted(said)
    for k in (11, 48, 700):
        exact = epsilon_of(noise, USUAL["rate"], k, DELTA)
        assert exact <= spent(noise, USUAL["rate"], k, DELTA) < 1.01 * exact


def test_the_last_step_within_a_budget_is_found() -> None:
    rate = USUAL["rate"]
    most = most_steps(3.0, DELTA, 1.6, rate, 5000)
    assert epsilon_of(1.6, rate, most, DELTA) <= 3.0 < epsilon_of(1.6, rate, most + 1, DELTA)
    assert most_steps(3.0, DELTA, 1.6, rate, 10) == 10
    assert most_steps(1e-3, DELTA, 0.5, 1.0, 10) == 0


def test_a_budget_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(ConfigError, match="no noise makes"):
        noise_for(1e-9, 1e-12, 1.0, 1000)
