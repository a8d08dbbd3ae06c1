"""Convolutions of many small networks at once on a GPU, each with weights of its own.

A library's grouped convolution calls one kernel for each network, and such a call leaves most of
the GPU idle. Here one kernel does a layer of all: it reads its inputs where they lie, multiplies,
adds the bias, takes the largest of each 2 x 2 and cuts at zero. What the way back must know of that
is one small number for each output, its ``code``: which of the four it was, or that it was cut.

Images are [client, picture, row, column, channel]. On the way forward a product in float32 is made
of three in tf32 (``tf32x3``), which keeps float32's digits. Sums have one order, so two runs give
the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

CUT = 4  # the code of an output that ReLU made zero

# Measured on an H200 with the paper's Network 1, as are the tiles below.
PROGRAMS = 500  # that a GPU should have to work on when weights' gradients are summed
MANY = 32  # numbers that an output is made of
ROW = 1024  # numbers of a plain kernel


@triton.jit
def _forward(
    x_at,
    weight_at,
    bias_at,
    z_at,
    code_at,
    count,  # pictures of a client
    row,  # numbers from one client's parameters to the next one's
    H: tl.constexpr,
    W: tl.constexpr,
    CI: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    CO: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD: tl.constexpr,
    POOL: tl.constexpr,
    RELU: tl.constexpr,
    CUT: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    PH: tl.constexpr = OH // POOL
    PW: tl.constexpr = OW // POOL
    SUB: tl.constexpr = POOL * POOL
    K: tl.constexpr = KH * KW * CI
    client = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    total = count * PH * PW * SUB
    spot = m // SUB
    picture = spot // (PH * PW)
    top = (spot % (PH * PW) // PW * POOL + m % SUB // POOL) * STRIDE - PAD
    left = (spot % PW * POOL + m % POOL) * STRIDE - PAD
    base = ((picture * H + top) * W + left) * CI
    x_at += client * count * (H * W * CI)
    weight_at += client * row
    acc = tl.zeros((BM, BN), tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        tap = k // CI
        down = tap // KW
        right = tap % KW
        inside = (m < total)[:, None] & (k < K)[None, :]
        if PAD > 0:
            y = top[:, None] + down[None, :]
            x = left[:, None] + right[None, :]
            inside = inside & (y >= 0) & (y < H) & (x >= 0) & (x < W)
        offset = (down * W + right) * CI + k % CI
        a = tl.load(x_at + base[:, None] + offset[None, :], mask=inside, other=0.0)
        place = (k % CI) * (KH * KW) + tap
        known = (k < K)[:, None] & (n < CO)[None, :]
        b = tl.load(weight_at + n[None, :] * K + place[:, None], mask=known, other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    acc += tl.load(bias_at + client * row + n, mask=n < CO, other=0.0)[None, :]
    best = acc
    code = tl.zeros((BM, BN), tl.int32)
    if POOL > 1:
        acc = tl.where(acc == acc, acc, float("inf"))  # a maximum could pass over what is no number
        four = tl.reshape(acc, (BM // SUB, SUB, BN))
        best, code = tl.max(four, axis=1, return_indices=True)
    if RELU:
        code = tl.where(best <= 0, CUT, code)
        best = tl.where(best <= 0, 0.0, best)
    q = tl.program_id(0) * (BM // SUB) + tl.arange(0, BM // SUB)
    kept = (q < count * PH * PW)[:, None] & (n < CO)[None, :]
    at = (client * count * (PH * PW) + q)[:, None] * CO + n[None, :]
    tl.store(z_at + at, best, mask=kept)
    tl.store(code_at + at, code.to(tl.int8), mask=kept)


@triton.jit
def _spread(
    d_at,
    code_at,
    out_at,
    total,  # numbers of all clients' outputs before they were pooled
    OH: tl.constexpr,
    OW: tl.constexpr,
    CO: tl.constexpr,
    POOL: tl.constexpr,
    BM: tl.constexpr,
):
    PH: tl.constexpr = OH // POOL
    PW: tl.constexpr = OW // POOL
    at = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    spot = at // CO
    x = spot % OW
    y = spot // OW % OH
    from_at = ((spot // (OW * OH) * PH + y // POOL) * PW + x // POOL) * CO + at % CO
    inside = (at < total) & (y < PH * POOL) & (x < PW * POOL)
    d = tl.load(d_at + from_at, mask=inside, other=0.0)
    code = tl.load(code_at + from_at, mask=inside, other=-1)
    tl.store(out_at + at, tl.where(code == y % POOL * POOL + x % POOL, d, 0.0), mask=at < total)


@triton.jit
def _collect(
    columns_at,
    dx_at,
    total,  # numbers of all clients' inputs
    H: tl.constexpr,
    W: tl.constexpr,
    CI: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD: tl.constexpr,
    BM: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    spot = at // CI
    down = spot // W % H + PAD
    right = spot % W + PAD
    picture = spot // (W * H)
    acc = tl.zeros((BM,), tl.float32)
    for tap in tl.static_range(KH * KW):
        y = down - tap // KW
        x = right - tap % KW
        inside = (at < total) & (y >= 0) & (x >= 0)
        if STRIDE > 1:
            inside = inside & (y % STRIDE == 0) & (x % STRIDE == 0)
            y = y // STRIDE
            x = x // STRIDE
        inside = inside & (y < OH) & (x < OW)
        from_at = (((picture * OH + y) * OW + x) * (KH * KW) + tap) * CI + at % CI
        acc += tl.load(columns_at + from_at, mask=inside, other=0.0)
    tl.store(dx_at + at, acc, mask=at < total)


@triton.jit
def _weights(
    x_at,
    d_at,
    sums_at,
    clients,
    count,
    chunk,  # rows that one program sums; no constant, since it follows the number of clients
    H: tl.constexpr,
    W: tl.constexpr,
    CI: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    CO: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    K: tl.constexpr = KH * KW * CI
    BLOCKS: tl.constexpr = (K + BK - 1) // BK
    client = tl.program_id(2).to(tl.int64)
    k = tl.program_id(0) % BLOCKS * BK + tl.arange(0, BK)
    n = tl.program_id(0) // BLOCKS * BN + tl.arange(0, BN)
    total = count * OH * OW
    tap = k // CI
    down = tap // KW
    right = tap % KW
    offset = (down * W + right) * CI + k % CI
    x_at += client * count * (H * W * CI)
    d_at += client * count * (OH * OW * CO)
    acc = tl.zeros((BK, BN), tl.float32)
    bias = tl.zeros((BN,), tl.float32)
    for first in range(0, chunk, BM):
        m = tl.program_id(1) * chunk + first + tl.arange(0, BM)
        top = m // OW % OH * STRIDE - PAD
        left = m % OW * STRIDE - PAD
        base = ((m // (OW * OH) * H + top) * W + left) * CI
        inside = (m < total)[:, None] & (k < K)[None, :]
        if PAD > 0:
            y = top[:, None] + down[None, :]
            x = left[:, None] + right[None, :]
            inside = inside & (y >= 0) & (y < H) & (x >= 0) & (x < W)
        a = tl.load(x_at + base[:, None] + offset[None, :], mask=inside, other=0.0)
        known = (m < total)[:, None] & (n < CO)[None, :]
        d = tl.load(d_at + m[:, None] * CO + n[None, :], mask=known, other=0.0)
        acc = tl.dot(tl.trans(a), d, acc, input_precision="ieee")  # no slower here than tf32
        bias += tl.sum(d, axis=0)
    # As in the flat vector: weights [CO, CI, KH, KW], then biases.
    sums_at += (tl.program_id(1) * clients + client) * (CO * (K + 1))
    place = n[None, :] * K + ((k % CI) * (KH * KW) + tap)[:, None]
    tl.store(sums_at + place, acc, mask=(k < K)[:, None] & (n < CO)[None, :])
    if tl.program_id(0) % BLOCKS == 0:
        tl.store(sums_at + CO * K + n, bias, mask=n < CO)


@dataclass(frozen=True)
class Layer:
    """A convolution's sizes, and what follows it: the largest of ``pool`` x ``pool``, a ReLU.

    A linear layer is one over a picture of a single point.
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
    def _taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    def _sizes(self) -> dict[str, Any]:
        high, wide = self._convolved
        return {
            "H": self.height, "W": self.width, "CI": self.inputs, "OH": high, "OW": wide,
            "KH": self.kernel[0], "KW": self.kernel[1], "STRIDE": self.stride, "PAD": self.pad,
        }  # fmt: skip

    def forward(self, x: Tensor, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and codes; ``parameters`` [clients, weights and biases] may be a part of more."""
        clients, count = x.shape[:2]
        high, wide, outputs = self.shape
        z = x.new_empty(clients, count, high, wide, outputs)
        code = torch.empty_like(z, dtype=torch.int8)
        rows = count * high * wide * self.pool**2
        bm, bk = 128 if rows > 512 else 32, 16 if self.inputs % 16 == 0 else 32
        bn = 32 if outputs > 16 and precision() == "tf32" else 16
        grid = triton.cdiv(rows, bm), triton.cdiv(outputs, bn), clients
        bias = parameters[:, self._taps * self.inputs * outputs :]
        with torch.cuda.device_of(x):
            _forward[grid](
                x, parameters, bias, z, code, count, parameters.stride(0), **self._sizes(),
                CO=outputs, POOL=self.pool, RELU=self.relu, CUT=CUT, PRECISION=precision(),
                BM=bm, BN=bn, BK=bk, num_warps=4, num_stages=2,
            )  # fmt: skip
        return z, code

    def spread(self, d: Tensor, code: Tensor) -> Tensor:
        """d loss / d outputs of the convolution itself, from d loss / d what came out."""
        high, wide = self._convolved
        out = d.new_empty(*d.shape[:2], high, wide, self.outputs)
        grid = (triton.cdiv(out.numel(), ROW),)
        with torch.cuda.device_of(d):
            _spread[grid](
                d, code, out, out.numel(), OH=high, OW=wide, CO=self.outputs, POOL=self.pool,
                BM=ROW, num_warps=4,
            )  # fmt: skip
        return out

    def inputs_signal(self, d: Tensor, parameters: Tensor) -> Tensor:
        """d loss / d inputs from d loss / d outputs: a product for each tap, and their sum."""
        clients, count = d.shape[:2]
        weight = parameters[:, : self._taps * self.inputs * self.outputs]
        taps = weight.view(clients, self.outputs, self.inputs, -1).transpose(2, 3).flatten(2)
        columns = torch.bmm(d.view(clients, -1, self.outputs), taps)
        if self.height == self.width == self._taps == 1:
            return columns.view(clients, count, 1, 1, self.inputs)
        dx = d.new_empty(clients, count, self.height, self.width, self.inputs)
        grid = (triton.cdiv(dx.numel(), ROW),)
        with torch.cuda.device_of(d):
            _collect[grid](columns, dx, dx.numel(), **self._sizes(), BM=ROW, num_warps=4)
        return dx

    def gradient(self, x: Tensor, d: Tensor) -> Tensor:
        """d loss / d parameters [clients, weights and biases]."""
        clients, count, high, wide, outputs = d.shape
        k, rows = self._taps * self.inputs, count * high * wide
        bm, bn, bk = (64, 32, 128) if k > MANY else (64, 16, 32)
        tiles = triton.cdiv(k, bk) * triton.cdiv(outputs, bn)
        parts = min(triton.cdiv(rows, 2 * bm), triton.cdiv(PROGRAMS, tiles * clients))
        chunk = triton.cdiv(triton.cdiv(rows, parts), bm) * bm
        parts = triton.cdiv(rows, chunk)
        sums = x.new_empty(parts, clients, outputs * (k + 1))
        with torch.cuda.device_of(x):
            _weights[tiles, parts, clients](
                x, d, sums, clients, count, chunk, **self._sizes(), CO=outputs,
                BM=bm, BN=bn, BK=bk, num_warps=4, num_stages=2,
            )  # fmt: skip
        return sums[0] if parts == 1 else sums.sum(dim=0)


def precision() -> str:
    """How products are made: as PyTorch is told to make those of convolutions."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3"
