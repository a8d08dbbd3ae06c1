"""Plain stacks of linear layers, as configs name them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import nn

from fedgradnorm._errors import ConfigError

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
        widths: of the layers, from the first to the last.
        inputs: numbers in a row of inputs; found from the data unless given.
        activation: after every layer; in a config by name: relu, gelu, silu, elu, leaky_relu, tanh.
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
