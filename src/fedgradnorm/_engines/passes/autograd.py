"""The pass of any network, by autograd."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedgradnorm._engines.passes.gauge_tap import GaugeTap
from fedgradnorm._engines.passes.shared_pass import scaled
from fedgradnorm.models._flat import FlatNetwork
from fedgradnorm.models._input_rows import Inputs, call


class AutogradPass:
    """Any network, by autograd."""

    def __init__(self, network: FlatNetwork, gauge: Sequence[str]) -> None:
        self.network = network
        self.tap = GaugeTap(network.module, gauge)
        self._output = self._signal = torch.empty(0)

    def forward(self, shared: Tensor, x: Inputs) -> Tensor:
        """Run the network and keep the graph."""
        # The last round's graph must be gone: what it shares with a new one is tied to its stream.
        self._output = self._signal = torch.empty(0)
        self.network.use(shared)
        self._output = call(self.network.module, x)
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

    def fuse(self) -> None:
        """Nothing: most of its kernels are the network's own."""
