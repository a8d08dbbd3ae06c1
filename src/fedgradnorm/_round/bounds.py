"""How much one client may move the shared network in a round, whatever it sends.

A round's step is sum_i c_i update_i. Client i's part of the weights is |c_i| / sum_j |c_j|, its
share of the step |c_i| |update_i|. A server with untrusted clients bounds both relative to the
round's other clients, and the loss ratio that weightings read. A bound that does not bind changes
no number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedgradnorm._errors import ConfigError
from fedgradnorm.weighting import Signals

FEWEST = 3  # of two clients, neither is the usual one
FARTHEST = 10_000.0  # a head's change in medians, where no other bound is given


class Cut(NamedTuple):
    """A client's number that was over its bound: whose row, which bound, the number, the bound."""

    row: int
    name: str
    value: float
    bound: float

    def __str__(self) -> str:
        words, setting = _WORDS[self.name]
        return f"its {words} is {self.value:.3g}, {self.bound:.3g} counts ({setting})"


_WORDS = {
    "share": ("share of the step, in medians,", "largest_share"),
    "weight": ("part of all weights", "largest_weight"),
    "ratio": ("loss ratio", "largest_ratio"),
    "head": ("way from the head that was sent, in medians,", "largest_share"),
}


@dataclass(frozen=True)
class Bounds:
    """The bounds of one round.

    ``share``: the largest share of the step, in medians of the round's shares; 0 takes the
    weighting's own ``spread``. ``weight``: the largest part of all weights. ``ratio``: the largest
    loss ratio that counts. ``math.inf``, 1 and ``math.inf`` bound nothing. Share and weight are
    bounded among three or more clients whose update counts.
    """

    share: float = 0.0
    weight: float = 0.99
    ratio: float = 3.0

    def __post_init__(self) -> None:
        if not (self.share == 0 or self.share >= 1):
            raise ConfigError(
                f"largest_share must be 0 (the method's own) or >= 1, not {self.share!r}"
            )
        if not 0.5 <= self.weight <= 1:
            raise ConfigError(f"largest_weight must be from 0.5 to 1, not {self.weight!r}")
        if not self.ratio >= 1:
            raise ConfigError(f"largest_ratio must be >= 1, not {self.ratio!r}")

    def clipped(self, signals: Signals) -> tuple[Signals, list[Cut]]:
        over = signals.active & (signals.loss_ratio > self.ratio)
        cuts = _cuts("ratio", over, signals.loss_ratio, self.ratio)
        if not cuts:
            return signals, []
        return replace(signals, loss_ratio=signals.loss_ratio.clamp_max(self.ratio)), cuts

    def limited(self, share: Tensor, length: Tensor, spread: float) -> tuple[Tensor, list[Cut]]:
        """The coefficients ``share`` within both bounds, their sum as it was.

        ``length`` is that of each update, ``spread`` the weighting's own bound of a share.
        """
        if int((share != 0).sum()) < FEWEST:
            return share, []
        size, factor, heavy = share.abs(), torch.ones_like(share), list[Cut]()
        top = int(size.argmax())
        part = float(size[top] / size.sum())
        if part > self.weight:  # which is >= 1/2, so that only the largest can be over it
            rest = torch.cat([size[:top], size[top + 1 :]]).sum()
            factor[top] = self.weight / (1 - self.weight) * rest / size[top]
            heavy.append(Cut(top, "weight", part, self.weight))
        lighter = share * factor
        shorter, long = _at_most("share", lighter.abs() * length, self.share or spread)
        if not heavy and not long:
            return share, []
        bounded = lighter * shorter
        return bounded * (size.sum() / bounded.abs().sum()), heavy + long

    def shortened(self, length: Tensor) -> tuple[Tensor, list[Cut]]:
        """The factor of each head's change, given the lengths of the changes of a group's heads.

        No change is longer than the bound of a share, in medians of the changes that are not 0.
        """
        return _at_most("head", length, self.share or FARTHEST)


def _at_most(name: str, values: Tensor, largest: float) -> tuple[Tensor, list[Cut]]:
    """Factors that leave no value over ``largest`` times the median of those that are not 0."""
    ones, counted = torch.ones_like(values), values[values > 0]
    if len(counted) < FEWEST or math.isinf(largest):
        return ones, []
    usual = counted.median()  # of two middle ones the lower
    over = values > largest * usual
    factor = torch.where(over, largest * usual / values, ones)
    return factor, _cuts(name, over, values / usual, largest)


def _cuts(name: str, over: Tensor, values: Tensor, bound: float) -> list[Cut]:
    rows = over.nonzero().flatten().tolist()
    return [Cut(row, name, float(values[row]), bound) for row in rows]
