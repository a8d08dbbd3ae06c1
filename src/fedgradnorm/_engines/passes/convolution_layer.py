"""One layer of many networks on a GPU: its sizes, and how its kernels are launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from fedgradnorm._engines.passes.kernels import convolutions as kernels

CUT = 4  # the code of an output that ReLU made zero

# All measured on an H200 with the paper's Network 1, as are the tiles below.
PROGRAMS = 1000  # that a GPU should have to work on when weights' gradients are summed
SMALL = 32  # numbers that an output is made of
MANY = 256  # likewise
FEW_ROWS = 512  # of a client
ROW = 1024  # numbers of a plain kernel
FEW = 128  # likewise, where each is a sum over parts

FLOAT32, BY_THREES = "ieee", "tf32x3"  # a product of float32, and one made of three in tf32


@dataclass(frozen=True)
class Tile:
    """What one program multiplies at a time: rows, columns, and what is summed between them."""

    rows: int
    columns: int
    between: int
    warps: int
    stages: int
    precision: str = BY_THREES

    def options(self) -> dict[str, Any]:
        """As the kernels take them; in tf32 where PyTorch is told to make convolutions so."""
        fast = torch.backends.cudnn.allow_tf32
        return {
            "BM": self.rows, "BN": self.columns, "BK": self.between,
            "PRECISION": "tf32" if fast else self.precision,
            "num_warps": self.warps, "num_stages": self.stages,
        }  # fmt: skip


@dataclass(frozen=True)
class Layer:
    """A convolution's sizes, and what follows it: the largest of ``pool`` x ``pool``, a ReLU.

    A linear layer is one over a picture of a single point. ``parameters`` [clients, weights and
    biases] are turned (:meth:`turned`), and may be a part of more.
    """

    height: int
    width: int
    inputs: int
    outputs: int
    kernel: tuple[int, int]
    stride: int
    pad: int
    pool: int
    relu: bool

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, columns and channels that come out."""
        high, wide = self._convolved
        return high // self.pool, wide // self.pool, self.outputs

    @property
    def _convolved(self) -> tuple[int, int]:
        sizes = zip((self.height, self.width), self.kernel, strict=True)
        high, wide = ((n + 2 * self.pad - k) // self.stride + 1 for n, k in sizes)
        return high, wide

    @property
    def is_linear(self) -> bool:
        """Whether it is a linear layer."""
        return self.height == self.width == self._taps == 1 and not self.pad

    @property
    def numbers(self) -> int:
        """Weights and biases."""
        return self.outputs * (self._made_of + 1)

    def places(self, kinds: Sequence[str]) -> slice:
        """Where weights, biases or both are among these."""
        weights = self.outputs * self._made_of
        return slice(0 if "weight" in kinds else weights, None if "bias" in kinds else weights)

    @property
    def _taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def _made_of(self) -> int:
        """Numbers that an output is made of."""
        return self._taps * self.inputs

    def _sizes(self) -> dict[str, Any]:
        high, wide = self._convolved
        return {
            "H": self.height, "W": self.width, "CI": self.inputs, "OH": high, "OW": wide,
            "CO": self.outputs, "KH": self.kernel[0], "KW": self.kernel[1],
            "STRIDE": self.stride, "PAD": self.pad,
        }  # fmt: skip

    def turned(self) -> Tensor:
        """Where each number of the turned parameters is in the flat vector's part of this layer.

        Turned weights are [tap, input, output]; the flat ones [output, input, tap].
        """
        flat = torch.arange(self._made_of * self.outputs)
        weights = flat.view(self.outputs, self.inputs, self._taps).permute(2, 1, 0).flatten()
        biases = torch.arange(len(flat), len(flat) + self.outputs)
        return torch.cat([weights, biases])

    def forward(self, x: Tensor, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs, and their codes."""
        clients, count = x.shape[:2]
        high, wide, outputs = self.shape
        z = x.new_empty(clients, count, high, wide, outputs)
        code = torch.empty_like(z, dtype=torch.int8)
        rows = count * high * wide * self.pool**2
        tile = self._forward_tile(rows)
        grid = triton.cdiv(rows, tile.rows), triton.cdiv(outputs, tile.columns), clients
        bias = parameters[:, self._made_of * outputs :]
        with torch.cuda.device_of(x):
            kernels.forward[grid](
                x, parameters, bias, z, code, count, parameters.stride(0), **self._sizes(),
                POOL=self.pool, RELU=self.relu, CUT=CUT, **tile.options(),
            )  # fmt: skip
        return z, code

    def _forward_tile(self, rows: int) -> Tile:
        if self._made_of <= SMALL:
            return Tile(128, 16, 32, 4, 2, FLOAT32)
        if rows <= FEW_ROWS:
            return Tile(16, 32, 64, 2, 3)
        return Tile(64, 32, 64, 4, 3) if self._made_of >= MANY else Tile(64, 16, 16, 2, 3)

    def spread(self, d: Tensor, code: Tensor) -> Tensor:
        """d loss / d outputs of the convolution itself, from d loss / d what came out."""
        high, wide = self._convolved
        out = d.new_empty(*d.shape[:2], high, wide, self.outputs)
        grid = (triton.cdiv(out.numel(), ROW),)
        with torch.cuda.device_of(d):
            kernels.spread[grid](
                d, code, out, out.numel(), OH=high, OW=wide, CO=self.outputs, POOL=self.pool,
                BM=ROW, num_warps=4,
            )  # fmt: skip
        return out

    def inputs_signal(self, d: Tensor, parameters: Tensor) -> Tensor:
        """d loss / d inputs from d loss / d outputs."""
        clients, count = d.shape[:2]
        dx = d.new_empty(clients, count, self.height, self.width, self.inputs)
        rows = count * self.height * self.width
        if self.inputs <= 16:
            tile = Tile(64, 16, 32, 2, 3)
        else:
            tile = Tile(32, 64, 64, 4, 3) if rows <= FEW_ROWS else Tile(64, 64, 32, 4, 3)
        grid = triton.cdiv(rows, tile.rows), triton.cdiv(self.inputs, tile.columns), clients
        with torch.cuda.device_of(d):
            kernels.inputs[grid](
                d, parameters, dx, count, parameters.stride(0), **self._sizes(), **tile.options()
            )
        return dx

    def gradient(self, x: Tensor, d: Tensor, into: Tensor, share: float, *, add: bool) -> None:
        """``share`` of d loss / d parameters, in the order of the flat vector."""
        clients, count, high, wide, outputs = d.shape
        rows = count * high * wide
        tile = self._gradient_tile(rows)
        tiles = triton.cdiv(self._made_of, tile.between) * triton.cdiv(outputs, tile.columns)
        parts = min(triton.cdiv(rows, 2 * tile.rows), triton.cdiv(PROGRAMS, tiles * clients))
        chunk = triton.cdiv(triton.cdiv(rows, parts), tile.rows) * tile.rows
        parts = triton.cdiv(rows, chunk)
        sums = x.new_empty(parts, clients, self.numbers)
        with torch.cuda.device_of(x):
            kernels.weights[tiles, parts, clients](
                x, d, sums, clients, count, chunk, **self._sizes(), **tile.options()
            )
            kernels.settle[triton.cdiv(self.numbers, FEW), clients](
                sums, into, share, clients, parts, into.stride(0), TAPS=self._taps,
                CI=self.inputs, CO=outputs, ADD=add, BP=16, BM=FEW, num_warps=4,
            )  # fmt: skip

    def _gradient_tile(self, rows: int) -> Tile:
        if self._made_of <= SMALL:
            return Tile(64, 16, 32, 1, 2)
        if rows <= FEW_ROWS:
            return Tile(64, 64, 32, 4, 2)
        return Tile(64, 64, 64, 4, 2, FLOAT32) if self._made_of > MANY else Tile(32, 64, 32, 2, 2)
