"""Optimisers are torch.optim's own, to the bit, and load no compiler."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from fedgradnorm import _optimizers as optimizers

STEPS = 3
THEIRS = {
    name.lower(): kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and name.lower() in optimizers._CLASSES
}


def parameters(count: int = 2) -> list[nn.Parameter]:
    torch.manual_seed(1)
    return [nn.Parameter(torch.randn(3, 4)) for _ in range(count)]


def take_steps(optimizer: torch.optim.Optimizer, some: list[nn.Parameter]) -> list[Any]:
    generator = torch.Generator().manual_seed(2)
    for _ in range(STEPS):
        optimizer.zero_grad()
        assert all(parameter.grad is None for parameter in some)
        for parameter in some:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
    assert torch.is_grad_enabled()
    return [some, optimizer.state_dict()]


def assert_same(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("name", sorted(optimizers._CLASSES))
def test_each_takes_torchs_steps_and_keeps_torchs_state(name: str) -> None:
    mine, other = parameters(), parameters()
    ours = optimizers.build(mine, {"name": name, "lr": 0.1})
    options = {key: ours.defaults[key] for key in ("fused",) if ours.defaults.get(key)}
    theirs = THEIRS[name](other, lr=0.1, **options)
    assert isinstance(ours, THEIRS[name])
    assert_same(take_steps(ours, mine), take_steps(theirs, other))
    again = optimizers.build(mine, {"name": name, "lr": 0.1})
    optimizers.restore(again, ours.state_dict())
    assert_same(take_steps(again, mine), take_steps(theirs, other))


def test_a_differentiable_step_is_differentiable() -> None:
    start, moved = torch.ones(2, requires_grad=True), torch.ones(2)
    table = {"name": "sgd", "lr": 0.1, "differentiable": True, "fused": False}
    optimizer = optimizers.build([moved], table)
    moved.grad = 3 * start
    optimizer.step()
    (slope,) = torch.autograd.grad(moved.sum(), start)
    assert slope.tolist() == pytest.approx([-0.3, -0.3])


def test_training_loads_no_compiler() -> None:
    code = (
        "import sys, numpy as np, torch, fedgradnorm as fgn\n"
        "x = np.eye(4)\n"
        "clients = [fgn.Client(n, fgn.regression(1), train=(x, x[:, 0])) for n in 'ab']\n"
        "fgn.train(torch.nn.Linear(4, 3), clients, weighting=fgn.GradNorm(), rounds=2)\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
