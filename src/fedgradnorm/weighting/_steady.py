"""FedGradNorm's weights from what a client did in all of its rounds.

With G the length of a client's gradient on the gauge (``gauge_norm``) and F / F_0 its loss ratio,

    p_i ~ R_i^gamma / A_i        A_i = sqrt(mean of G_i^2),   R_i = mean of F_i / F_0,i

where means are over all rounds in which the client took part, each counting the same.

The direct rule takes the last rounds alone. A small client that fits its few rows exactly has
gradients and losses near zero there, and both jump from batch to batch. So its weight jumps too.
Here one round moves a mean by a share of 1 / (rounds so far). The noise of batches averages out,
and R^gamma / A cannot grow faster than the square root of the number of rounds. The scale of a
client's loss still cancels: whoever measures in other units has the same weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedgradnorm._checks import bounded
from fedgradnorm.weighting._arithmetic import SMALLEST, VANISHED
from fedgradnorm.weighting._base import Needs, Proportional, Signals, active_mean, only


class Steady(Proportional):
    """Weights that even out gradient lengths and pace, from means over all rounds of a client.

    ``gamma`` is the strength of the pull toward one common pace, as in ``GradNorm``. There is no
    learning rate and no smoothing to choose. A client whose gradient was never more than rounding
    gets the mean weight of the others, and ``held`` names it.

    Each weight is proportional to a number that the client can compute by itself.

    Args:
        gamma: strength of the pull toward one common pace, 0 or more.

    >>> weighting = Steady()
    >>> weighting.bind(["quiet", "loud"])
    >>> ones = torch.ones(2)
    >>> weighting.update(Signals(ones > 0, ones, ones, ones, torch.tensor([1.0, 3.0]))).tolist()
    [1.5, 0.5]
    """

    needs = Needs.LOSS | Needs.NORM
    losses: ClassVar[tuple[str, ...]] = ("loss_ratio",)
    starts: ClassVar[Mapping[str, float]] = dict.fromkeys(
        ("square", "ratio", "rounds", "held"), 0.0
    )

    def __init__(self, gamma: float = 0.5) -> None:
        super().__init__()
        self.gamma = bounded("Steady's gamma", gamma)

    @property
    def held(self) -> Tensor | None:
        """Rows whose gradient was never more than rounding."""
        return self.rows["held"] > 0 if self.rows else None

    @property
    def spread(self) -> float:
        """Little: the weights even the lengths out from the first round on."""
        return 20.0

    def weigh(self, signals: Signals) -> Tensor:
        """R^gamma / A of every row."""
        active, rows = signals.active, self.rows
        length = self._length(signals)
        live = active & (length > VANISHED * only(active, length).sum())
        torch.gt(active, live, out=rows["held"])
        level = self._pull() / torch.where(live, length, 1)
        return torch.where(live, level, torch.where(live.any(), active_mean(level, live), 1.0))

    def own(self, signals: Signals) -> Tensor:
        """R^gamma / A; a client that never had a gradient has no number of its own."""
        length = self._length(signals)
        return self._pull() / length

    def _pull(self) -> Tensor:
        return self.rows["ratio"].clamp_min(SMALLEST).pow(self.gamma)

    def _length(self, signals: Signals) -> Tensor:
        """A, with this round in the means."""
        active, rows = signals.active, self.rows
        rows["rounds"] += active
        part = active / rows["rounds"].clamp_min(1)
        for key, seen in (
            ("square", only(active, signals.gauge_norm).square()),
            ("ratio", only(active, signals.loss_ratio)),
        ):
            rows[key] += part * (seen - rows[key])
        return rows["square"].sqrt()
