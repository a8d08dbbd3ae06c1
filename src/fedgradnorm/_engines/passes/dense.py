"""A plain stack of linear layers, forward and backward in closed form.

It computes what autograd would, in fewer and larger steps. Bias and ReLU go into the product.
Gradients are written where the server reads them, and memory is kept from round to round. On a GPU
the layers' own gradients are computed beside the chain that leads to the next layer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedgradnorm._engines.passes.altered import altered
from fedgradnorm._engines.passes.gauge_tap import linear_squared
from fedgradnorm._engines.passes.shared_pass import SharedRows, scaled
from fedgradnorm._engines.passes.streams import Streams
from fedgradnorm._fusing import Fused
from fedgradnorm.models._flat import FlatNetwork
from fedgradnorm.models._input_rows import Inputs

if TYPE_CHECKING:
    from fedgradnorm._engines.passes.kernels.backward import TurnedDescent

log = logging.getLogger("fedgradnorm")

FEW_ROWS = 1024  # of which a product does not fill a GPU, so that another fits beside it

_mask = torch.ops.aten.threshold_backward.grad_input


class DensePass:
    """A network that :meth:`fits`."""

    def __init__(self, network: FlatNetwork, gauge: Sequence[str], streams: Streams) -> None:
        self.network, self.streams = network, streams
        assert isinstance(network.module, nn.Sequential)
        parts = list(network.module)
        self.layers = [part for part in parts if isinstance(part, nn.Linear)]
        self.active = [
            k + 1 < len(parts) and isinstance(parts[k + 1], nn.ReLU)
            for k, part in enumerate(parts)
            if isinstance(part, nn.Linear)
        ]
        self.squared: Callable[..., Tensor] = linear_squared
        self.scaled: Callable[..., Tensor] = scaled
        self._turned: TurnedDescent | None = None
        self._wanted = [name.rpartition(".")[2] for name in gauge]
        self._rooms: dict[tuple[str, int], Tensor] = {}
        self._inputs: list[Tensor] = []
        self._output = self._signal = self._all_one = torch.empty(0)
        self._rows: SharedRows | None = None

    @staticmethod
    def fits(module: nn.Module, gauge: Sequence[str]) -> bool:
        """Whether it is linear layers and ReLUs in turn, measured on the last, and nothing more."""
        if type(module) is not nn.Sequential:
            return False
        parts = list(module)
        known = all(
            (type(part) is nn.Linear and part.bias is not None)
            or (type(part) is nn.ReLU and k > 0 and type(parts[k - 1]) is nn.Linear)
            for k, part in enumerate(parts)
        )
        linear = [part for part in parts if type(part) is nn.Linear]
        once = len({id(part) for part in linear}) == len(linear)
        every = list(module.parameters())
        trained = len(every) == 2 * len(linear) and all(p.requires_grad for p in every)
        last = [str(k) for k, part in enumerate(parts) if type(part) is nn.Linear][-1:]
        measured = [name.rpartition(".")[0] for name in gauge]
        plain = known and once and trained and not altered(module)
        return plain and sorted(set(measured)) == last

    def fuse(self) -> None:
        """Let the compiler make few kernels of the many small ones."""
        self.squared, self.scaled = Fused(linear_squared), Fused(scaled)
        if self.network.vector.is_cuda and self.network.vector.dtype == torch.float32:
            self._turned = self._turned_descent()

    def _turned_descent(self) -> TurnedDescent | None:
        """Our own kernel, where Triton and what it needs are there."""
        try:
            from fedgradnorm._engines.passes.kernels.backward import TurnedDescent

            descent = TurnedDescent(self.layers, self.active, self.streams)
            descent.try_out(self.network.vector)
        except Exception as error:  # Triton's own are of many kinds, and all cost only speed
            reason = str(error).strip().splitlines()[:1]
            log.warning("compile: gradients are not turned: %s", *reason or [type(error).__name__])
            return None
        return descent

    @torch.no_grad()
    def forward(self, shared: Tensor, x: Inputs, rows: SharedRows | None = None) -> Tensor:
        """The network's outputs; the layers' inputs are kept."""
        assert isinstance(x, Tensor)
        self._rows = rows
        self.network.use(shared)
        if self._turned is not None and self._turned.fits(len(x)):
            self._turned.prepare(len(x))
        self._inputs = []
        for k, (layer, active) in enumerate(zip(self.layers, self.active, strict=True)):
            self._inputs.append(x)
            product = torch._addmm_activation if active else torch.addmm
            x = product(layer.bias, x, layer.weight.t(), out=self._room("out", k, x))
        self._output = x
        return x if rows is None else rows.spread(x)

    @torch.no_grad()
    def measure(self, signal: Tensor, parts: Sequence[tuple[slice, int]]) -> list[Tensor]:
        """On the last layer, whose gradient comes first."""
        a, d = self._inputs[-1], self._before_relu(signal)
        a = a if self._rows is None else self._rows.spread(a)
        self._signal = d
        return [
            self.squared(
                a[rows].unflatten(0, (-1, batch)), d[rows].unflatten(0, (-1, batch)), self._wanted
            )
            for rows, batch in parts
        ]

    def backward(self, factors: Tensor, owner: Tensor) -> Tensor:
        """From the last layer to the first; the gradients go into the network's one vector."""
        d, into = self.scaled(self._signal, factors, owner), self.network.gradient
        d = d if self._rows is None else self._rows.summed(d)
        if self._turned is None or not self._turned.fits(len(d)):
            self._descend(d, into)
            return into
        places = [into[part] for part in self.network.slices.values()]
        rooms = [self._room("signal", k, d) for k in range(len(self.layers) - 1)]
        self._turned.descend(d, [*self._inputs, self._output], rooms, places)
        return into

    def gradient(self, signal: Tensor, into: Tensor, share: float, *, add: bool) -> None:
        """``share`` of the gradient of the sum of all losses, written or added into a vector."""
        self._descend(self._before_relu(signal), into, share, add=add)

    def _before_relu(self, signal: Tensor) -> Tensor:
        """The signal at the last layer's outputs, given that at the network's."""
        last = len(self.layers) - 1
        if not self.active[last]:
            return signal
        output = self._output if self._rows is None else self._rows.spread(self._output)
        room = self._room("signal", last, output)
        masked: Tensor = _mask(signal, output, 0, grad_input=room)
        return masked

    @torch.no_grad()
    def _descend(self, d: Tensor, into: Tensor, share: float = 1.0, *, add: bool = False) -> None:
        places = [into[part] for part in self.network.slices.values()]
        ones, beta = self._ones(d), float(add)
        for k in range(len(self.layers) - 1, -1, -1):
            x, layer = self._inputs[k], self.layers[k]
            weight, bias = places[2 * k].view_as(layer.weight), places[2 * k + 1]
            with self.streams.branch(k % 2, when=len(d) < FEW_ROWS):
                torch.addmm(weight, d.t(), x, beta=beta, alpha=share, out=weight)
                # faster than a sum over rows
                torch.addmv(bias, d.t(), ones, beta=beta, alpha=share, out=bias)
            if k:
                d = torch.mm(d, layer.weight, out=self._room("signal", k - 1, x))
                if self.active[k - 1]:
                    d = _mask(d, x, 0, grad_input=d)
        self.streams.join()

    def _ones(self, like: Tensor) -> Tensor:
        if len(self._all_one) < len(like):
            self._all_one = like.new_ones(len(like))
        return self._all_one[: len(like)]

    def _room(self, kind: str, layer: int, like: Tensor) -> Tensor:
        """Memory for as many rows as ``like`` has at the outputs of a layer, used again and again.

        Fresh memory of this size is not for nothing: the system hands it out page by page.
        """
        kept = self._rooms.get((kind, layer))
        if kept is None or len(kept) < len(like):
            kept = like.new_empty(len(like), self.layers[layer].out_features)
            self._rooms[kind, layer] = kept
        return kept[: len(like)]
