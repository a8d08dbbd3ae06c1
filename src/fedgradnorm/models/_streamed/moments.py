"""Means and deviations of what comes in pieces."""

from __future__ import annotations

import torch
from torch import Tensor


class Moments:
    """Count, mean, squared distance from it and range of each column; NaN counts for nothing.

    Pieces are merged as in Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for
    computing sample variances" (1979), in float64:

        M = M_a + M_b + d^2 n_a n_b / (n_a + n_b),   mean = mean_a + d n_b / (n_a + n_b),

    with d the distance of the two means.
    """

    def __init__(self) -> None:
        zero = torch.zeros(1, dtype=torch.float64)
        self.count, self.mean, self.square = zero, zero, zero
        self.low, self.high = zero + torch.inf, zero - torch.inf

    def add(self, values: Tensor) -> None:
        wide = values.detach().to("cpu", torch.float64)
        there = ~wide.isnan()
        count = there.sum(dim=0).double()
        mean = wide.nansum(dim=0) / count.clamp_min(1)
        square = (wide - mean).square().nansum(dim=0)
        total = self.count + count
        apart, share = mean - self.mean, count / total.clamp_min(1)
        self.square = self.square + square + apart.square() * self.count * share
        self.mean = self.mean + apart * share
        self.count = total
        self.low = torch.minimum(self.low, wide.nan_to_num(nan=torch.inf).amin(dim=0))
        self.high = torch.maximum(self.high, wide.nan_to_num(nan=-torch.inf).amax(dim=0))

    def shaped(self, more: list[int]) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, with more axes behind the columns."""
        return self.mean.reshape(-1, *more), self.deviation().reshape(-1, *more)

    def deviation(self) -> Tensor:
        """The standard deviation of each column; 1 for one that is constant."""
        found = (self.square / self.count.clamp_min(1)).sqrt()
        constant = (self.low == self.high) | (found == 0) | (self.count == 0)
        return torch.where(constant, torch.ones_like(found), found)
