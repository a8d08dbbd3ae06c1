"""Weights made of sums alone: clients that know themselves and sums, against one server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedgradnorm import ConfigError
from fedgradnorm._methods import METHODS
from fedgradnorm.weighting import GradNorm, Needs, Signals, Weighting
from fedgradnorm.weighting._loss_based import AFL, InverseFirstLoss
from fedgradnorm.weighting._secure_sums import secure_sums
from fedgradnorm.weighting._steady import Steady
from weighting.laws import NAMES, WEIGHTINGS, bound, draw, everybody

ROUNDS = 150
RULES: dict[str, Callable[[], GradNorm]] = {
    "absolute": GradNorm,
    "absolute-sgd": lambda: GradNorm(optimizer="sgd"),
    "squared": lambda: GradNorm(rule="squared"),
    "relative": lambda: GradNorm(rule="relative"),
    "direct": lambda: GradNorm(rule="direct"),
    "direct-at-once": lambda: GradNorm(rule="direct", smoothing=0),
    "direct-gamma-0": lambda: GradNorm(gamma=0, rule="direct"),
    "warm-up": lambda: GradNorm(rule="direct", warmup=3),
    "warm-up-absolute": lambda: GradNorm(warmup=3),
}
OWN = {
    name: make
    for name, make in WEIGHTINGS.items()
    if not make().beyond_sums and not isinstance(make(), GradNorm)
}


class Silo:
    """One client: its own row, what it was told at the end of its last round, and no more."""

    def __init__(self, make: Callable[[], Weighting], name: str) -> None:
        self.weighting = make()
        self.weighting.bind([name])
        self.sums = secure_sums(self.weighting)
        self.growth = 1.0

    def one(self, signals: Signals, row: int) -> Signals:
        columns = {key: getattr(signals, key)[row : row + 1] for key in _COLUMNS}
        return Signals(**columns)


_COLUMNS = ("active", "size", "loss", "loss_ratio", "grad_norm")


def rounds_of(seed: int, count: int = ROUNDS) -> list[Signals]:
    """Some clients absent, one that joins late, gradients that vanish now and then."""
    generator = np.random.default_rng(seed)
    drawn = []
    for number, one in enumerate(draw(seed, rounds=count)):
        norm, active = one.grad_norm.clone(), one.active.clone()
        if number > 60:  # beside what they showed before; beside others nobody can see it alone
            norm[torch.from_numpy(generator.random(len(norm)) < 0.1)] *= 1e-9
        active[4] &= number > 40
        active[0] |= ~active.any()
        drawn.append(replace(one, grad_norm=norm, active=active))
    return drawn


def private_round(silos: list[Silo], signals: Signals) -> tuple[Tensor, Tensor]:
    """Each client's weight and level, from sums over those that are there."""
    here = [i for i in range(len(silos)) if signals.active[i]]
    own = {i: silos[i].one(signals, i) for i in here}
    first = sum(silos[i].sums.first(own[i]) for i in here)
    second = sum(silos[i].sums.second(first) for i in here)
    level = torch.full((len(silos),), torch.nan, dtype=torch.float64)
    for i in here:
        level[i] = silos[i].sums.finish(second)[0]
    return level * (len(here) / level[here].sum()), level


@pytest.mark.parametrize("rule", RULES)
def test_clients_that_know_sums_move_their_levels_as_one_server_does(rule: str) -> None:
    together, silos = bound(RULES[rule]), [Silo(RULES[rule], name) for name in NAMES]
    for signals in rounds_of(seed=5):
        weights = together.update(signals)
        found, levels = private_round(silos, signals)
        here = signals.active
        torch.testing.assert_close(found[here], weights[here], rtol=1e-12, atol=0)
        torch.testing.assert_close(levels[here], together.rows["level"][here], rtol=1e-12, atol=0)
        assert [bool(s.weighting.frozen) for s, a in zip(silos, here, strict=True) if a] == (
            together.frozen[here].tolist()
        )


def test_the_direct_rule_may_move_by_an_earlier_rounds_sums() -> None:
    """The server then divides one sum by another; levels are mended when the sums are known."""
    make = RULES["direct"]
    together, silos = bound(make), [Silo(make, name) for name in NAMES]
    earlier, compared = None, 0
    for signals in rounds_of(seed=6):
        here = [i for i in range(len(silos)) if signals.active[i]]
        known = all(silos[i].weighting.rows["steps"] > 0 for i in here)
        weights, own = together.update(signals), {i: silos[i].one(signals, i) for i in here}
        first = sum(silos[i].sums.first(own[i]) for i in here)
        used = first if earlier is None else earlier
        second = sum(silos[i].sums.second(used) for i in here)
        coefficient = torch.stack([silos[i].sums.coefficient()[0] for i in here])
        if known and not together.frozen[here].any():  # else a factor is not common to all
            shares = coefficient * len(here) / coefficient.sum()
            torch.testing.assert_close(shares, weights[here], rtol=1e-12, atol=0)
            compared += 1
        for i in here:
            level = silos[i].sums.finish(second, None if earlier is None else first)
            torch.testing.assert_close(level[0], together.rows["level"][i], rtol=1e-11, atol=1e-300)
        earlier = first
    assert compared > 30


@pytest.mark.parametrize("rule", ["absolute", "squared", "relative", "direct"])
def test_a_frozen_client_is_off_by_no_more_than_the_growth_of_a_round(rule: str) -> None:
    """It must weigh its update before the second sums are there, with the last round's factor."""
    make = RULES[rule]
    together, silos = bound(make), [Silo(make, name) for name in NAMES]
    worst = 0.0
    for signals in map(_steady_scales, rounds_of(seed=7, count=80)):
        here = [i for i in range(len(silos)) if signals.active[i]]
        weights, own = together.update(signals), {i: silos[i].one(signals, i) for i in here}
        first = sum(silos[i].sums.first(own[i]) for i in here)
        second = sum(silos[i].sums.second(first) for i in here)
        growth = [silos[i].growth for i in here]
        numbers = torch.stack(
            [silos[i].sums.coefficient(g)[0] for i, g in zip(here, growth, strict=True)]
        )
        shares = numbers * len(here) / numbers.sum()
        now = silos[here[0]].sums.growth(second)
        bound_ = max(max(g / now, now / g) for g in growth) - 1 + 1e-12
        worst = max(worst, float((shares / weights[here] - 1).abs().max()))
        assert float((shares / weights[here] - 1).abs().max()) <= bound_
        for i in here:
            silos[i].sums.finish(second)
            silos[i].growth = now
    assert worst > 0


def _steady_scales(signals: Signals) -> Signals:
    """Lengths as of one training: a factor of ten between clients, not a million."""
    return replace(signals, grad_norm=signals.grad_norm ** (1 / 3))


@pytest.mark.parametrize("name", OWN)
def test_a_weight_that_a_client_knows_is_proportional_to_its_own_number(name: str) -> None:
    together, silos = bound(OWN[name]), [Silo(OWN[name], client) for client in NAMES]
    for drawn in draw(8, rounds=40):
        signals = replace(drawn, loss=drawn.loss ** (1 / 6))  # dwa takes the exponential of ratios
        if name == "excess-mtl":  # and so does ExcessMTL, of norms
            signals = replace(signals, grad_norm=drawn.grad_norm ** (1 / 6))
        weights = together.update(signals)
        found, _ = private_round(silos, signals)
        here = signals.active
        torch.testing.assert_close(found[here], weights[here], rtol=1e-12, atol=0)


def test_every_method_says_whether_sums_are_enough() -> None:
    for method in METHODS.values():
        if Needs.GRAM in method.needs or Needs.GRADIENT in method.needs:
            assert method.beyond_sums


@pytest.mark.parametrize("make", [*RULES.values(), *OWN.values()], ids=[*RULES, *OWN])
def test_sizes_are_those_of_the_sums(make: Callable[[], Weighting]) -> None:
    silo, signals = Silo(make, "a"), draw(3)[0]
    first = silo.sums.first(silo.one(signals, 0))
    assert silo.sums.sizes == (len(first), len(silo.sums.second(first)))


def test_a_method_that_needs_more_than_sums_has_no_adapter() -> None:
    with pytest.raises(
        ConfigError, match="AFL needs more than sums over clients: all clients' losses"
    ):
        secure_sums(AFL())
    with pytest.raises(
        ConfigError, match="GradNorm needs more than sums over clients: weights above 0"
    ):
        secure_sums(GradNorm(floor=None))
    assert not GradNorm(rule="direct", floor=None).beyond_sums


@pytest.mark.parametrize(
    ("make", "column"), [(Steady, "grad_norm"), (InverseFirstLoss, "loss")], ids=str
)
def test_a_client_without_a_number_contributes_none(
    make: Callable[[], Weighting], column: str
) -> None:
    silo, signals = Silo(make, "a"), everybody(draw(3)[0])
    nothing = replace(signals, **{column: torch.zeros(len(NAMES)).double()})
    assert not torch.isfinite(silo.sums.first(silo.one(nothing, 0))).all()
    assert torch.isfinite(silo.sums.first(silo.one(signals, 0))).all()
