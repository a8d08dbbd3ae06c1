"""The paper's two networks, stacks of linear layers as configs name them, and the linear head."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor, nn

from fedgradnorm._errors import ConfigError


def network1(activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Network 1 (faces): four convolutions, 1x40x40 gray -> 256 numbers.

    The paper does not name an activation; ReLU after every layer is our reading.

    Args:
        activation: the activation after every layer; in a config by name.
    """
    return nn.Sequential(
        nn.Conv2d(1, 16, 5), activation(), nn.MaxPool2d(2),
        nn.Conv2d(16, 48, 3), activation(), nn.MaxPool2d(2),
        nn.Conv2d(48, 64, 3), activation(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 2), activation(), nn.Flatten(),
    )  # fmt: skip


def network2(activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Network 2 (signals): five linear layers, 256 -> 256 numbers, 3,936,512 parameters.

    Args:
        activation: the activation after every layer; in a config by name.

    >>> sum(p.numel() for p in network2().parameters())
    3936512
    """
    widths = (256, 512, 1024, 2048, 512, 256)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers)


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "leaky_relu": nn.LeakyReLU,
    "tanh": nn.Tanh,
}

DEEPEST = 1000
"""Layers of an ``mlp``: each costs time to make, however small it is."""


def mlp(widths: Sequence[int], inputs: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers of these ``widths``, each followed by the activation; inputs are flattened.

    Args:
        widths: the widths of the layers, from the first to the last.
        inputs: the number of inputs; by default found from the data.
        activation: the activation after every layer; in a config by name: relu, gelu, silu, elu,
            leaky_relu, tanh.
    """
    if not widths or not all(type(w) is int and w > 0 for w in (inputs, *widths)):
        raise ConfigError(
            f"mlp: inputs and widths must be whole numbers > 0, not {inputs!r} and {list(widths)!r}"
        )
    if len(widths) > DEEPEST:
        raise ConfigError(f"mlp: {len(widths)} widths are more than {DEEPEST}")
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in itertools.pairwise((inputs, *widths)):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers)


def linear_of(weight: Tensor, bias: Tensor) -> nn.Linear:
    outputs, features = weight.shape
    layer = nn.Linear(features, outputs, device="meta")
    layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
    return layer


def linear_head(features: int, outputs: int) -> nn.Linear:
    """The paper's personal head: one linear layer."""
    return nn.Linear(features, outputs)
