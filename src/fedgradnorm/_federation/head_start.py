"""The answer that a linear head begins with: the best one that knows nothing of the input."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm.models._streamed.rows import all_targets


def trivial_answer(client: Client) -> Tensor:
    """The outputs with the least loss that are the same for all rows of a client.

    For squared error this is the mean of the training targets. For cross-entropy it is the
    logarithm of the classes' shares, for binary cross-entropy the log odds of a 1; every class
    counts once more than it was seen, so that a class nobody saw has a share too.
    """
    return client.task.trivial(all_targets(client.train[1]))


@torch.no_grad()
def start_at_targets(head: nn.Module, client: Client) -> None:
    """Let a head begin near the client's trivial answer; its weights stay as they were drawn."""
    assert isinstance(head.bias, Tensor)
    head.bias.copy_(trivial_answer(client))
