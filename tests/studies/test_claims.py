"""Every claim of the table with the tolerance it is stated with."""

from functools import cache

import pytest
import torch

from fedgradnorm.weighting import Static
from studies.theory import study_assumptions, study_bilevel, study_rules
from studies.theory.claims import STUDIES
from studies.theory.problems import conflicting
from studies.theory.rates import fit_rate, spectral_radius
from studies.theory.simulated_rounds import Steps, block_update, follow

pytestmark = pytest.mark.slow


@cache
def claims(study):
    return {claim.key: claim for claim in STUDIES[study]().claims}


def claim(study, key):
    found = claims(study)[key]
    return found.verdict, found.numbers


@pytest.mark.parametrize("seed", [1, 4, 7])
@pytest.mark.parametrize("head_steps", [1, 4])
def test_t1_the_rate_is_the_spectral_radius_within_one_per_cent(seed, head_steps):
    problem, steps = conflicting(seed), Steps(head_steps=head_steps)
    weights = torch.tensor([0.6, 0.9, 1.5], dtype=torch.float64)
    weighting = Static(dict(zip(problem.names, weights.tolist(), strict=True)))
    errors = follow(problem, weighting, steps, 340).errors(problem.optimum(weights))
    exact = spectral_radius(block_update(problem, weights, steps))
    assert fit_rate(errors).value == pytest.approx(exact, rel=0.01)


def test_t1_as_the_table_says():
    verdict, numbers = claim("fixed weights, one shared step", "T1")
    assert verdict == "holds"
    assert numbers["deviation"] < 0.01
    assert numbers["last_error"] < 1e-12


@pytest.mark.slow
def test_t2_five_shared_steps_are_linear_to_a_biased_point():
    study = "fixed weights, five shared steps"
    verdict, numbers = claim(study, "T2")
    assert verdict == "holds with a floor"
    assert numbers["deviation"] < 0.01
    assert numbers["floor"] > 1e-3
    verdict, numbers = claim(study, "T2 bias")
    assert verdict == "holds"
    assert numbers["apart"] < 1e-10
    assert numbers["exponent"] == pytest.approx(1, abs=0.05)
    assert numbers["first_order"] < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_t3_p_chatters_in_proportion_to_alpha_and_w_has_a_floor(optimizer):
    verdict, numbers = claim("absolute rule, constant alpha", f"T3 {optimizer}")
    assert verdict == "holds with a floor"
    assert numbers["exponent"] == pytest.approx(1, abs=0.15)
    assert numbers["floor"] > 1e-4
    assert 3 < numbers["floor_falls"] < 30  # alpha falls by 8


@pytest.mark.slow
def test_t3_the_absolute_rule_rests_elsewhere_unless_gamma_is_one():
    verdict, numbers = claim("absolute rule, constant alpha", "T3 limit")
    assert verdict == "does not hold"
    assert numbers["apart"] == pytest.approx(0.0084, abs=1e-4)
    assert numbers["engine"] == pytest.approx(numbers["apart"], rel=0.2)
    assert numbers["gamma_one"] < 1e-12


@pytest.mark.parametrize("rule", ["direct", "relative", "squared"])
def test_t4_smooth_rules_converge_linearly_at_the_rounds_spectral_radius(rule):
    verdict, numbers = claim("smooth rules", f"T4 {rule}")
    assert verdict == "holds"
    assert numbers["deviation"] < 0.01
    assert numbers["last_error"] < 1e-12
    assert (numbers["apart"] < 1e-12) == (rule != "squared")


def test_t4_squared_and_direct_rest_at_one_point_when_gamma_is_one():
    problem = conflicting()
    rule = study_rules.rules()["squared"]
    rule.gamma = 1.0
    limit, _ = study_rules.rest(problem, rule)
    assert (limit - study_rules.balanced(problem, 1.0)).norm() < 1e-12


def test_t4_squared_with_adam_arrives_and_leaves_at_a_nudge():
    verdict, numbers = claim("squared rule with Adam", "T4 squared, Adam")
    assert verdict == "holds with a floor"
    assert numbers["arrived"] < 1e-14
    assert numbers["late"] > 1e-4


@pytest.mark.slow
def test_t4_decaying_alpha():
    study = "absolute rule, decaying alpha"
    verdict, numbers = claim(study, "T4 1/sqrt k")
    assert verdict == "holds"
    assert numbers["last"] < 0.01
    assert numbers["per_alpha"] < 6
    verdict, numbers = claim(study, "T4 1/k")
    assert verdict == "does not hold"
    assert numbers["last"] > 0.3
    assert numbers["larger"] < 0.01


def test_t5_the_fixed_point_of_direct_is_pareto_stationary():
    verdict, numbers = claim("Pareto stationarity", "T5")
    assert verdict == "holds"
    assert numbers["residual"] < 1e-12
    assert numbers["heads"] < 1e-12
    assert numbers["least"] > 0.5


def test_audit_f_grad_is_not_strongly_convex():
    (found,) = study_assumptions.weights_audit().claims
    assert found.verdict == "does not hold"
    assert abs(found.numbers["modulus"]) < 1e-12
    assert found.numbers["slope"] > 1


def test_audit_a_linear_head_on_a_linear_representation_is_not_convex():
    (found,) = study_assumptions.head_audit().claims
    assert found.verdict == "does not hold"
    assert found.numbers["ends"] < 1e-20
    assert found.numbers["between"] == pytest.approx(0.5)
    assert found.numbers["curvature"] == pytest.approx(-1)
    assert found.numbers["distance"] > 2


def test_itd_limits_equal_their_closed_forms_and_differ():
    (found,) = study_bilevel.closed_forms().claims
    assert found.verdict == "holds"
    assert found.numbers["off"] < 1e-10
    assert found.numbers["gap"] > 0.1
    assert found.numbers["f_equilibrium"] > found.numbers["f_optimum"]


def test_the_engine_is_itd_without_hypergradient():
    (found,) = study_bilevel.same_rounds().claims
    assert found.verdict == "holds"
    assert found.numbers["apart"] < 1e-10


def test_fedgradnorm_reaches_an_equilibrium_not_the_bilevel_optimum():
    (found,) = study_bilevel.what_is_reached().claims
    assert found.verdict == "does not hold"
    assert found.numbers["off"] < 1e-8
    assert found.numbers["away"] == pytest.approx(0.188, abs=1e-3)
    assert found.numbers["hyper"] < 1e-4
    assert found.numbers["phi_bilevel"] < found.numbers["phi_equilibrium"]
    assert found.numbers["phi_alone"] < found.numbers["phi_bilevel"]
