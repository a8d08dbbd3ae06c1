"""The headline: whom it compares with whom, sizes and p-values, and what it does not claim."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from fedgradnorm._report.frame import report_of
from fedgradnorm._report.headline import basis, headline
from report.made_runs import run

CLIENTS = ("a", "b", "c")


def of(gains: dict[str, object], seeds: int = 5, **rest) -> str:
    runs = [run(m, s, g, CLIENTS, **rest) for m, g in gains.items() for s in range(seeds)]
    return headline(report_of(runs).frame)


def test_it_compares_with_the_baseline_by_size_and_p():
    """Variants of one kind do not keep each other from being better than the baseline."""
    gains = {"a": 0.3, "b": 0.2}
    text = of({"fedrep": 0.0, "fedgradnorm": gains, "fedgradnorm-direct": {"a": 0.301, "b": 0.2}})
    assert text.startswith("fedgradnorm-direct beats fedrep on 2 of 3 tasks: a +15.")
    assert "points (p < .001)" in text
    assert text.endswith("; not distinguishable from it on c.")


def test_errors_are_in_percent_and_losses_of_the_winner_are_told():
    text = of({"fedrep": 0.0, "fedgradnorm": {"a": 0.3, "b": 0.2, "c": -0.1}}, metric="mae")
    assert "a MAE 3" in text
    assert "% lower" in text
    assert "worse on c MAE" in text
    assert "% higher" in text


def test_the_p_values_are_holms_over_the_tasks_of_a_method():
    rng = np.random.default_rng(3)
    runs = [
        run(m, s, {c: float(rng.normal(0.05 * (m != "fedrep"), 0.05)) for c in CLIENTS}, CLIENTS)
        for m in ("fedrep", "fedgradnorm") for s in range(6)
    ]  # fmt: skip
    report = report_of(runs)
    table = report.frame.pivot(index="seed", columns=["variant", "task"], values="score")
    raw = [scipy.stats.ttest_rel(table["fedgradnorm", c], table["fedrep", c]).pvalue
           for c in CLIENTS]  # fmt: skip
    order = np.argsort(raw)
    holm = np.empty(3)
    holm[order] = np.maximum.accumulate(np.sort(raw) * [3, 2, 1]).clip(max=1)
    assert list(report.effects["score"].p) == pytest.approx(list(holm))
    effect = report.effects["score"].iloc[0]
    differences = 100 * (table["fedgradnorm", "a"] - table["fedrep", "a"])
    low, high = scipy.stats.t.interval(0.95, 5, differences.mean(), scipy.stats.sem(differences))
    assert (effect.effect, effect.low, effect.high) == pytest.approx(
        (differences.mean(), low, high)
    )


def test_without_a_winner_it_names_the_closest_and_the_worse():
    text = of({"fedrep": 0.0, "fedgradnorm": -0.2, "rlw": 0.0001}, metric="accuracy")
    assert text.startswith("No method is significantly better than fedrep on any of 3 tasks")
    assert "significantly worse: fedgradnorm on 3" in text


def test_one_seed_asks_for_more():
    text = of({"fedrep": 0.0, "fedgradnorm": 0.3}, seeds=1)
    assert text.startswith("One seed cannot tell methods apart; train at least 3 seeds.")
    assert "fedgradnorm is ahead of fedrep on all 3 tasks" in text
    assert "(p" not in text


@pytest.mark.parametrize(
    ("methods", "base"),
    [(("rlw", "local", "fedrep"), "fedrep"), (("rlw", "local"), "local"), (("rlw", "uw"), "uw")],
)
def test_the_baseline_is_equal_weights_then_training_alone_then_the_first(methods, base):
    """Groups are in the package's order: the first of rlw and uw is rlw."""
    runs = [run(m, s, 0.1 * i, CLIENTS) for i, m in enumerate(methods) for s in range(2)]
    report = report_of(runs)
    assert report.baseline == (base if base in ("fedrep", "local") else report.variants[0])
    assert set(report.frame.base) == {"", report.baseline}


def test_one_method_is_compared_with_the_constant_baseline():
    assert of({"fedrep": 0.1}) == "fedrep lowers the training loss on all 3 tasks."
    text = of({"fedrep": {"a": 0.3, "b": -0.3}}, constant=0.52)
    assert text == "fedrep beats the constant baseline on 1 of 3 tasks."


def test_a_winner_that_does_not_beat_the_constant_baseline_is_told():
    text = of({"fedrep": 0.0, "fedgradnorm": {"a": 0.3, "b": 0.2, "c": 0.2}}, constant=0.62)
    assert text.startswith("fedgradnorm beats fedrep on all 3 tasks")
    assert text.endswith(" It does not beat the constant baseline on b and c.")


def test_what_it_rests_on():
    runs = [run(m, s, 0.1 * i, CLIENTS) for i, m in enumerate(("fedrep", "rlw", "uw"))
            for s in range(3 if m == "fedrep" else 2)]  # fmt: skip
    text = basis(report_of(runs).frame)
    assert text.startswith("Measured on held-out data, mean of 2 to 3 seeds.")
    assert "Holm" in text


def test_an_effect_that_chance_explains_is_not_the_closest_to_a_winner():
    text = of({"fedrep": 0.0, "fedgradnorm": -0.2})
    assert "closest" not in text


def test_nothing_to_compare():
    assert headline(report_of([]).frame).startswith("Nothing to compare yet")
    other = [run("fedrep", clients=("x",)), run("fedgradnorm", clients=("y",))]
    assert "cannot be compared" in headline(report_of(other).frame)
