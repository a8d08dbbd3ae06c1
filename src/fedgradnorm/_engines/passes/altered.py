"""Networks whose layers we may compute in a way of our own, and those that others have changed."""

from __future__ import annotations

from torch import nn


def altered(network: nn.Module) -> bool:
    """Whether some part does more than its class says: hooks, or a ``forward`` of its own.

    Then only PyTorch's own calls give what its owner wants.
    """
    return any(map(_altered, network.modules()))


def _altered(part: nn.Module) -> bool:
    forward = part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part)
    return bool(forward or part._backward_hooks or part._backward_pre_hooks)
