"""Some clients' private state as it was, to be put back if a round fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedgradnorm._round.client_state import ClientState


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

    def restore(self) -> None:
        """Put everything back, in place."""
        for place in range(len(self._states)):
            self.restore_one(place)

    @torch.no_grad()
    def restore_one(self, place: int) -> None:
        """Put one client's back, by its place among those that were given."""
        state, moments = self._states[place], self._moments[place]
        state.first_loss = self._first_losses[place]
        tensors = state.head.state_dict().values()
        for tensor, value in zip(tensors, self._heads[place], strict=True):
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
