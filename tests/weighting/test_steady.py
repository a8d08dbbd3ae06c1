"""The steady rule: means over all rounds of a client, of which no single round decides."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedgradnorm.weighting import GradNorm, Signals, Weighting
from fedgradnorm.weighting._steady import Steady

POSITIVE = st.floats(1e-3, 1e3)
ROUNDS = st.lists(
    st.tuples(
        st.lists(POSITIVE, min_size=3, max_size=3), st.lists(POSITIVE, min_size=3, max_size=3)
    ),
    min_size=1,
    max_size=8,
)


def signals(norm: object, ratio: object = None, active: object = None) -> Signals:
    norm = torch.as_tensor(norm, dtype=torch.float64)
    one = torch.ones_like(norm)
    there = one > 0 if active is None else torch.as_tensor(active)
    pace = one if ratio is None else torch.as_tensor(ratio, dtype=torch.float64)
    return Signals(there, one, one, pace, norm)


def bound(weighting: Weighting, clients: int) -> Weighting:
    weighting.bind([f"c{k}" for k in range(clients)])
    return weighting


@settings(max_examples=40, deadline=None)
@given(ROUNDS, st.floats(0, 2))
def test_weights_are_the_equation(
    rounds: list[tuple[list[float], list[float]]], gamma: float
) -> None:
    weighting = bound(Steady(gamma), 3)
    for norm, ratio in rounds:
        found = weighting.update(signals(norm, ratio)).clone()
    norms, ratios = (torch.tensor(part, dtype=torch.float64) for part in zip(*rounds, strict=True))
    wanted = ratios.mean(dim=0) ** gamma / norms.square().mean(dim=0).sqrt()
    torch.testing.assert_close(found, 3 * wanted / wanted.sum())


@settings(max_examples=20, deadline=None)
@given(ROUNDS, st.floats(1e-2, 1e2))  # beyond 1e9 in all a gradient is taken for rounding
def test_the_scale_of_a_loss_cancels(
    rounds: list[tuple[list[float], list[float]]], scale: float
) -> None:
    plain, scaled = bound(Steady(), 3), bound(Steady(), 3)
    factor = torch.tensor([scale, 1, 1], dtype=torch.float64)
    for norm, ratio in rounds:
        first = plain.update(signals(norm, ratio)).clone()
        norm = factor * torch.tensor(norm, dtype=torch.float64)
        other = scaled.update(signals(norm, ratio)).clone()
    torch.testing.assert_close(other[0] * scale / other[1], first[0] / first[1])


def test_a_client_that_knows_its_rows_by_heart_is_not_given_all_the_weight() -> None:
    """Two clients learn alike for 20 rounds; then one's gradient falls by 10,000."""

    def largest(weighting: Weighting) -> Tensor:
        bound(weighting, 2)
        for number in range(200):
            small = 1.0 if number < 20 else 1e-3
            weights = weighting.update(signals([1.0, small])).clone()
        return weights[1] / weights[0]

    assert largest(Steady()) <= (200 / 20) ** 0.5 + 1e-9
    assert largest(GradNorm(rule="direct")) > 500


def test_absent_clients_keep_their_means() -> None:
    weighting = bound(Steady(), 3)
    weighting.update(signals([1.0, 2.0, 4.0]))
    for _ in range(5):
        weighting.update(signals([1.0, 2.0, float("nan")], active=[True, True, False]))
    weights = weighting.update(signals([1.0, 2.0, 4.0]))
    torch.testing.assert_close(weights[0] / weights[2], torch.tensor(4.0, dtype=torch.float64))
    assert weighting.rows["rounds"].tolist() == [7, 7, 2]


def test_a_client_without_a_gradient_gets_the_mean_weight_and_is_named() -> None:
    weighting = bound(Steady(), 3)
    weights = weighting.update(signals([1.0, 3.0, 0.0]))
    assert weights[2].item() == pytest.approx((weights[0] + weights[1]).item() / 2)
    assert weighting.frozen is not None
    assert weighting.frozen.tolist() == [False, False, True]
    nobody = bound(Steady(), 2).update(signals([0.0, 0.0]))
    assert nobody.tolist() == [1.0, 1.0]
