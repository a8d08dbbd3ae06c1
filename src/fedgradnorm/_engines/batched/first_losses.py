"""Each client's first loss F_0, and how far the losses have come since."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedgradnorm._engines.loop import LoopEngine
from fedgradnorm._round.client_round import first_loss


class FirstLosses:
    """The first losses of a loop engine's clients, as one row on the device."""

    def __init__(self, loop: LoopEngine) -> None:
        self._loop = loop
        self._values = list[float | None]()
        self._row = torch.empty(0)

    def find(self, shared: Tensor, active: Sequence[str]) -> None:
        """Evaluate those that are still unknown, unless a client's first round tells them."""
        loop, kind = self._loop, self._loop.how.first_loss
        for name in active:
            state = loop.states[name]
            if state.first_loss is None and kind != "first_round":
                loop.network.vector.copy_(shared)
                task, data = loop.clients[name].task, loop.data[name]["train"]
                state.first_loss = first_loss(task, state, loop.network, data, kind)

    def ratio(self, loss: Tensor, active: Tensor) -> Tensor:
        """F / F_0 of every client; with ``first_round`` a client's first loss is taken over now."""
        states = [self._loop.states[name] for name in self._loop.clients]
        if any(state.first_loss is None for state in states):
            for state, here, value in zip(states, active.tolist(), loss.tolist(), strict=True):
                if here and state.first_loss is None:
                    state.first_loss = value
        values = [state.first_loss for state in states]
        if values != self._values:  # kept on the device: a captured round may not copy to it
            tiny = torch.finfo(self._loop.network.vector.dtype).tiny
            first = torch.tensor([value or tiny for value in values], dtype=torch.float64)
            self._values = values
            if len(self._row) == len(first):  # in place: a captured round reads it there
                self._row.copy_(first.clamp_min(tiny))
            else:
                self._row = first.clamp_min(tiny).to(self._loop.device)
        return loss / self._row
