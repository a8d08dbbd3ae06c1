"""A network that its owner has changed is computed by its owner's code, in every engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import toys
from fedgradnorm._engines.passes.dense import DensePass

GAUGE = ("2.weight",)


def plain() -> nn.Sequential:
    return toys.seeded(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)))


def hooked(network: nn.Sequential) -> None:
    network[1].register_forward_hook(lambda *args: 2 * args[-1])


def hooked_before(network: nn.Sequential) -> None:
    network[1].register_forward_pre_hook(lambda _, given: (given[0] + 1,))


def hooked_on_the_way_back(network: nn.Sequential) -> None:
    network[1].register_full_backward_hook(lambda _, found, __: (2 * found[0],))


def patched(network: nn.Sequential) -> None:
    network[1].forward = torch.tanh


def with_more(network: nn.Sequential) -> None:
    network.register_parameter("scale", nn.Parameter(torch.ones(1)))


def test_a_plain_stack_has_a_closed_form() -> None:
    assert DensePass.fits(plain(), GAUGE)


CHANGES = [hooked, hooked_before, hooked_on_the_way_back, patched, with_more]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_one_has_none(change: Callable[[nn.Sequential], None]) -> None:
    network = plain()
    change(network)
    assert not DensePass.fits(network, GAUGE)


@pytest.mark.parametrize("change", [hooked, patched])
def test_a_changed_one_trains_as_in_the_loop(change: Callable[[nn.Sequential], None]) -> None:
    found = []
    for engine in ("auto", "loop"):
        network = plain()
        change(network)
        one = toys.federation(network, toys.clients(), engine=engine)
        for number in range(3):
            one.round(number, one.names)
        found.append(one.server.shared.data)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)
