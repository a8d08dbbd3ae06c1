"""The accountant: noise for an epsilon, held against an outside one and against closed forms."""

from __future__ import annotations

import math
import warnings

import pytest
from scipy import stats

pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")

from fedgradnorm._errors import ConfigError
from fedgradnorm._privacy.accountant import Steps, epsilon_of, noise_for, spent
from fedgradnorm._privacy.plan import Plan
from fedgradnorm._privacy.terms import Privacy

DELTA, RATE = 1e-5, 64 / 2000  # 2,000 records, batches of 64


def cost(noise: float, steps: int = 1000, rate: float = RATE, *more: Steps) -> float:
    return epsilon_of((Steps(noise, rate, steps), *more), DELTA)


def least(epsilon: float, rate: float = RATE) -> float:
    return noise_for(epsilon, DELTA, lambda noise: (Steps(noise, rate, 1000),))


@pytest.mark.parametrize(("epsilon", "noise"), [(1, 3.9), (3, 1.6), (8, 0.91)])
def test_the_noise_of_a_usual_run_is_the_known_one(epsilon: float, noise: float) -> None:
    found = least(epsilon)
    assert found == pytest.approx(noise, rel=0.02)
    assert cost(found) <= epsilon < cost(found / 1.003)


@pytest.mark.parametrize(("epsilon", "noise"), [(1, 1.4), (3, 0.81), (8, 0.59)])
def test_the_noise_of_a_hundred_of_ten_thousand_clients_is_the_known_one(
    epsilon: float, noise: float
) -> None:
    assert least(epsilon, 0.01) == pytest.approx(noise, rel=0.03)


@pytest.mark.parametrize("noise", [3.9, 1.6])
def test_an_outside_accountant_finds_the_same(noise: float) -> None:
    """Opacus: PRV is as tight as ours, RDP is an upper bound."""
    accountants = pytest.importorskip("opacus.accountants", reason="opacus is not installed")
    values = {}
    for kind in (accountants.PRVAccountant, accountants.RDPAccountant):
        account = kind()
        account.history = [(noise, RATE, 1000)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it would like more orders to try
            values[kind.__name__] = account.get_epsilon(DELTA)
    assert cost(noise) == pytest.approx(values["PRVAccountant"], rel=0.01, abs=0.01)
    assert cost(noise) < values["RDPAccountant"] < 1.25 * cost(noise)


@pytest.mark.parametrize(("noise", "steps"), [(30.0, 200), (4.0, 1)])
def test_without_sampling_it_is_the_gaussian_mechanism(noise: float, steps: int) -> None:
    """Balle and Wang (2018): delta = Phi(m/2 - e/m) - exp(e) Phi(-m/2 - e/m), m = sqrt(T)/sigma."""
    epsilon, m = cost(noise, steps, 1.0), math.sqrt(steps) / noise
    phi = stats.norm.cdf
    delta = phi(m / 2 - epsilon / m) - math.exp(epsilon) * phi(-m / 2 - epsilon / m)
    assert delta == pytest.approx(DELTA, rel=0.02)


def test_a_sum_over_all_records_is_paid_for_and_equal_steps_add_up() -> None:
    plain, first = cost(3.9), Steps(39.0, 1.0, 1)
    assert plain < cost(3.9, 1000, RATE, first) < plain + epsilon_of((first,), DELTA)
    assert cost(3.9, 400, RATE, Steps(3.9, RATE, 600)) == plain
    assert cost(3.9, 0) == 0


@pytest.mark.parametrize("noise", [3.9, 0.91])
def test_what_is_said_on_the_way_is_close_to_the_exact_and_never_falls(noise: float) -> None:
    said = {k: spent(Steps(noise, RATE, k), DELTA) for k in (1, 3, 9, 11, 48, 300, 700)}
    assert list(said.values()) == sorted(said.values())
    for k in (11, 48, 700):
        assert cost(noise, k) <= said[k] < 1.01 * cost(noise, k)


def test_the_noise_of_a_run_depends_on_what_was_released_before_it() -> None:
    terms, plan = Privacy(3.0, DELTA), Plan(RATE, 1, 100)
    noise = plan.noise(terms)
    half = plan.round(noise, rounds=50)
    later = plan.noise(terms, half)
    assert later > noise
    assert epsilon_of((*half, *plan.round(later, rounds=100)), DELTA) <= 3.0
    with pytest.raises(ConfigError, match="already spent"):
        plan.noise(terms, plan.round(noise, rounds=100))
    with pytest.raises(ConfigError, match="a single round"):
        plan.noise(Privacy(0.001, DELTA, noise_multiplier=noise))


def test_the_first_loss_costs_about_a_hundredth_of_a_step() -> None:
    plan = Plan(1.0, 1, 100, first=True)
    (loss, step), again = plan.round(4.0, first=True), plan.round(4.0)
    assert again == (step,)
    assert loss == Steps(40.0, 1.0, 1)
