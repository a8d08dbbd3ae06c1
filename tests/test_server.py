"""The server's part of a round: weigh, average, step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import toys
from fedgradnorm._round.reports import Reports
from fedgradnorm._round.server import ServerState, coefficients, server_step
from fedgradnorm.weighting import Equal, GradNorm, Needs, Signals, Weighting

NAMES = ["a", "b", "c"]
SIZE = torch.tensor([100.0, 300.0, 600.0], dtype=torch.float64)
UPDATES = torch.tensor([[1.0, 0, 2, 0], [0, 4.0, 0, 0], [3.0, 3, 3, 3]], dtype=torch.float64)
START = torch.tensor([1.0, 2, 3, 4], dtype=torch.float64)


class Given(Weighting):
    """Weights of the test's choice, in proportion."""

    def weigh(self, signals: Signals) -> Tensor:  # noqa: ARG002
        return torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)


def reports(active: tuple[bool, ...] = (True, True, True)) -> Reports:
    ones = torch.ones(3, dtype=torch.float64)
    norm = UPDATES.norm(dim=1)
    return Reports(torch.tensor(active), SIZE, ones, ones, norm, (), updates=UPDATES)


def server(weighting: Weighting, **options) -> ServerState:
    weighting.bind(NAMES)
    return ServerState(START, weighting, {"name": "sgd", "lr": 0.1}, **options)


def signals(active: tuple[bool, ...]) -> Signals:
    return reports(active).signals(Needs.NOTHING)


@pytest.mark.parametrize(
    ("active", "expected"),
    [((True, True, True), [0.5, 0.4, 0.1]), ((True, False, True), [0.75, 0, 0.15])],
)
def test_the_mean_counts_active_clients_the_same(active, expected) -> None:
    p = torch.tensor([1.5, 1.2, 0.3], dtype=torch.float64)
    torch.testing.assert_close(
        coefficients(p, signals(active), "mean"), torch.tensor(expected).double()
    )


@pytest.mark.parametrize(
    ("active", "shares"),
    [((True, True, True), [0.1, 0.3, 0.6]), ((True, True, False), [0.25, 0.75, 0])],
)
def test_by_size_counts_active_clients_by_their_rows(active, shares) -> None:
    p = torch.tensor([1.5, 1.2, 0.3], dtype=torch.float64)
    torch.testing.assert_close(
        coefficients(p, signals(active), "by_size"), p * torch.tensor(shares).double()
    )


def test_an_absent_clients_weight_is_never_read() -> None:
    p = torch.tensor([1.0, torch.nan, 1.0], dtype=torch.float64)
    assert coefficients(p, signals((True, False, True)), "mean").tolist() == [0.5, 0, 0.5]


def test_the_network_steps_on_the_mean_of_weighted_updates() -> None:
    state = server(Given())
    p = server_step(state, reports())
    assert p.tolist() == [0.5, 1.0, 1.5]
    torch.testing.assert_close(state.shared.data, START - 0.1 * (p @ UPDATES) / 3)


def test_the_network_steps_with_the_new_weights_and_on_demand_with_the_old() -> None:
    new, old, equal = server(Given()), server(Given(), step_with="previous"), server(Equal())
    returned = [server_step(state, reports()) for state in (new, old, equal)]
    assert torch.equal(returned[0], returned[1])
    torch.testing.assert_close(old.shared.data, equal.shared.data)
    assert not torch.allclose(new.shared.data, old.shared.data)
    # one round later the old order uses the weights of the first round
    server_step(old, reports())
    expected = equal.shared.data - 0.1 * (returned[0] @ UPDATES) / 3
    torch.testing.assert_close(old.shared.data, expected)


def test_a_weighting_sees_no_more_than_it_needs() -> None:
    for needs in (Needs.NOTHING, Needs.SIZE, Needs.LOSS | Needs.NORM):
        seen = reports().signals(needs)
        assert seen.gram is None
        assert seen.gradients is None
    assert torch.equal(reports().signals(Needs.GRADIENT).gradients, UPDATES)
    assert torch.equal(reports().signals(Needs.GRAM).gram, UPDATES @ UPDATES.T)


def test_a_saved_and_loaded_server_goes_on_identically() -> None:
    def adam() -> ServerState:
        weighting = GradNorm()
        weighting.bind(NAMES)
        return ServerState(START, weighting, {"name": "adam", "lr": 0.1})

    one, other = adam(), adam()
    server_step(one, reports())
    state = one.state_dict()
    server_step(one, reports((True, False, True)))
    other.load_state_dict(state)
    server_step(other, reports((True, False, True)))
    assert torch.equal(one.shared.data, other.shared.data)
    assert toys.same(one.weighting.state_dict(), other.weighting.state_dict())
