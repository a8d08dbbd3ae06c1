"""A plain stack of convolutions for all clients at once on a GPU, with kernels of our own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedgradnorm._engines.passes.convolution_stack import ConvolutionStack
from fedgradnorm._engines.passes.gauge_tap import linear_squared
from fedgradnorm._engines.passes.kernels import built
from fedgradnorm._engines.passes.network_stack import Stretches
from fedgradnorm._engines.passes.shared_pass import SharedRows, scaled
from fedgradnorm._engines.passes.streams import Streams
from fedgradnorm.models._flat import FlatNetwork
from fedgradnorm.models._input_rows import Inputs


class ConvolutionPass:
    """One network of those that a :class:`ConvolutionStack` runs, measured on its last layer."""

    def __init__(
        self, network: FlatNetwork, gauge: Sequence[str], shape: torch.Size, streams: Streams
    ) -> None:
        self.network = network
        self._stack = ConvolutionStack(network, shape, streams)
        self._wanted = [name.rpartition(".")[2] for name in gauge]
        self._signal = torch.empty(0)
        self._rows: SharedRows | None = None

    @staticmethod
    def fits(network: FlatNetwork, gauge: Sequence[str], x: Inputs, most: int) -> bool:
        """Whether ``most`` rows like ``x`` can pass, and the gauge is of the last layer alone."""
        if not isinstance(x, Tensor) or not ConvolutionStack.fits(network, x, most):
            return False
        return set(gauge) <= set(list(network.slices)[-2:])

    def forward(self, shared: Tensor, x: Inputs, rows: SharedRows | None = None) -> Tensor:
        """The network's outputs; those of all layers are kept."""
        assert isinstance(x, Tensor)
        self._rows = rows
        self.network.use(shared)  # heads may ask it for more features
        output = self._stack.forward(shared[None], x, [(slice(0, len(x)), len(x))])
        return output if rows is None else rows.spread(output)

    @torch.no_grad()
    def measure(self, signal: Tensor, parts: Sequence[tuple[slice, int]]) -> list[Tensor]:
        """By each client's own gradient of the last layer, which comes first."""
        self._signal = signal
        layer, inputs, d = self._stack.last(signal, self._rows)
        found = []
        for rows, batch in parts:
            a, back = (part[rows].unflatten(0, (-1, batch)) for part in (inputs, d))
            if layer.is_linear:
                found.append(linear_squared(a.flatten(2), back.flatten(2), self._wanted))
                continue
            own = a.new_empty(len(a), layer.numbers)
            layer.gradient(a, back, own, 1.0, add=False)
            found.append(own[:, layer.places(self._wanted)].square().sum(dim=1))
        return found

    def backward(self, factors: Tensor, owner: Tensor) -> Tensor:
        """From the last layer to the first; the gradients go into the network's one vector."""
        signal = scaled(self._signal, factors, owner)
        signal = signal if self._rows is None else self._rows.summed(signal)
        into = self.network.gradient
        self._stack.gradient(signal, into[None], 1.0, add=False)
        return into

    def fuse(self) -> None:
        """Nothing: its kernels are few already."""

    def try_out(self, x: Tensor, parts: Stretches) -> None:
        """Build the kernels of a round, and fail now if one cannot be built."""
        rows = parts[-1][0].stop
        z = self.forward(self.network.vector, x[:1].expand(rows, *x.shape[1:]))
        self.measure(z, parts)
        self.backward(z.new_ones(1), torch.zeros(rows, dtype=torch.int64, device=z.device))


def convolution_pass(
    network: FlatNetwork, gauge: Sequence[str], x: Tensor, parts: Stretches, streams: Streams
) -> ConvolutionPass | None:
    """For a network that fits, and stretches of rows like ``x``; None if no kernel can be built."""

    def make() -> ConvolutionPass:
        found = ConvolutionPass(network, gauge, x.shape[1:], streams)
        found.try_out(x, parts)
        return found

    return built("convolutions", make)
