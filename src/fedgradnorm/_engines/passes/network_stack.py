"""Many networks of one architecture, each with its own values and rows, run in one pass.

``vectors`` is [clients, P]: a row holds one client's network, in the slices of its flat vector.
Rows of inputs come client after client; a stretch is some of them and how many are one client's.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedgradnorm.models._flat import FlatNetwork

log = logging.getLogger("fedgradnorm")

Stretches = Sequence[tuple[slice, int]]


class NetworkStack(Protocol):
    """How many networks are run at once, on ``most_rows`` of one client in a call."""

    most_rows: int

    def forward(self, vectors: Tensor, x: Tensor, stretches: Stretches) -> Tensor:
        """Outputs [rows, F] without a graph, of which a gradient may be asked for."""

    def features(self, vectors: Tensor, x: Tensor, stretches: Stretches) -> Tensor:
        """Outputs alone; what the last forward pass keeps stays."""

    def gradient(self, signal: Tensor, into: Tensor, share: float, *, add: bool) -> None:
        """``share`` of each client's gradient, given d loss / d output of the last forward pass.

        It is written, or added, into the client's row of ``into`` [clients, P].
        """


def clients_of(stretches: Stretches) -> list[slice]:
    """The clients of each stretch, as rows of ``vectors``."""
    found, start = list[slice](), 0
    for rows, batch in stretches:
        count = (rows.stop - rows.start) // batch
        found.append(slice(start, start + count))
        start += count
    return found


class DenseStack:
    """Linear layers and ReLUs in turn (``DensePass.fits``): batched products in closed form."""

    most_rows = sys.maxsize

    def __init__(self, network: FlatNetwork) -> None:
        assert isinstance(network.module, nn.Sequential)
        parts = list(network.module)
        self.active = [
            k + 1 < len(parts) and isinstance(parts[k + 1], nn.ReLU)
            for k, part in enumerate(parts)
            if isinstance(part, nn.Linear)
        ]
        layers = [part for part in parts if isinstance(part, nn.Linear)]
        self._shapes = [(layer.out_features, layer.in_features) for layer in layers]
        self._places = list(network.slices.values())  # of weight and bias, layer after layer
        self._vectors = torch.empty(0)
        self._stretches: Stretches = ()
        self._seen: list[list[Tensor]] = []  # of each stretch: the input, then every output

    @torch.no_grad()
    def forward(self, vectors: Tensor, x: Tensor, stretches: Stretches) -> Tensor:
        """Outputs; those of all layers are kept."""
        self._vectors, self._stretches = vectors, stretches
        self._seen = self._run(vectors, x, stretches)
        return _joined([seen[-1] for seen in self._seen])

    @torch.no_grad()
    def features(self, vectors: Tensor, x: Tensor, stretches: Stretches) -> Tensor:
        """Outputs alone."""
        return _joined([seen[-1] for seen in self._run(vectors, x, stretches)])

    def _run(self, vectors: Tensor, x: Tensor, stretches: Stretches) -> list[list[Tensor]]:
        found = []
        for (rows, batch), mine in zip(stretches, clients_of(stretches), strict=True):
            seen = [x[rows].unflatten(0, (-1, batch))]
            for k, active in enumerate(self.active):
                weight, bias = self._layer(vectors[mine], k)
                z = torch.baddbmm(bias[:, None], seen[-1], weight.transpose(1, 2))
                seen.append(z.relu_() if active else z)
            found.append(seen)
        return found

    def _layer(self, vectors: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Weights [clients, out, in] and biases [clients, out] of a layer, as views."""
        weight, bias = self._places[2 * k], self._places[2 * k + 1]
        return vectors[:, weight].view(-1, *self._shapes[k]), vectors[:, bias]

    @torch.no_grad()
    def gradient(self, signal: Tensor, into: Tensor, share: float, *, add: bool) -> None:
        """From the last layer to the first."""
        stretches = zip(self._stretches, clients_of(self._stretches), self._seen, strict=True)
        for (rows, batch), mine, seen in stretches:
            d = signal[rows].unflatten(0, (-1, batch))
            self._descend(d, self._vectors[mine], seen, into[mine], share, float(add))

    def _descend(
        self,
        d: Tensor,
        vectors: Tensor,
        seen: list[Tensor],
        into: Tensor,
        share: float,
        keep: float,
    ) -> None:
        for k in range(len(self.active) - 1, -1, -1):
            if self.active[k]:
                d = torch.ops.aten.threshold_backward(d, seen[k + 1], 0)
            weight, bias = self._layer(into, k)
            weight.baddbmm_(d.transpose(1, 2), seen[k], beta=keep, alpha=share)
            total = d.sum(dim=1)
            bias.add_(total, alpha=share) if keep else torch.mul(total, share, out=bias)
            if k:
                d = torch.bmm(d, self._layer(vectors, k)[0])


class ModuleStack:
    """Any network without chance and statistics, by autograd.

    ``at_once`` maps one call over all networks (torch.func.vmap). It needs few kernels, so it is
    for a GPU. On a CPU, where one network already fills the cores, they are called in turn. So is
    a network that cannot be mapped, which the rows ``x`` are there to find out.
    """

    most_rows = sys.maxsize

    def __init__(self, network: FlatNetwork, at_once: bool, x: Tensor) -> None:
        self.network = network
        named = dict(network.module.named_parameters())
        self._shapes = {name: named[name].shape for name in network.slices}
        self._leaves: list[list[Tensor]] = []  # of each call: a tensor for each parameter
        self._outputs: list[Tensor] = []
        self.at_once = at_once and self._maps(x)

    def _maps(self, x: Tensor) -> bool:
        """Whether two copies of the network can be run with one call, and back again."""
        self.at_once, two = True, self.network.vector.expand(2, -1)
        try:
            z = self.forward(
                two, x.repeat(2, *[1] * (x.ndim - 1)), [(slice(0, 2 * len(x)), len(x))]
            )
            self.gradient(torch.ones_like(z), torch.empty_like(two), 1.0, add=False)
        except Exception as error:  # of many kinds, and all cost only speed
            log.info("networks are called in turn: %s", " ".join(str(error).split())[:120])
            return False
        return True

    def forward(self, vectors: Tensor, x: Tensor, stretches: Stretches) -> Tensor:
        """Outputs; the graphs are kept."""
        self._leaves, self._outputs = [], []  # the last graphs go before new ones are made
        with torch.enable_grad():
            for own, mine in self._calls(vectors, x, stretches):
                leaves = {name: part.detach().requires_grad_() for name, part in own.items()}
                self._leaves.append(list(leaves.values()))
                self._outputs.append(self._call(leaves, mine))
        return _joined([output.detach() for output in self._outputs])

    @torch.no_grad()
    def features(self, vectors: Tensor, x: Tensor, stretches: Stretches) -> Tensor:
        """Outputs alone."""
        return _joined([self._call(own, mine) for own, mine in self._calls(vectors, x, stretches)])

    def _calls(
        self, vectors: Tensor, x: Tensor, stretches: Stretches
    ) -> list[tuple[dict[str, Tensor], Tensor]]:
        """Parameters and inputs of each call, with an axis of clients in front."""
        found = []
        for (rows, batch), mine in zip(stretches, clients_of(stretches), strict=True):
            inputs, own = x[rows].unflatten(0, (-1, batch)), vectors[mine]
            parts = len(own) if not self.at_once else 1
            for few, some in zip(own.chunk(parts), inputs.chunk(parts), strict=True):
                found.append((self._parameters(few), some))
        return found

    def _parameters(self, vectors: Tensor) -> dict[str, Tensor]:
        places = self.network.slices.items()
        return {name: vectors[:, at].view(len(vectors), *self._shapes[name]) for name, at in places}

    def _call(self, own: dict[str, Tensor], x: Tensor) -> Tensor:
        """Outputs [clients, batch, F]."""
        if len(x) == 1:
            return self._one({name: value[0] for name, value in own.items()}, x[0])[None]
        outputs: Tensor = vmap(self._one)(own, x)
        return outputs

    def _one(self, own: dict[str, Tensor], x: Tensor) -> Tensor:
        output: Tensor = functional_call(self.network.module, own, (x,))
        return output

    def gradient(self, signal: Tensor, into: Tensor, share: float, *, add: bool) -> None:
        """By one backward pass for each call."""
        start, first = 0, 0
        for leaves, output in zip(self._leaves, self._outputs, strict=True):
            count, rows = len(output), output.shape[:2].numel()
            back = signal[first : first + rows].view_as(output)
            found = torch.autograd.grad(output, leaves, back, allow_unused=True)
            mine = into[start : start + count]
            for place, gradient in zip(self.network.slices.values(), found, strict=True):
                _put(mine[:, place], gradient, share, add)
            start, first = start + count, first + rows


def _put(place: Tensor, gradient: Tensor | None, share: float, add: bool) -> None:
    """A share of a parameter's gradient, where it belongs; without one it is zero."""
    if not add:
        place.zero_()
    if gradient is not None:
        place.add_(gradient.flatten(1), alpha=share)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """[clients, batch, F] of each part as rows, one after another."""
    return torch.cat([part.flatten(0, 1) for part in parts])
