"""All clients' heads stepped at once, with moments that remain each client's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._engines.passes.streams import Streams
from fedgradnorm._round.client_round import clip_gradients
from fedgradnorm._round.client_state import ClientState
from fedgradnorm._round.lr_schedules import Rates

TENSORS_ABREAST = 64  # heads' parameters that are worth an optimiser of their own on a GPU


class HeadOptimizers:
    """One for all heads; on a GPU some more, as a kernel takes few tensors, to run abreast."""

    def __init__(
        self,
        states: Mapping[str, ClientState],
        spec: Mapping[str, Any],
        device: torch.device,
        streams: Streams,
        clip: float | None = None,
    ) -> None:
        self._streams, self._clip = streams, clip
        self._heads = [list(state.head.parameters()) for state in states.values()]
        every = [(p, s.optimizer) for s in states.values() for p in s.head.parameters()]
        some = (
            max(TENSORS_ABREAST, -(-len(every) // 4)) if device.type == "cuda" else len(every) or 1
        )
        parts = [every[k : k + some] for k in range(0, len(every), some)]
        self._optimizers = [optimizers.Joined(dict(part), spec) for part in parts]

    def link(self) -> None:
        """These optimisers step all heads, but each client's own holds the same moments."""
        for optimizer in self._optimizers:
            optimizer.link()

    def begin_round(self, rates: Rates, round_number: int) -> None:
        """Step with the rate of this round from now on."""
        if not rates:
            return
        for optimizer in self._optimizers:
            optimizer.set(rates.at(round_number))

    def clear(self) -> None:
        """Forget the heads' gradients: a head without one does not step."""
        for optimizer in self._optimizers:
            optimizer.clear()

    def step(self) -> None:
        """Every head that has a gradient takes a step, along what is left of it by ``clip``."""
        if self._clip is not None:
            for head in self._heads:
                clip_gradients(head, self._clip)
        for number, optimizer in enumerate(self._optimizers):
            with self._streams.branch(number, when=len(self._optimizers) > 1):
                optimizer.step()
        self._streams.join()
