"""Statistics against scipy and against sums done by hand."""

import math
import statistics

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from fedgradnorm.experiments._statistics import (
    estimate,
    first_reach,
    gain,
    holm,
    paired_p,
)

numbers = st.floats(-100, 100).map(lambda x: round(x, 3))


@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=8))
def test_paired_p_is_scipys(pairs):
    ours, theirs = zip(*pairs, strict=True)
    differences = {round(a - b, 6) for a, b in pairs}
    if len(differences) > 1:
        expected = scipy.stats.ttest_rel(ours, theirs).pvalue
        assert paired_p(ours, theirs) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_paired_p_where_there_is_no_spread_or_nothing_to_test():
    assert paired_p([1.0, 2.0], [1.0, 2.0]) == 1.0
    assert paired_p([1.0, 2.0], [0.0, 1.0]) == 0.5  # of two seeds with one and the same difference
    assert paired_p([0.1 + 0.2, 0.6], [0.2, 0.5]) == 0.5  # which rounding makes no larger
    assert paired_p([1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 2.0, 3.0]) == 0.125
    assert math.isnan(paired_p([1.0], [2.0]))
    assert math.isnan(paired_p([1.0, math.nan], [2.0, 1.0]))


def test_overlapping_splits_widen_intervals_and_tests():
    """Nadeau and Bengio 2003, section 4: variance s^2 (1 / n + n_test / n_train)."""
    ours, theirs, overlap = [3.1, 2.9, 3.4, 3.3, 2.7], [2.8, 2.9, 3.0, 3.2, 2.1], 0.25 / 0.75
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    error = math.sqrt((1 / 5 + overlap) * statistics.variance(differences))
    found = estimate(differences, overlap)
    assert found.half == pytest.approx(scipy.stats.t.ppf(0.975, 4) * error)
    wanted = 2 * scipy.stats.t.sf(statistics.mean(differences) / error, 4)
    assert paired_p(ours, theirs, overlap) == pytest.approx(wanted)
    assert found.half > estimate(differences).half
    assert paired_p(ours, theirs, overlap) > paired_p(ours, theirs)


def test_holm_by_hand():
    # 4 * 0.01, 3 * 0.02, 2 * 0.03, 1 * 0.5, none below the one before it, none above one
    assert holm([0.03, 0.5, 0.01, 0.02]) == pytest.approx([0.06, 0.5, 0.04, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    with_a_gap = holm([0.01, math.nan, 0.04])
    assert with_a_gap[0] == pytest.approx(0.02)
    assert math.isnan(with_a_gap[1])
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_never_helps_and_keeps_the_order(p_values):
    corrected = holm(p_values)
    assert all(p <= c <= 1 for p, c in zip(p_values, corrected, strict=True))
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    assert [corrected[i] for i in order] == sorted(corrected)


def test_gains_by_hand():
    assert gain(0.5, 1.0) == 50
    assert gain(0.9, 0.6, higher=True) == pytest.approx(50)
    assert gain(2.0, 1.0) == -100
    assert gain(-1.0, -2.0, higher=True) == 50  # R^2 may be negative
    assert math.isnan(gain(1.0, 0.0))


def test_first_reach():
    epochs, losses = [0, 1, 2, 3], [5.0, 3.0, 4.0, 1.0]
    assert first_reach(epochs, losses, 3.0) == 1
    assert first_reach(epochs, losses, 2.0) == 3
    assert math.isnan(first_reach(epochs, losses, 0.5))


def test_intervals_are_scipys():
    values = [3.1, 2.9, 3.4, 3.3, 2.7]
    low, high = scipy.stats.t.interval(
        0.95, 4, sum(values) / 5, scipy.stats.sem(values)
    )  # fmt: skip
    found = estimate(values)
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high), 1e-4)
