"""One forward pass of the shared network for many clients, and its one backward pass.

Between the two the server chooses how much each client's part of the signal counts, so a pass first
tells each client's gradient length on the gauge and only then takes the weighted backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from fedgradnorm.engines.gauge import GaugeTap
from fedgradnorm.models import FlatNetwork


class Pass(Protocol):
    """How a network is run for all clients at once."""

    def forward(self, shared: Tensor, x: Tensor) -> Tensor:
        """The network's outputs for ``x``, without a graph."""

    def measure(self, signal: Tensor, parts: Sequence[tuple[slice, int]]) -> list[Tensor]:
        """|gradient on the gauge|^2 of the clients of each part, given d loss / d output.

        A part is a stretch of rows and how many of them are one client's.
        """

    def backward(self, factors: Tensor, owner: Tensor) -> Tensor:
        """The gradient of the sum of all losses, as one vector; ``owner`` is each row's client,
        whose losses are multiplied by its factor.
        """


def scaled(signal: Tensor, factors: Tensor, owner: Tensor) -> Tensor:
    """Each row times the factor of its client."""
    return signal * factors[owner].to(signal.dtype)[:, None]


class AutogradPass:
    """Any network, by autograd."""

    def __init__(self, network: FlatNetwork, gauge: Sequence[str]) -> None:
        self.network = network
        self.tap = GaugeTap(network.module, gauge)
        self._output = self._signal = torch.empty(0)

    def forward(self, shared: Tensor, x: Tensor) -> Tensor:
        """Run the network and keep the graph."""
        # The last round's graph must be gone: what it shares with a new one is tied to its stream.
        self._output = self._signal = torch.empty(0)
        self.network.use(shared)
        self._output = self.network.module(x)
        return self._output.detach()

    def measure(self, signal: Tensor, parts: Sequence[tuple[slice, int]]) -> list[Tensor]:
        """By the layers' inputs and the signal at their outputs."""
        self._signal = signal
        at_gauge = self.tap.signals(self._output, signal)
        squared = [self.tap.squared(at_gauge, rows, batch) for rows, batch in parts]
        self.tap.seen.clear()
        return squared

    def backward(self, factors: Tensor, owner: Tensor) -> Tensor:
        """By one backward pass through the kept graph."""
        leaves = [p for p in self.network.module.parameters() if p.requires_grad]
        signal = scaled(self._signal, factors, owner)
        gradients = torch.autograd.grad(self._output, leaves, signal, allow_unused=True)
        return self.network.flatten(gradients)
