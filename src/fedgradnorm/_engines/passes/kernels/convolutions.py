"""Convolutions of many small networks at once on a GPU, each with weights of its own.

A library's grouped convolution calls one kernel for each network, and such a call leaves most of
the GPU idle. Here one kernel does a layer of all: it reads its inputs where they lie, multiplies,
adds the bias, takes the largest of each 2 x 2 and cuts at zero. What the way back must know of that
is one small number for each output, its ``code``: which of the four it was, or that it was cut.

Images are [client, picture, row, column, channel]. Weights come turned: [tap, input, output], so
that what is read together lies together. A product in float32 is made of three in tf32
(``tf32x3``), which keeps float32's digits. Sums have one order, so two runs give the same numbers.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def forward(
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
        known = (k < K)[:, None] & (n < CO)[None, :]
        b = tl.load(weight_at + k[:, None] * CO + n[None, :], mask=known, other=0.0)
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
def spread(
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
def inputs(
    d_at,
    weight_at,
    dx_at,
    count,
    row,
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
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    K: tl.constexpr = KH * KW * CO
    client = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    down = m // W % H + PAD
    right = m % W + PAD
    start = m // (W * H) * (OH * OW)
    d_at += client * count * (OH * OW * CO)
    weight_at += client * row
    acc = tl.zeros((BM, BN), tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        tap = k // CO
        channel = k % CO
        y = down[:, None] - (tap // KW)[None, :]
        x = right[:, None] - (tap % KW)[None, :]
        inside = (m < count * H * W)[:, None] & (k < K)[None, :] & (y >= 0) & (x >= 0)
        if STRIDE > 1:
            inside = inside & (y % STRIDE == 0) & (x % STRIDE == 0)
            y = y // STRIDE
            x = x // STRIDE
        inside = inside & (y < OH) & (x < OW)
        at = (start[:, None] + y * OW + x) * CO + channel[None, :]
        a = tl.load(d_at + at, mask=inside, other=0.0)
        known = (k < K)[:, None] & (n < CI)[None, :]
        place = (tap * (CI * CO) + channel)[:, None] + n[None, :] * CO
        b = tl.load(weight_at + place, mask=known, other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    kept = (m < count * H * W)[:, None] & (n < CI)[None, :]
    tl.store(dx_at + (client * count * (H * W) + m)[:, None] * CI + n[None, :], acc, mask=kept)


@triton.jit
def weights(
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
    PRECISION: tl.constexpr,
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
        acc = tl.dot(tl.trans(a), d, acc, input_precision=PRECISION)
        bias += tl.sum(d, axis=0)
    sums_at += (tl.program_id(1) * clients + client) * (CO * (K + 1))
    place = k[:, None] * CO + n[None, :]
    tl.store(sums_at + place, acc, mask=(k < K)[:, None] & (n < CO)[None, :])
    if tl.program_id(0) % BLOCKS == 0:
        tl.store(sums_at + CO * K + n, bias, mask=n < CO)


@triton.jit
def settle(
    sums_at,
    goal_at,
    share,
    clients,
    parts,
    row,  # numbers from one client's gradient to the next one's
    TAPS: tl.constexpr,
    CI: tl.constexpr,
    CO: tl.constexpr,
    ADD: tl.constexpr,
    BP: tl.constexpr,
    BM: tl.constexpr,
):
    K: tl.constexpr = TAPS * CI
    client = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = at < CO * (K + 1)
    found = tl.zeros((BM,), tl.float32)
    for first in range(0, parts, BP):
        part = first + tl.arange(0, BP)
        here = ((part * clients + client) * (CO * (K + 1)))[:, None] + at[None, :]
        some = (part < parts)[:, None] & inside[None, :]
        found += tl.sum(tl.load(sums_at + here, mask=some, other=0.0), axis=0)
    # As in the flat vector: weights [CO, CI, KH, KW], then biases.
    k = at // CO
    place = at % CO * K + k % CI * TAPS + k // CI
    goal = goal_at + client * row + tl.where(k < K, place, at)
    found *= share
    if ADD:
        found += tl.load(goal, mask=inside, other=0.0)
    tl.store(goal, found, mask=inside)
