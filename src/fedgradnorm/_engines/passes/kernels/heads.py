"""Linear heads of many clients with one of the usual losses on a GPU, each step one kernel.

PyTorch takes some ten small kernels for it, and a kernel takes longer to start than such a head
takes to compute. Here a program has one client and some of its features. It finds the client's
outputs and their signal, and goes on to its own part of a gradient. Products of float32 are made of
three in tf32, which keeps float32's digits.
"""

from __future__ import annotations

from typing import Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_ROWS, MOST_OUTPUTS = 128, 64  # that a program holds at once
LEAST = 16  # numbers along each side of a product
FEATURES = 64  # that a program takes at a time
CLASSES = 0  # the kind of loss whose targets are whole numbers


class ClosedLoss(Protocol):
    """A loss that the kernel knows by its ``kind``: cross-entropy, squared error, binary."""

    kind: int


@triton.jit
def _heads(
    z_at,
    weight_at,
    bias_at,
    factor_at,
    target_at,
    loss_at,
    signal_at,
    first_at,  # d loss / d features, or d loss / d weights
    second_at,  # nothing, or d loss / d biases
    batch,
    features,
    outputs,
    KIND: tl.constexpr,
    BACK: tl.constexpr,
    BB: tl.constexpr,
    BO: tl.constexpr,
    BF: tl.constexpr,
):
    client = tl.program_id(0).to(tl.int64)
    b = tl.arange(0, BB)
    o = tl.arange(0, BO)
    here = (b < batch)[:, None] & (o < outputs)[None, :]
    z_at += client * batch * features
    weight_at += client * outputs * features
    out = tl.zeros((BB, BO), tl.float32)
    for first in range(0, features, BF):
        f = first + tl.arange(0, BF)
        some = (b < batch)[:, None] & (f < features)[None, :]
        z = tl.load(z_at + b[:, None] * features + f[None, :], mask=some, other=0.0)
        known = (o < outputs)[:, None] & (f < features)[None, :]
        w = tl.load(weight_at + o[:, None] * features + f[None, :], mask=known, other=0.0)
        out = tl.dot(z, tl.trans(w), out, input_precision="tf32x3")
    out += tl.load(bias_at + client * outputs + o, mask=o < outputs, other=0.0)[None, :]
    at = (client * batch + b)[:, None] * outputs + o[None, :]
    if KIND == 0:
        target = tl.load(target_at + client * batch + b, mask=b < batch, other=0)
        out = tl.where(here, out, float("-inf"))
        out = tl.where((b < batch)[:, None], out, 0.0)
        out -= tl.max(out, axis=1)[:, None]
        log_p = out - tl.log(tl.sum(tl.exp(out), axis=1))[:, None]
        true = o[None, :] == target[:, None]
        signal = tl.exp(log_p) - tl.where(true, 1.0, 0.0)
        each = tl.where(true & here, -log_p, 0.0)
        count = batch
    else:
        target = tl.load(target_at + at, mask=here, other=0.0)
        if KIND == 1:
            signal = out - target
            each = signal * signal
        else:
            signal = 1 / (1 + tl.exp(-out)) - target
            small = tl.exp(-tl.abs(out))  # -log p(y) = log(1 + e^o) - o y
            more = tl.where(small < 1e-4, small - small * small / 2, tl.log(1 + small))
            each = tl.maximum(out, 0.0) + more - out * target
        count = batch * outputs
    signal = tl.where(here, signal, 0.0) * tl.load(factor_at + client)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    if BACK:
        known = (o < outputs)[:, None] & (f < features)[None, :]
        w = tl.load(weight_at + o[:, None] * features + f[None, :], mask=known, other=0.0)
        found = tl.dot(signal, w, input_precision="tf32x3")
        some = (b < batch)[:, None] & (f < features)[None, :]
        place = first_at + client * batch * features + b[:, None] * features + f[None, :]
        tl.store(place, found, mask=some)
        if tl.program_id(1) == 0:
            tl.store(signal_at + at, signal, mask=here)
            tl.store(loss_at + client, tl.sum(tl.where(here, each, 0.0)) / count)
    else:
        some = (b < batch)[:, None] & (f < features)[None, :]
        z = tl.load(z_at + b[:, None] * features + f[None, :], mask=some, other=0.0)
        found = tl.dot(tl.trans(signal), z, input_precision="tf32x3")
        known = (o < outputs)[:, None] & (f < features)[None, :]
        place = first_at + client * outputs * features + o[:, None] * features + f[None, :]
        tl.store(place, found, mask=known)
        if tl.program_id(1) == 0:
            tl.store(second_at + client * outputs + o, tl.sum(signal, axis=0), mask=o < outputs)


def fits(batch: int, outputs: int, weight: Tensor) -> bool:
    """Whether there are kernels for such heads."""
    small = batch <= MOST_ROWS and outputs <= MOST_OUTPUTS
    return small and weight.is_cuda and weight.dtype == torch.float32


def try_out(form: ClosedLoss, batch: int, weight: Tensor, bias: Tensor) -> None:
    """Build the kernels for one such head, and fail now if one cannot be built."""
    z, factor = weight.new_zeros(1, batch, weight.shape[2]), weight.new_ones(1, 1, 1)
    whole = form.kind == CLASSES
    targets = torch.zeros(batch, dtype=torch.int64 if whole else weight.dtype, device=z.device)
    targets = targets if whole else targets[:, None].expand(-1, bias.shape[1])
    head_gradients(form, factor, weight, bias, z, targets)
    feature_signal(form, factor, weight, bias, z, targets)


def head_gradients(
    form: ClosedLoss, factor: Tensor, weight: Tensor, bias: Tensor, z: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of weights and biases: ``closed_losses.head_gradients``."""
    first, second = torch.empty_like(weight), torch.empty_like(bias)
    _launch(form, factor, weight, bias, z, targets, first, second, first, second, back=False)
    return first, second


def feature_signal(
    form: ClosedLoss, factor: Tensor, weight: Tensor, bias: Tensor, z: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses and signals at features and outputs: ``closed_losses.feature_signal``."""
    loss = weight.new_empty(len(weight))
    signal = weight.new_empty(*z.shape[:2], bias.shape[1])
    back = torch.empty_like(z)
    _launch(form, factor, weight, bias, z, targets, loss, signal, back, back, back=True)
    return loss, back, signal


def _launch(
    form: ClosedLoss,
    factor: Tensor,
    weight: Tensor,
    bias: Tensor,
    z: Tensor,
    targets: Tensor,
    *into: Tensor,
    back: bool,
) -> None:
    clients, batch, features = z.shape
    outputs = bias.shape[1]
    sides = (max(LEAST, triton.next_power_of_2(n)) for n in (batch, outputs))
    bb, bo = sides
    grid = clients, triton.cdiv(features, FEATURES)
    given = (part.contiguous() for part in (z, weight, bias, factor, targets))
    with torch.cuda.device_of(z):
        _heads[grid](
            *given, *into, batch, features, outputs,
            KIND=form.kind, BACK=back, BB=bb, BO=bo, BF=FEATURES, num_warps=4, num_stages=2,
        )  # fmt: skip
