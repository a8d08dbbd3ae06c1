"""Why another order of clients moves a network with BatchNorm: the bias in front of it."""

from __future__ import annotations

import torch
from torch import nn

import fedgradnorm as fgn


def clients(order: list[int]) -> list[fgn.Client]:
    random, made = torch.Generator().manual_seed(0), []
    for k in range(4):
        x = torch.randn(64, 6, generator=random)
        y = torch.tanh(x @ torch.randn(6, 1, generator=random))
        made.append(fgn.Client(f"c{k}", fgn.regression(1), (x, y)))
    return [made[k] for k in order]


def network(bias: bool) -> nn.Module:
    torch.manual_seed(1)
    first = nn.Linear(6, 16, bias=bias)
    return nn.Sequential(first, nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())


def moved(bias: bool) -> dict[str, float]:
    """How far each parameter of the network is away after training in another order."""
    one, two = (
        fgn.train(network(bias), clients(order), rounds=200, lr=1e-2).network.state_dict()
        for order in ([0, 1, 2, 3], [3, 1, 0, 2])
    )
    return {name: (one[name] - two[name]).abs().max().item() for name in one if "num" not in name}


def test_only_a_bias_in_front_of_batchnorm_depends_on_the_order() -> None:
    """BatchNorm subtracts it, so its gradient is rounding noise, which Adam scales to full steps.

    What the network computes does not depend on it; without that bias nothing moves.
    """
    far = moved(bias=True)
    bias = far.pop("0.bias")
    shared = {name: value for name, value in far.items() if "running" not in name}
    assert bias > 1e-3
    assert max(shared.values()) < 1e-3
    assert bias > 20 * max(shared.values())
    assert max(moved(bias=False).values()) < 1e-3
