"""Bounds: one client moves the network only so far, and honest rounds are left alone."""

from __future__ import annotations

import math
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedgradnorm as fgn
import toys
from fedgradnorm._round.bounds import Bounds
from fedgradnorm._round.reports import Reports
from fedgradnorm._round.server import ServerState, server_step
from fedgradnorm.weighting import Equal, GradNorm, Needs, Weighting
from fedgradnorm.weighting._directions import GradDrop
from fedgradnorm.weighting._loss_based import AFL, InverseFirstLoss

CASES = int(os.environ.get("FEDGRADNORM_FUZZ", "40"))
OFF = Bounds(math.inf, 1.0, math.inf)
magnitude = st.floats(-12, 12).map(lambda power: 10.0**power)
number = st.one_of(st.just(0.0), magnitude, magnitude.map(lambda value: -value))
bounds = st.builds(Bounds, st.floats(1, 1e4), st.floats(0.5, 1), st.floats(1, 1e6))


def rows(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def median(values: Tensor) -> float:
    return float(values[values > 0].median())


@settings(max_examples=CASES, deadline=None)
@given(bounds, st.lists(st.tuples(number, magnitude), min_size=3, max_size=9))
def test_no_share_of_a_step_is_over_the_bound(bound, clients):
    share, length = (rows(list(column)) for column in zip(*clients, strict=True))
    found, cuts = bound.limited(share, length, spread=1.0)
    if int((share != 0).sum()) < 3:
        assert found is share
        return
    step = found.abs() * length
    assert float(step.max()) <= bound.share * median(step) * (1 + 1e-9)
    torch.testing.assert_close(found.abs().sum(), share.abs().sum())
    assert torch.equal(found.sign(), share.sign())
    assert (found is share) == (not cuts)


@settings(max_examples=CASES, deadline=None)
@given(st.floats(0.5, 1), st.lists(magnitude, min_size=3, max_size=9))
def test_no_part_of_the_weights_is_over_the_bound(largest, weights):
    found, _ = Bounds(share=math.inf, weight=largest).limited(rows(weights), rows(weights), 1.0)
    assert float(found.max() / found.sum()) <= largest * (1 + 1e-9)


@settings(max_examples=CASES, deadline=None)
@given(bounds, st.lists(st.tuples(st.booleans(), magnitude), min_size=1, max_size=9))
def test_no_loss_ratio_over_the_bound_is_read(bound, clients):
    active, ratio = torch.tensor([here for here, _ in clients]), rows([r for _, r in clients])
    ones = torch.ones_like(ratio)
    reports = Reports(active, ones, ones, ratio, ones, (), updates=torch.ones(len(clients), 2))
    seen, cuts = bound.clipped(reports.signals(Needs.LOSS))
    over = active & (ratio > bound.ratio)
    assert torch.equal(seen.loss_ratio[active], ratio[active].clamp_max(bound.ratio))
    assert [cut.row for cut in cuts] == over.nonzero().flatten().tolist()


def test_of_two_clients_nobody_is_bounded():
    share, length = rows([0.5, 0.5, 0.0]), rows([1.0, 1e9, 1.0])
    assert Bounds(share=1).limited(share, length, 1.0) == (share, [])


WEIGHTINGS = [
    Equal,
    GradNorm,
    lambda: GradNorm(rule="direct"),
    lambda: GradNorm(rule="relative"),
    InverseFirstLoss,
    AFL,
    GradDrop,
]


@settings(max_examples=CASES, deadline=None)
@given(st.sampled_from(WEIGHTINGS), magnitude, magnitude, magnitude, st.integers(3, 6))
def test_whatever_a_liar_sends_its_share_of_the_step_is_bounded(make, length, said, ratio, count):
    """Everybody's update has a coordinate of its own, so the step shows each one's share."""
    weighting: Weighting = make()
    weighting.bind([f"client {i}" for i in range(count)])
    state = ServerState(
        torch.zeros(count, dtype=torch.float64),
        weighting,
        {"name": "sgd", "lr": 1.0},
        bounds=Bounds(),
    )
    ones = torch.ones(count, dtype=torch.float64)
    lie = [torch.cat([rows([value]), ones[1:]]) for value in (said, ratio, length)]
    for _ in range(3):
        before = state.shared.data.clone()
        server_step(
            state, Reports(ones > 0, ones, ones, lie[1], lie[0], (), updates=torch.diag(lie[2]))
        )
        step = (state.shared.data - before).abs()
        if int((step > 0).sum()) >= 3:
            assert float(step[0]) <= weighting.spread * median(step) * (1 + 1e-9)


@pytest.mark.parametrize("make", [Equal, GradNorm, lambda: GradNorm(rule="direct")])
def test_honest_rounds_are_the_same_to_the_bit(make):
    """Also with a regression whose updates are sixty times as long as the others'."""
    pair = [toys.federation(toys.network(), toys.clients(), make()) for _ in range(2)]
    pair[1].server.bounds = Bounds()
    for number_ in range(10):
        for federation in pair:
            federation.round(number_, toys.NAMES)
        assert pair[1].server.cuts == []
    assert torch.equal(pair[0].server.shared.data, pair[1].server.shared.data)


def test_without_bounds_a_liar_takes_the_step_and_with_them_it_does_not():
    def share(bound: Bounds) -> float:
        weighting = GradNorm(rule="direct")
        weighting.bind(["liar", "b", "c"])
        state = ServerState(torch.zeros(3), weighting, {"name": "sgd", "lr": 1.0}, bounds=bound)
        ones, ratio = torch.ones(3, dtype=torch.float64), rows([1e6, 1.0, 1.0])
        server_step(state, Reports(ones > 0, ones, ones, ratio, ones, (), updates=torch.eye(3)))
        return float(state.shared.data[0] / state.shared.data.sum())

    assert share(OFF) > 0.99999
    assert share(Bounds()) < 0.6


def test_an_engine_that_holds_no_updates_says_that_it_cannot_bound_them():
    federation = toys.federation(toys.network(), toys.clients(), executor="joint")
    federation.server.bounds = Bounds()
    with pytest.raises(fgn.ConfigError, match="forms no single gradients"):
        federation.round(0, toys.NAMES)


@pytest.mark.parametrize(
    ("name", "value"),
    [("share", 0.5), ("share", -1), ("weight", 0.4), ("weight", 1.1), ("ratio", 0.9)],
)
def test_a_bound_that_would_bind_everybody_is_refused(name, value):
    for given_ in (value, math.nan):
        with pytest.raises(fgn.ConfigError, match=f"largest_{name}"):
            Bounds(**{name: given_})
