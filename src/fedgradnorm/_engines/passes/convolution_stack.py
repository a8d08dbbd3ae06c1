"""Many networks of convolutions on a GPU, a layer of all of them with one kernel."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedgradnorm._engines.passes.altered import altered
from fedgradnorm._engines.passes.kernels import built
from fedgradnorm._engines.passes.network_stack import (
    DenseStack,
    ModuleStack,
    NetworkStack,
    Stretches,
    clients_of,
)
from fedgradnorm._engines.passes.shared_pass import SharedRows
from fedgradnorm._engines.passes.streams import Streams
from fedgradnorm.models._flat import FlatNetwork

if TYPE_CHECKING:
    from fedgradnorm._engines.passes.convolution_layer import Layer

log = logging.getLogger("fedgradnorm")

ADDRESSES = 1 << 31  # numbers of one client's pictures that a kernel can tell apart

Kept = tuple[Tensor, Tensor, Tensor]  # of a layer: its inputs, its outputs, their codes


class ConvolutionStack:
    """Convolutions and linear layers, ReLUs and 2 x 2 pools: what :meth:`fits` says."""

    def __init__(self, network: FlatNetwork, shape: torch.Size, streams: Streams) -> None:
        """For pictures of this ``shape``: channels, rows, columns."""
        from fedgradnorm._engines.passes.convolution_layer import Layer

        assert isinstance(network.module, nn.Sequential)
        self.layers: list[Layer] = []
        self._streams = streams
        self._places: list[slice] = []
        self._flat = 0  # the first layer whose inputs are numbers in a row, no picture
        channels, high, wide = shape
        slices, blocks = iter(network.slices.values()), _blocks(network.module)
        self.most_rows = _most_rows(blocks, shape)
        for part, relu, pool in blocks:
            start, stop = next(slices).start, next(slices).stop
            self._places.append(slice(start, stop))
            if isinstance(part, nn.Linear):
                made = Layer(1, 1, part.in_features, part.out_features, (1, 1), 1, 0, 1, relu)
            else:
                self._flat = len(self.layers) + 1
                assert isinstance(part.padding, tuple)
                made = Layer(
                    high, wide, channels, part.out_channels,
                    (part.kernel_size[0], part.kernel_size[1]),
                    part.stride[0], part.padding[0], pool, relu,
                )  # fmt: skip
            high, wide, channels = made.shape
            self.layers.append(made)
        places = zip(self.layers, self._places, strict=True)
        turned = torch.cat([layer.turned() + place.start for layer, place in places])
        self._order = turned.to(network.vector.device)
        self._turned = torch.empty(0)  # the vectors of the last forward pass
        self._stretches: Stretches = ()
        self._seen: list[list[Kept]] = []

    @staticmethod
    def fits(network: FlatNetwork, x: Tensor, most: int) -> bool:
        """Whether it is such a stack, in float32 on a GPU, that takes rows like ``x``.

        ``most`` is the number of rows that a client reads at once.
        """
        ready = x.ndim == 4 and x.is_cuda and x.dtype == network.vector.dtype == torch.float32
        if not ready or not (blocks := known_blocks(network)):
            return False
        return most <= _most_rows(blocks, x.shape[1:])

    def try_out(self, vectors: Tensor, x: Tensor, stretches: Stretches) -> None:
        """Build the kernels of a round, and fail now if one cannot be built."""
        rows = x[:1].expand(stretches[-1][0].stop, *x.shape[1:])
        z = self.forward(vectors, rows, stretches)
        self.gradient(z, torch.empty_like(vectors), 1.0, add=False)
        self._seen = []

    @torch.no_grad()
    def forward(self, vectors: Tensor, x: Tensor, stretches: Stretches) -> Tensor:
        """Outputs; those of all layers are kept."""
        self._stretches = stretches
        self._seen = []  # the last ones go before new ones are made
        self._turned = vectors.index_select(1, self._order)
        self._seen = self._run(self._turned, x, stretches)
        return self._outputs(self._seen)

    @torch.no_grad()
    def features(self, vectors: Tensor, x: Tensor, stretches: Stretches) -> Tensor:
        """Outputs alone."""
        return self._outputs(self._run(vectors.index_select(1, self._order), x, stretches, kept=1))

    def _run(
        self, turned: Tensor, x: Tensor, stretches: Stretches, kept: int = sys.maxsize
    ) -> list[list[Kept]]:
        """What each stretch's last ``kept`` layers saw."""
        found, pictures = [], _channels_last(x)
        for (rows, batch), mine in zip(stretches, clients_of(stretches), strict=True):
            z, seen = pictures[rows].unflatten(0, (-1, batch)), list[Kept]()
            for k, (layer, place) in enumerate(zip(self.layers, self._places, strict=True)):
                x = _flattened(z) if k == self._flat else z
                z, code = layer.forward(x, turned[mine, place])
                seen = [*seen, (x, z, code)][-kept:]
            found.append(seen)
        return found

    def _outputs(self, seen: Sequence[Sequence[Kept]]) -> Tensor:
        """The last layer's, as rows."""
        return torch.cat([_flattened(kept[-1][1]).flatten(0, 1).flatten(1) for kept in seen])

    def last(self, signal: Tensor, shared: SharedRows | None) -> tuple[Layer, Tensor, Tensor]:
        """The last layer of one network, its inputs and the signal at its outputs, row by row.

        They are of the rows that passed, or of all places of ``shared``.
        """
        layer, (x, z, code) = self.layers[-1], self._seen[0][-1]
        x, z, code = (
            part[0] if shared is None else shared.spread(part[0]) for part in (x, z, code)
        )
        return layer, x, layer.spread(_as_picture(signal[None], z[None]), code[None])[0]

    @torch.no_grad()
    def gradient(self, signal: Tensor, into: Tensor, share: float, *, add: bool) -> None:
        """From the last layer to the first."""
        alive = list[Tensor]()  # what a branch reads, until it is joined
        stretches = zip(self._stretches, clients_of(self._stretches), self._seen, strict=True)
        for (rows, batch), mine, seen in stretches:
            d = signal[rows].unflatten(0, (-1, batch))
            for k in range(len(self.layers) - 1, -1, -1):
                layer, place, (x, z, code) = self.layers[k], self._places[k], seen[k]
                if k + 1 in (self._flat, len(self.layers)):
                    d = _as_picture(d, z)
                d = layer.spread(d, code)
                with self._streams.branch(0):  # beside the chain that leads to the next layer
                    layer.gradient(x, d, into[mine, place], share, add=add)
                    alive.append(d)
                if k:
                    d = layer.inputs_signal(d, self._turned[mine, place])
        self._streams.join()


def network_stack(
    network: FlatNetwork,
    vectors: Tensor,
    x: Tensor,
    stretches: Stretches,
    streams: Streams,
    *,
    dense: bool,
) -> NetworkStack:
    """The fastest way to run ``vectors`` of a network on ``stretches`` of rows like ``x``."""
    if dense:
        return DenseStack(network)
    if ConvolutionStack.fits(network, x, max(batch for _, batch in stretches)):
        log.info("kernels for convolutions are built, the first time in some seconds")

        def make() -> ConvolutionStack:
            stack = ConvolutionStack(network, x.shape[1:], streams)
            stack.try_out(vectors, x, stretches)
            return stack

        if (stack := built("convolutions", make)) is not None:
            return stack
    return ModuleStack(network, x.device.type == "cuda", x[:2])


Block = tuple[nn.Conv2d | nn.Linear, bool, int]  # with whether a ReLU follows, and what is pooled


def known_blocks(network: FlatNetwork) -> list[Block]:
    """The layers of a network that kernels can stand in for, or nothing.

    It is a plain stack, all of it trained, and nobody has put code of their own into it.
    """
    module = network.module
    if type(module) is not nn.Sequential or altered(module):
        return []
    layers = [k for k, part in module.named_children() if isinstance(part, nn.Conv2d | nn.Linear)]
    named = [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
    every = [name for name, _ in module.named_parameters()]
    blocks = _blocks(module)
    plain = named == list(network.slices) == every and len(blocks) == len(layers)
    return blocks if plain and blocks and isinstance(blocks[0][0], nn.Conv2d) else []


def _blocks(module: nn.Sequential) -> list[Block]:
    """The layers of a stack; nothing if there is more in it.

    The largest of four and a cut at zero may come in either order: they give the same.
    """
    found = list[Block]()
    flat = False
    for part in module:
        last = found[-1] if found else None
        if isinstance(part, nn.Conv2d | nn.Linear) and _usual(part, flat):
            found.append((part, False, 1))
        elif type(part) is nn.ReLU and last is not None:
            found[-1] = last[0], True, last[2]
        elif type(part) is nn.MaxPool2d and last and last[2] == 1 and not flat and _halves(part):
            found[-1] = last[0], last[1], 2
        elif type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1) and found:
            flat = True
        else:
            return []
    return found if flat else []


def _usual(part: nn.Conv2d | nn.Linear, flat: bool) -> bool:
    """A linear layer after all pictures, or a convolution of pictures; both with a bias.

    It is one of every channel with every channel, zeros around, the same along both sides.
    """
    if type(part) is nn.Linear:
        return flat and part.bias is not None
    if type(part) is not nn.Conv2d or flat:
        return False
    same = isinstance(part.padding, tuple) and len(set(part.padding)) == len(set(part.stride)) == 1
    plain = part.groups == 1 and part.padding_mode == "zeros" and set(part.dilation) == {1}
    return same and plain and part.bias is not None


def _halves(part: nn.MaxPool2d) -> bool:
    """The largest of each 2 x 2."""
    pairs = [(v, v) if isinstance(v, int) else tuple(v) for v in (part.kernel_size, part.stride)]
    plain = part.padding in (0, (0, 0)) and part.dilation in (1, (1, 1))
    return pairs == [(2, 2), (2, 2)] and plain and not (part.ceil_mode or part.return_indices)


def _most_rows(blocks: Sequence[Block], shape: torch.Size) -> int:
    """Pictures of this shape that one client may have in a call: a layer's numbers are counted."""
    most, (_, high, wide) = shape.numel(), shape
    for part, _, pool in blocks:
        if isinstance(part, nn.Linear):
            most = max(most, part.out_features)
            continue
        assert isinstance(part.padding, tuple)
        sizes = zip((high, wide), part.kernel_size, part.stride, part.padding, strict=True)
        high, wide = ((n + 2 * pad - k) // stride + 1 for n, k, stride, pad in sizes)
        most = max(most, part.out_channels * high * wide)
        high, wide = high // pool, wide // pool
    return (ADDRESSES - 1) // most


def _channels_last(x: Tensor) -> Tensor:
    """[rows, channels, high, wide] as [rows, high, wide, channels]."""
    return x.permute(0, 2, 3, 1).contiguous()


def _flattened(z: Tensor) -> Tensor:
    """Pictures as numbers in a row, in the order of ``nn.Flatten``: [clients, batch, 1, 1, F]."""
    return z.permute(0, 1, 4, 2, 3).flatten(2)[:, :, None, None].contiguous()


def _as_picture(d: Tensor, z: Tensor) -> Tensor:
    """A signal in the layout of what it is the signal of."""
    high, wide, channels = z.shape[2:]
    return d.reshape(*z.shape[:2], channels, high, wide).permute(0, 1, 3, 4, 2).contiguous()
