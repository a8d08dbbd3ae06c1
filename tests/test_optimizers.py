"""Optimizers step rows as torch.optim steps each of them, and load no compiler."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._optimizers import SGD, Adam, State, Torch
from fedgradnorm._state.table import Layout

STEPS = 3
THEIRS = {
    name.lower(): kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and name.lower() in optimizers._CLASSES
}
LAYOUT = Layout({"weight": (3, 4), "bias": (3,)})
ROWS = 5
IN_ROWS: list[dict[str, Any]] = [
    {"name": "sgd"},
    {"name": "sgd", "weight_decay": 0.1, "maximize": True},
    {"name": "sgd", "momentum": 0.9},
    {"name": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    {"name": "sgd", "momentum": 0.9, "dampening": 0.5},
    {"name": "adam"},
    {"name": "adam", "betas": [0.5, 0.9], "eps": 1e-3, "weight_decay": 0.1},
    {"name": "adam", "maximize": True},
    {"name": "adamw"},
    {"name": "adamw", "weight_decay": 0.1, "maximize": True},
]
ROW_BY_ROW: list[dict[str, Any]] = [
    {"name": "adam", "amsgrad": True},
    {"name": "rmsprop", "momentum": 0.5, "centered": True},
    {"name": "adagrad", "initial_accumulator_value": 0.1},
    {"name": "adafactor"},
    {"name": "nadam"},
    {"name": "rprop"},
]


def words(table: dict[str, Any]) -> str:
    return "-".join(map(str, table.values()))


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


@pytest.mark.parametrize("name", sorted(optimizers._CLASSES))
def test_each_class_takes_torchs_steps_and_keeps_torchs_state(name: str) -> None:
    mine, other = parameters(), parameters()
    ours = optimizers.build(mine, {"name": name, "lr": 0.1})
    options = {key: ours.defaults[key] for key in ("fused",) if ours.defaults.get(key)}
    theirs = THEIRS[name](other, lr=0.1, **options)
    assert isinstance(ours, THEIRS[name])
    taken = take_steps(ours, mine), take_steps(theirs, other)
    torch.testing.assert_close(*taken, rtol=0, atol=0)


class Theirs:
    """One row, stepped by torch.optim parameter by parameter."""

    def __init__(self, table: dict[str, Any], row: Tensor) -> None:
        self.parts = [nn.Parameter(view.clone()) for view in LAYOUT.views(row).values()]
        kind = THEIRS[table["name"]]
        self.optimizer = kind(self.parts, **{k: v for k, v in table.items() if k != "name"})

    def step(self, gradient: Tensor) -> None:
        for part, view in zip(self.parts, LAYOUT.views(gradient).values(), strict=True):
            part.grad = view.clone()
        self.optimizer.step()

    @property
    def row(self) -> Tensor:
        return torch.cat([part.detach().flatten() for part in self.parts])


def stacked(optimizer: optimizers.Optimizer, x: Tensor) -> State:
    """The state of all rows before their first step."""
    return {k: v.expand(len(x), *v.shape).clone() for k, v in optimizer.start(x[0]).items()}


def compare(table: dict[str, Any], dtype: torch.dtype, tolerance: float) -> None:
    """Rows that step now and then, against an optimizer of torch's for each."""
    table = {"lr": 0.05, **table}
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, LAYOUT.size, generator=generator, dtype=dtype)
    theirs, ours = [Theirs(table, row) for row in x], optimizers.make(table, LAYOUT)
    state = stacked(ours, x)
    for some in ([0, 1, 2, 3, 4], [0, 2], [4, 1, 0], [3], [0, 1, 2, 3, 4], [2, 3, 4]):
        gradient = torch.randn(len(some), LAYOUT.size, generator=generator, dtype=dtype)
        gradient *= torch.logspace(-6, 2, LAYOUT.size, dtype=dtype)
        index = torch.tensor(some)
        moved, moments = x[index], {key: value[index] for key, value in state.items()}
        ours.step(moved, gradient, moments)
        x[index] = moved
        for key, value in moments.items():
            state[key][index] = value
        for row, own in zip(some, gradient, strict=True):
            theirs[row].step(own)
    expected = torch.stack([one.row for one in theirs])
    torch.testing.assert_close(x, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("table", IN_ROWS, ids=words)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 2e-15), (torch.float32, 2e-6)])
def test_rows_with_step_counts_of_their_own_step_as_torchs(
    table: dict[str, Any], dtype: torch.dtype, tolerance: float
) -> None:
    made = optimizers.make({"lr": 0.1, **table}, LAYOUT)
    assert type(made) is (SGD if table["name"] == "sgd" else Adam)
    assert made.in_rows
    compare(table, dtype, tolerance)


@pytest.mark.parametrize("table", ROW_BY_ROW, ids=words)
def test_any_other_class_steps_row_by_row(table: dict[str, Any]) -> None:
    made = optimizers.make({"lr": 0.1, **table}, LAYOUT)
    assert type(made) is Torch
    assert not made.in_rows
    compare(table, torch.float64, 1e-15)


@pytest.mark.parametrize("table", [*IN_ROWS, *ROW_BY_ROW], ids=words)
def test_one_row_is_any_of_many(table: dict[str, Any]) -> None:
    table = {"lr": 0.05, **table}
    generator = torch.Generator().manual_seed(3)
    many = torch.randn(ROWS, LAYOUT.size, generator=generator, dtype=torch.float64)
    one, made = many[2:3].clone(), optimizers.make(table, LAYOUT)
    states = [stacked(made, x) for x in (many, one)]
    for _ in range(4):
        gradient = torch.randn(ROWS, LAYOUT.size, generator=generator, dtype=torch.float64)
        made.step(many, gradient, states[0])
        made.step(one, gradient[2:3], states[1])
    torch.testing.assert_close(one, many[2:3], rtol=1e-14, atol=1e-15)
    for key, value in states[1].items():
        torch.testing.assert_close(value, states[0][key][2:3], rtol=1e-14, atol=1e-15)


def test_options_of_a_step_override_the_table() -> None:
    for table in (
        {"name": "sgd", "lr": 1.0},
        {"name": "adam", "lr": 1.0},
        {"name": "nadam", "lr": 1.0},
    ):
        found = []
        for own, options in ((table, {"lr": 0.1}), ({**table, "lr": 0.1}, None)):
            x, made = torch.ones(2, LAYOUT.size), optimizers.make(own, LAYOUT)
            made.step(x, torch.full_like(x, 0.3), stacked(made, x), options)
            found.append(x)
        assert torch.equal(*found)
        assert not torch.equal(found[0], torch.ones(2, LAYOUT.size))


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


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "rmsprop"])
@pytest.mark.parametrize("rows", [0, 1, optimizers.FEW, optimizers.FEW + 1])
def test_any_number_of_rows_takes_the_same_steps(name: str, rows: int) -> None:
    optimizer = optimizers.make({"name": name, "lr": 0.1}, Layout({"weight": (3,)}))
    gradients = torch.randn(2, rows, 3, generator=torch.Generator().manual_seed(0)).double()
    together = torch.ones(rows, 3, dtype=torch.float64)
    start = optimizer.start(torch.ones(3, dtype=torch.float64))
    state = {key: value.expand(rows, *value.shape).clone() for key, value in start.items()}
    for gradient in gradients:
        optimizer.step(together, gradient, state)
    for row in range(rows):
        one = torch.ones(1, 3, dtype=torch.float64)
        own = {key: value[None].clone() for key, value in start.items()}
        for gradient in gradients:
            optimizer.step(one, gradient[row : row + 1], own)
        torch.testing.assert_close(one[0], together[row], rtol=0, atol=1e-15)
