"""The battery: every law crossed with every weighting."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedgradnorm import ConfigError
from fedgradnorm.weighting import Signals, Weighting
from weighting import laws
from weighting.laws import NAMES, WEIGHTINGS, bound, draw, everybody, played

Make = Callable[[], Weighting]
every_weighting = pytest.mark.parametrize(
    "make",
    [
        pytest.param(
            make, id=name, marks=[pytest.mark.slow] if name in laws.SOLVES_PROGRAMS else []
        )
        for name, make in WEIGHTINGS.items()
    ],
)
seeds = st.integers(0, 2**32 - 1)


@every_weighting
@given(seed=seeds)
def test_active_weights_sum_to_their_number(make: Make, seed: int) -> None:
    weighting = bound(make)
    for signals in draw(seed, rounds=4):
        weights = weighting.update(signals)
        laws.assert_active_weights_sum_to_their_number(weights, signals.active)


@every_weighting
@given(seed=seeds)
def test_weights_are_positive_and_finite(make: Make, seed: int) -> None:
    weighting = bound(make)
    for weights in played(weighting, draw(seed, rounds=6)):
        laws.assert_positive_and_finite(weights, weighting)


@every_weighting
@given(seed=seeds, order=st.permutations(range(len(NAMES))))
def test_permuting_clients_permutes_weights(make: Make, seed: int, order: list[int]) -> None:
    rounds = draw(seed, rounds=4)
    straight = played(bound(make), rounds)
    permuted = played(
        bound(make, [NAMES[i] for i in order]),
        [laws.per_client(signals, lambda column: column[order]) for signals in rounds],
    )
    for left, right in zip(straight, permuted, strict=True):
        torch.testing.assert_close(left[order], right, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("make", [make for make in WEIGHTINGS.values() if laws.by_numbers(make)])
def test_signals_of_those_alone_who_are_there_are_enough(make: Make) -> None:
    among, alone = bound(make), bound(make)
    for signals in draw(5, rounds=6):
        whole = replace(signals, gram=None, gradients=None)
        here = signals.active.nonzero()[:, 0]
        columns = (whole.active, whole.size, whole.loss, whole.loss_ratio, whole.grad_norm)
        few = Signals(*(column[here] for column in columns), rows=here)
        torch.testing.assert_close(alone.update(few), among.update(whole), rtol=1e-12, atol=0)


SIGNALS = ("loss", "loss_ratio", "grad_norm")
SCALES = (0.0, 1e-30, 1e30)
WHO = (slice(0, 1), slice(0, 4), slice(None))
"""One client, four clients, and all of them."""


@every_weighting
def test_weights_stay_finite_at_any_scale(make: Make) -> None:
    for signal, scale, who in itertools.product(SIGNALS, SCALES, WHO):
        weighting = bound(make)
        for ordinary in map(everybody, draw(1, rounds=5)):
            column = getattr(ordinary, signal).clone()
            column[who] *= scale
            weights = weighting.update(replace(ordinary, **{signal: column}))
            laws.assert_positive_and_finite(weights, weighting)
            laws.assert_active_weights_sum_to_their_number(weights, ordinary.active)
        # and the method recovers: nothing stored was spoilt
        for weights in played(weighting, draw(2, rounds=3)):
            laws.assert_positive_and_finite(weights, weighting)


@every_weighting
@given(seed=seeds)
def test_an_absent_client_keeps_its_row(make: Make, seed: int) -> None:
    weighting = bound(make)
    for signals in draw(seed, rounds=4):
        absent = [name for name, on in zip(NAMES, signals.active.tolist(), strict=True) if not on]
        before = {name: laws.private(weighting, name) for name in absent}
        weighting.update(signals)
        assert {name: laws.private(weighting, name) for name in absent} == before


@every_weighting
@given(seed=seeds)
def test_what_an_absent_client_holds_is_never_read(make: Make, seed: int) -> None:
    def with_nan(signals: Signals) -> Signals:
        hidden = laws.per_client(signals, lambda c: torch.where(signals.active, c, torch.nan))
        return replace(hidden, active=signals.active, size=signals.size)

    rounds = draw(seed, rounds=4)
    clean = played(bound(make), rounds)
    hidden = played(bound(make), map(with_nan, rounds))
    for left, right in zip(clean, hidden, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0)


@every_weighting
@given(seed=seeds)
def test_a_saved_and_loaded_weighting_goes_on_identically(make: Make, seed: int) -> None:
    rounds = draw(seed, rounds=6)
    weighting = bound(make)
    played(weighting, rounds[:3])
    state = laws.through_json(weighting.state_dict())
    bound_first, loaded_first = bound(make), make()
    bound_first.load_state_dict(state)
    loaded_first.load_state_dict(state)
    loaded_first.bind(NAMES)
    expected = played(weighting, rounds[3:])
    for other in (bound_first, loaded_first):
        for left, right in zip(expected, played(other, rounds[3:]), strict=True):
            torch.testing.assert_close(left, right, rtol=0, atol=0)
        assert laws.through_json(other.state_dict()) == laws.through_json(weighting.state_dict())


@every_weighting
@given(seed=seeds, leaver=st.sampled_from(range(len(NAMES))))
def test_a_client_that_leaves_and_comes_back_keeps_its_state(
    make: Make, seed: int, leaver: int
) -> None:
    weighting = bound(make)
    rounds = draw(seed, rounds=5)
    played(weighting, rounds[:2])
    before = laws.private(weighting, NAMES[leaver])
    stay = [i for i in range(len(NAMES)) if i != leaver]
    weighting.bind([NAMES[i] for i in stay])
    played(weighting, [laws.per_client(everybody(s), lambda c: c[stay]) for s in rounds[2:4]])
    assert laws.private(weighting, NAMES[leaver]) == before
    weighting.bind(NAMES)
    assert laws.private(weighting, NAMES[leaver]) == before
    for weights in played(weighting, rounds[4:]):
        laws.assert_positive_and_finite(weights, weighting)


@every_weighting
@given(seed=seeds)
def test_binding_in_another_order_moves_state_with_the_name(make: Make, seed: int) -> None:
    weighting = bound(make)
    played(weighting, draw(seed, rounds=3))
    before = laws.by_name(weighting)
    weighting.bind(NAMES[::-1])
    assert laws.by_name(weighting) == before
    assert weighting.weight.tolist() == [before[name]["weight"] for name in NAMES[::-1]]


@every_weighting
@given(seed=seeds)
def test_a_single_client_weighs_one(make: Make, seed: int) -> None:
    weighting = bound(make, ["c"])
    for weights in played(weighting, draw(seed, rounds=5, count=1)):
        torch.testing.assert_close(weights, torch.ones(1).double(), rtol=1e-12, atol=0)


@every_weighting
@given(seed=seeds)
def test_signals_may_come_in_single_precision(make: Make, seed: int) -> None:
    def single(column: torch.Tensor) -> torch.Tensor:
        return column.float() if column.is_floating_point() else column

    weights = played(bound(make), [laws.per_client(s, single) for s in draw(seed, rounds=2)])
    assert all(w.dtype == torch.float64 for w in weights)


@pytest.mark.parametrize("name", sorted(set(WEIGHTINGS) - laws.DEPENDS_ON_UNITS))
@pytest.mark.parametrize("factor", [2.0**-7, 2.0**10])  # powers of two, so signs agree exactly
@given(seed=seeds)
def test_one_constant_times_all_losses_and_gradients_changes_nothing(
    name: str, factor: float, seed: int
) -> None:
    def scaled(signals: Signals, by: float) -> Signals:
        return replace(
            signals,
            loss=by * signals.loss,
            grad_norm=by * signals.grad_norm,
            gram=by**2 * signals.gram,
            gradients=by * signals.gradients,
        )

    far_above_eps = 2.0**20
    rounds = draw(seed, rounds=4)
    plain = played(bound(WEIGHTINGS[name]), [scaled(s, far_above_eps) for s in rounds])
    other = played(bound(WEIGHTINGS[name]), [scaled(s, far_above_eps * factor) for s in rounds])
    for left, right in zip(plain, other, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-6, atol=0)


@every_weighting
def test_two_clients_of_one_name_are_refused(make: Make) -> None:
    with pytest.raises(ConfigError, match="two clients of one name"):
        make().bind(["a", "b", "a"])


@every_weighting
def test_weights_start_at_one(make: Make) -> None:
    assert bound(make).weight.tolist() == [1.0] * len(NAMES)


@every_weighting
def test_a_weighting_without_clients_says_how_to_give_it_some(make: Make) -> None:
    with pytest.raises(ConfigError, match="bind"):
        _ = make().weight
