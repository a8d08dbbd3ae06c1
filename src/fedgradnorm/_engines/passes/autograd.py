"""The pass of any network, by autograd."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedgradnorm._engines.passes.gauge_tap import GaugeTap
from fedgradnorm._engines.passes.shared_pass import SharedRows, scaled
from fedgradnorm.models._flat import FlatNetwork
from fedgradnorm.models._input_rows import Inputs, call


class AutogradPass:
    """Any network, by autograd."""

    def __init__(self, network: FlatNetwork, gauge: Sequence[str]) -> None:
        self.network = network
        self.tap = GaugeTap(network.module, gauge)
        self._output = self._signal = torch.empty(0)
        self._rows: SharedRows | None = None

    def forward(self, shared: Tensor, x: Inputs, rows: SharedRows | None = None) -> Tensor:
        """Run the network and keep the graph."""
        self._rows = rows
        # The last round's graph must be gone: what it shares with a new one is tied to its stream.
        self._output = self._signal = torch.empty(0)
        self.network.use(shared)
        self._output = call(self.network.module, x)
        output = self._output.detach()
        return output if rows is None else rows.spread(output)

    def measure(self, signal: Tensor, parts: Sequence[tuple[slice, int]]) -> list[Tensor]:
        """By the layers' inputs and the signal at their outputs."""
        self._signal = signal
        at_gauge = self._taken(self.tap, signal)
        squared = [self.tap.squared(at_gauge, rows, batch) for rows, batch in parts]
        self.tap.seen.clear()
        return squared

    def _taken(self, tap: GaugeTap, signal: Tensor) -> list[Tensor]:
        """The signal at a tap's layers, whose inputs are then those of every row.

        Tasks that share a row have different signals there, so each goes back by itself.
        """
        if self._rows is None:
            return tap.signals(self._output, signal)
        rows = self._rows
        found = rows.each_turn(signal, lambda part: tap.signals(self._output, part))
        tap.seen = [(owner, rows.spread(inputs), output) for owner, inputs, output in tap.seen]
        return found

    def backward(self, factors: Tensor, owner: Tensor) -> Tensor:
        """By one backward pass through the kept graph."""
        leaves = [p for p in self.network.module.parameters() if p.requires_grad]
        signal = scaled(self._signal, factors, owner)
        signal = signal if self._rows is None else self._rows.summed(signal)
        gradients = torch.autograd.grad(self._output, leaves, signal, allow_unused=True)
        return self.network.flatten(gradients)

    def fuse(self) -> None:
        """Nothing: most of its kernels are the network's own."""
