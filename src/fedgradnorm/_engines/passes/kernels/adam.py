"""Adam on many networks of one size on a GPU, with one kernel.

torch's own kernel cuts a tensor into blocks of 65,536 numbers, so some small networks leave most of
the GPU idle. Here networks and moments are rows of a matrix each, cut into smaller blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # numbers of a program


@triton.jit
def _adam(
    x_at,
    gradient_at,
    mean_at,
    square_at,
    count_at,
    how_at,
    width,
    x_row,
    gradient_row,
    DECAYS: tl.constexpr,
    BM: tl.constexpr,
):
    one = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = at < width
    lr = tl.load(how_at)
    beta1 = tl.load(how_at + 1)
    beta2 = tl.load(how_at + 2)
    count = tl.load(count_at + one).to(tl.float64)
    # In double: in float32 1 - .999^t is off by 1e-5 at first.
    rate = lr / (1 - tl.exp(count * tl.log(beta1)))
    root = tl.sqrt(1 - tl.exp(count * tl.log(beta2)))
    x = tl.load(x_at + one * x_row + at, mask=inside, other=0.0)
    gradient = tl.load(gradient_at + one * gradient_row + at, mask=inside, other=0.0)
    if DECAYS:
        gradient += tl.load(how_at + 4).to(x.dtype) * x
    mean = tl.load(mean_at + one * width + at, mask=inside, other=0.0)
    square = tl.load(square_at + one * width + at, mask=inside, other=0.0)
    mean += (1 - beta1).to(x.dtype) * (gradient - mean)
    square = beta2.to(x.dtype) * square + (1 - beta2).to(x.dtype) * gradient * gradient
    tl.store(mean_at + one * width + at, mean, mask=inside)
    tl.store(square_at + one * width + at, square, mask=inside)
    below = tl.sqrt(square) / root.to(x.dtype) + tl.load(how_at + 3).to(x.dtype)
    tl.store(x_at + one * x_row + at, x - rate.to(x.dtype) * (mean / below), mask=inside)


def adam(
    x: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    count: Tensor,
    how: Tensor,
    *,
    decays: bool,
) -> None:
    """One step of each row (Kingma and Ba 2015, Algorithm 1), everything in place.

    ``count`` has the steps of each row, this one included; ``how`` is what :func:`options` gives.
    """
    rows, width = x.shape
    grid = triton.cdiv(width, BLOCK), rows
    with torch.cuda.device_of(x):
        _adam[grid](
            x, gradient, mean, square, count, how, width, x.stride(0), gradient.stride(0),
            DECAYS=decays, BM=BLOCK, num_warps=4,
        )  # fmt: skip


def options(group: Mapping[str, Any], device: torch.device) -> Tensor:
    """An optimiser's options, as the kernel reads them."""
    values = [group["lr"], *group["betas"], group["eps"], group["weight_decay"]]
    return torch.tensor(values, dtype=torch.float64, device=device)
