"""Some clients' private state as it was, to be put back if a round fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedgradnorm._round.client_round import ClientState


class Snapshot:
    """First losses, heads and their optimisers' moments; the tensors stay the same ones."""

    def __init__(self, states: Sequence[ClientState]) -> None:
        self._states = list(states)
        self._first_losses = [state.first_loss for state in states]
        self._heads = [
            [p.detach().clone() for p in state.head.state_dict().values()] for state in states
        ]
        self._moments = [
            {
                p: {k: v.clone() if isinstance(v, Tensor) else v for k, v in kept.items()}
                for p, kept in state.optimizer.state.items()
            }
            for state in states
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back, in place."""
        for state, first_loss in zip(self._states, self._first_losses, strict=True):
            state.first_loss = first_loss
        for state, values, moments in zip(self._states, self._heads, self._moments, strict=True):
            for tensor, value in zip(state.head.state_dict().values(), values, strict=True):
                tensor.copy_(value)
            for parameter, kept in state.optimizer.state.items():
                _put_back(kept, moments.get(parameter, {}))


def _put_back(kept: dict[str, Any], before: Mapping[str, Any]) -> None:
    """Moments as they were: in the tensors that a captured graph may know, where there are any."""
    for key in kept.keys() - before.keys():
        del kept[key]
    for key, value in before.items():
        if isinstance(value, Tensor) and key in kept:
            kept[key].copy_(value)
        else:
            kept[key] = value
