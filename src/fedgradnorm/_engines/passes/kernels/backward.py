"""The way back through a stack of linear layers, for many rows on a GPU.

Tensor cores read both factors of a tf32 product along the summed dimension. A layer's own gradient
sums over rows, which lie across memory; where the signal is also kept turned, with its rows along
memory, that product takes two thirds of its time. One kernel of our own masks the signal, writes it
both ways round, and sums it over rows, which is the bias's gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from fedgradnorm._engines.passes.streams import Streams

TILE = 64  # rows and columns of a tile
ENOUGH_ROWS = 1024  # for which it pays
MANY_ROWS = 4096  # for which it pays to turn the weights, too


@triton.jit
def _kernel(
    d_at,
    x_at,
    turned_at,
    sums_at,
    rows,
    columns,
    MASKED: tl.constexpr,
    KEPT: tl.constexpr,
    T: tl.constexpr,
):
    row = tl.program_id(0) * T + tl.arange(0, T)
    column = tl.program_id(1) * T + tl.arange(0, T)
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    at = row[:, None].to(tl.int64) * columns + column[None, :]
    d = tl.load(d_at + at, mask=inside, other=0.0)
    if MASKED:
        x = tl.load(x_at + at, mask=inside, other=0.0)
        d = tl.where(x <= 0, 0.0, d)
        if KEPT:
            tl.store(d_at + at, d, mask=inside)
    sums = sums_at + tl.program_id(0).to(tl.int64) * columns + column
    tl.store(sums, tl.sum(d, axis=0), mask=column < columns)
    across = (column[:, None] < columns) & (row[None, :] < rows)
    place = turned_at + column[:, None].to(tl.int64) * rows + row[None, :]
    tl.store(place, tl.trans(d), mask=across)


class TurnedDescent:
    """Gradients of linear ``layers``; ``active[k]`` where a ReLU follows layer k."""

    def __init__(self, layers: Sequence[nn.Linear], active: Sequence[bool], streams: Streams):
        self.layers, self.active, self.streams = layers, active, streams
        self._weights: dict[int, Tensor] = {}
        self._rooms: dict[str, Tensor] = {}
        self._ones = torch.empty(0)

    @staticmethod
    def fits(rows: int) -> bool:
        """Whether so many rows are enough, and lie in memory as tensor cores want them."""
        return rows >= ENOUGH_ROWS and rows % 8 == 0

    def try_out(self, like: Tensor) -> None:
        """Fail now if the kernel cannot be built, and not in the middle of a round."""
        self._turn(like.new_zeros(8, 8), None, like.new_empty(8), kept=False)

    @torch.no_grad()
    def prepare(self, rows: int) -> None:
        """Turn the weights, beside the forward pass that is about to begin."""
        if rows < MANY_ROWS:
            return
        with self.streams.branch(0):
            for k, layer in enumerate(self.layers[1:], start=1):
                if k not in self._weights:
                    self._weights[k] = layer.weight.new_empty(layer.weight.shape[::-1])
                self._weights[k].copy_(layer.weight.t())

    @torch.no_grad()
    def descend(
        self,
        d: Tensor,
        values: Sequence[Tensor],
        rooms: Sequence[Tensor],
        places: Sequence[Tensor],
    ) -> None:
        """From the signal ``d`` at the last layer's outputs to all gradients, put into ``places``.

        ``values`` are the layers' inputs and the last one's outputs, ``rooms`` take the signals.
        """
        self.streams.join()  # the turned weights
        for k in range(len(self.layers) - 1, -1, -1):
            weight, bias = places[2 * k : 2 * k + 2]
            output = values[k + 1] if self.active[k] else None
            turned = self._turn(d, output, bias, kept=k > 0)
            torch.mm(turned, values[k], out=weight.view_as(self.layers[k].weight))
            if k:
                both_along = len(d) >= MANY_ROWS
                other = self._weights[k].t() if both_along else self.layers[k].weight
                d = torch.mm(d, other, out=rooms[k - 1])

    def _turn(self, d: Tensor, x: Tensor | None, bias: Tensor, *, kept: bool) -> Tensor:
        """``d``, 0 where ``x`` is not positive, turned; its sums over rows into ``bias``.

        With ``kept``, ``d`` itself is changed, too.
        """
        rows, columns = d.shape
        grid = triton.cdiv(rows, TILE), triton.cdiv(columns, TILE)
        turned = self._room("turned", d, columns, rows)
        sums = self._room("sums", d, grid[0], columns)
        above = d if x is None else x
        with torch.cuda.device(d.device):
            _kernel[grid](d, above, turned, sums, rows, columns, x is not None, kept, TILE)
        if len(self._ones) < grid[0]:
            self._ones = d.new_ones(grid[0])
        torch.mv(sums.t(), self._ones[: grid[0]], out=bias)  # faster than a sum over tiles
        return turned

    def _room(self, kind: str, like: Tensor, *shape: int) -> Tensor:
        """Memory that every layer uses in turn."""
        count = shape[0] * shape[1]
        kept = self._rooms.get(kind)
        if kept is None or kept.numel() < count:
            kept = self._rooms[kind] = like.new_empty(count)
        return kept[:count].view(shape)
