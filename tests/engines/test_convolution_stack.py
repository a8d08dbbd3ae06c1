"""Which networks have kernels of their own where clients are alone; test_gpu_alone.py runs them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import fedgradnorm as fgn
from fedgradnorm._engines.passes.convolution_stack import (
    ConvolutionStack,
    _blocks,
    known_blocks,
    network_stack,
)
from fedgradnorm._engines.passes.kernels import built
from fedgradnorm._engines.passes.network_stack import DenseStack, ModuleStack
from fedgradnorm._engines.passes.streams import Streams
from fedgradnorm.models._flat import FlatNetwork


class Doubled(nn.ReLU):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def test_network_1_is_four_layers_of_which_three_are_pooled() -> None:
    found = [(relu, pool) for _, relu, pool in _blocks(fgn.models.network1())]
    assert found == [(True, 2), (True, 2), (True, 2), (True, 1)]


def test_a_pool_may_come_before_the_cut_and_linear_layers_last() -> None:
    network = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)
    )
    assert [(relu, pool) for _, relu, pool in _blocks(network)] == [(True, 2), (False, 1)]


REFUSED: dict[str, Callable[[], nn.Module]] = {
    "groups": lambda: nn.Conv2d(2, 2, 3, groups=2),
    "no bias": lambda: nn.Conv2d(2, 2, 3, bias=False),
    "holes": lambda: nn.Conv2d(2, 2, 3, dilation=2),
    "pads by a word": lambda: nn.Conv2d(2, 2, 3, padding="same"),
    "pads of other numbers": lambda: nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"),
    "other strides along the sides": lambda: nn.Conv2d(2, 2, 3, stride=(1, 2)),
    "a larger pool": lambda: nn.MaxPool2d(3),
    "a pool that overlaps": lambda: nn.MaxPool2d(2, stride=1),
    "a pool that rounds up": lambda: nn.MaxPool2d(2, ceil_mode=True),
    "a mean": lambda: nn.AvgPool2d(2),
    "another function": lambda: nn.Tanh(),
    "a layer of one's own": lambda: Doubled(),
    "a linear layer over columns": lambda: nn.Linear(6, 6),
}


@pytest.mark.parametrize("name", REFUSED)
def test_anything_else_is_left_to_autograd(name: str) -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), REFUSED[name](), nn.Flatten())
    assert _blocks(network) == []


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3), nn.Flatten())


def hooked() -> nn.Sequential:
    network = plain()
    network[1].register_forward_hook(lambda *args: 2 * args[-1])
    return network


def patched() -> nn.Sequential:
    network = plain()
    network[1].forward = torch.tanh
    return network


def twice() -> nn.Sequential:
    layer = nn.Conv2d(2, 2, 3)
    return nn.Sequential(nn.Conv2d(1, 2, 3), layer, layer, nn.Flatten())


def half_frozen() -> nn.Sequential:
    network = plain()
    network[0].bias.requires_grad_(False)
    return network


def with_more() -> nn.Sequential:
    network = plain()
    network.register_parameter("scale", nn.Parameter(torch.ones(1)))
    return network


def flat_first() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(9, 2))


def test_a_plain_stack_is_known() -> None:
    assert len(known_blocks(FlatNetwork(plain()))) == 2


@pytest.mark.parametrize("make", [hooked, patched, twice, half_frozen, with_more, flat_first])
def test_a_stack_that_is_more_than_its_layers_is_not(make: Callable[[], nn.Module]) -> None:
    assert known_blocks(FlatNetwork(make())) == []


def test_a_network_begins_with_a_picture_and_ends_in_a_row_of_numbers() -> None:
    assert _blocks(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())) == []
    assert _blocks(nn.Sequential(nn.Flatten(), nn.Linear(9, 2))) == []


def test_on_a_cpu_networks_are_called_as_they_are() -> None:
    x, cpu = torch.zeros(4, 1, 40, 40), torch.device("cpu")
    flat = FlatNetwork(fgn.models.network1())
    assert not ConvolutionStack.fits(flat, x, 4)
    rows = [(slice(0, 4), 4)]
    made = network_stack(flat, flat.vector[None], x, rows, Streams(cpu), dense=False)
    assert isinstance(made, ModuleStack)
    dense = FlatNetwork(nn.Sequential(nn.Linear(3, 2)))
    vectors, x = dense.vector[None], torch.zeros(4, 3)
    made = network_stack(dense, vectors, x, rows, Streams(cpu), dense=True)
    assert isinstance(made, DenseStack)


def test_without_a_kernel_a_run_goes_on_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> int:
        raise RuntimeError("no compiler\nhere")

    caplog.set_level("INFO", "fedgradnorm")
    assert built("heads", fails) is None
    assert caplog.messages == ["no kernels for heads: no compiler here"]
    assert built("heads", lambda: 3) == 3
