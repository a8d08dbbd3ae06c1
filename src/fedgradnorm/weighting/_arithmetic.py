"""Row-wise arithmetic for several weightings."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

SMALLEST = 1e-12  # smallest weight relative to the largest: keeps logarithms and powers finite
VANISHED = 1e-9  # a gradient norm below this share of the sum over all clients is rounding error
LARGEST_LOG = 300.0

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Adam's, as in torch.optim
MOMENTS = dict.fromkeys(("first_moment", "second_moment", "steps"), 0.0)
"""The rows that :func:`adam` reads and writes, with their initial values."""


def adam(rows: dict[str, Tensor], gradient: Tensor, live: Tensor, lr: float) -> Tensor:
    """The step of Adam, to be subtracted from each row; rows that are not live keep their moments.

    ``rows["steps"]`` is the number of steps a row has taken before; the caller increments it.
    """
    steps = (rows["steps"] + live).clamp_min_(1)
    first, second = rows["first_moment"], rows["second_moment"]
    first.lerp_(torch.where(live, gradient, first), 1 - BETA1)
    second.lerp_(torch.where(live, gradient.square(), second), 1 - BETA2)
    spread = (second / (1 - BETA2**steps)).sqrt_() + EPSILON
    return lr * (first / (1 - BETA1**steps)) / spread


def safe_log(values: Tensor, active: Tensor) -> Tensor:
    """log of the active rows, finite even at zero; 0 for the others."""
    limits = torch.finfo(torch.float64)
    return torch.where(active, values.double(), 1).clamp(limits.tiny, limits.max).log()


def from_log(log_weight: Tensor, active: Tensor) -> Tensor:
    """exp(log_weight) relative to the largest active row, at least ``SMALLEST``."""
    top = torch.where(active, log_weight, -torch.inf).max()
    return (log_weight - top).exp().clamp_min(SMALLEST)


def bounded_exp(log_weight: Tensor) -> Tensor:
    """exp(log_weight), bounded so that powers and sums of it stay finite."""
    return log_weight.clamp(-LARGEST_LOG, LARGEST_LOG).exp()


def onto_simplex(values: Tensor, active: Tensor) -> Tensor:
    """The nearest point of {x >= 0, sum x = 1} over the active rows; 0 for the others.

    Held, Wolfe, Crowder 1974: x = max(v - t, 0), with t such that the sum is 1.
    """
    v = torch.where(active, values.double(), -torch.inf)
    v = v - v.max()  # a common shift changes nothing, but keeps large values exact
    down = v.sort(descending=True).values
    count = torch.arange(1, len(v) + 1, dtype=v.dtype, device=v.device)
    threshold = (torch.where(down.isfinite(), down, 0).cumsum(0) - 1) / count
    last = (down > threshold).sum() - 1
    return (v - threshold.index_select(0, last.view(1))).clamp_min(0)


def draw(*key: object) -> random.Random:
    """A random generator seeded by this key, the same in every process."""
    return random.Random("/".join(map(str, key)))


@contextmanager
def private_generator(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generator inside the block, and restore its state afterwards."""
    generator = torch.default_generator
    if device.type == "cuda":
        torch.cuda.init()
        generator = torch.cuda.default_generators[device.index or 0]
    before = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(before)
