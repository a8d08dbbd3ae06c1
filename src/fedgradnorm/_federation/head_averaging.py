"""Heads that are not kept apart but averaged in every round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedgradnorm._errors import ConfigError


def check_alike(heads: Mapping[str, nn.Module]) -> None:
    """A ConfigError unless all heads have parameters of the same names and shapes."""
    shapes = {name: _shapes(head) for name, head in heads.items()}
    first = next(iter(heads))
    for name, shape in shapes.items():
        if shape != shapes[first]:
            raise ConfigError(
                f"average_heads needs heads of one shape, but those of clients {first!r} and "
                f"{name!r} differ; keep heads personal (average_heads=False)"
            )


def _shapes(head: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in head.named_parameters()}


@torch.no_grad()
def average_heads(heads: Sequence[nn.Module], shares: Tensor) -> None:
    """Give every head the mean of all, head i counting ``shares[i]`` (FedAvg).

    >>> one, other = nn.Linear(1, 1), nn.Linear(1, 1)
    >>> average_heads([one, other], torch.tensor([1.0, 0.0]))
    >>> bool(one.weight == other.weight)
    True
    """
    parts = shares.tolist()
    for own in zip(*(head.parameters() for head in heads), strict=True):
        mean = sum(part * p.double() for part, p in zip(parts, own, strict=True) if part)
        for p in own:
            p.copy_(torch.as_tensor(mean))
