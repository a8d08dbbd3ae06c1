"""Methods that give the server a direction instead of weights: they need every update itself.

Their weights stay at 1. The direction has the size of a mean update, so that one learning rate
serves all methods.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from fedgradnorm._checks import whole
from fedgradnorm.weighting._base import Needs, Signals, Weighting, draw, private_generator
from fedgradnorm.weighting._products import make_rule, root


class Direction(Weighting):
    """Base: the active clients' updates, in the order of their names, to one vector."""

    needs = Needs.GRADIENT
    beyond_sums = "every client's own update"
    capturable = False

    def __init__(self) -> None:
        super().__init__()
        self.extra["draws"] = 0

    @abstractmethod
    def combine(self, updates: Tensor) -> Tensor:
        """One vector of the size of a mean from the rows of ``updates``."""

    def weigh(self, signals: Signals) -> Tensor:
        """One for every client: the direction is no weighted mean."""
        self.extra["draws"] += 1
        return torch.ones_like(signals.active, dtype=torch.float64)

    def direction(self, signals: Signals) -> Tensor | None:
        assert signals.gradients is not None
        active = signals.active.nonzero().flatten().tolist()
        updates = signals.gradients[sorted(active, key=lambda row: self.clients[row])].detach()
        bits = draw(self.run_seed, self.extra["draws"]).getrandbits(63)
        with torch.no_grad(), private_generator(bits, updates.device):
            return self.combine(updates)


class ConFIG(Direction):
    """The direction with one cosine to all updates: v = U^+ 1, U the unit updates.

    Its length is the sum of the updates' projections on it, over N. All of that is about angles. So
    TorchJD's rule is given the N x N root of the updates' Gram matrix instead of the N x D updates:
    the same vector, sooner, and in double precision. On the updates themselves its pseudo-inverse
    would cut every singular value below D eps of the largest. With millions of parameters in single
    precision that is nearly all of them.
    Source: Liu, Chu, Thuerey, "ConFIG: Towards conflict-free training of physics informed neural
    networks" (2024), arXiv 2408.11104, equation 2.
    """

    def __init__(self) -> None:
        super().__init__()
        self._rule = make_rule("ConFIG")

    def combine(self, updates: Tensor) -> Tensor:
        """TorchJD's vector over N, found as a combination of the updates."""
        small = root((updates @ updates.T).double())
        shares: Tensor = torch.linalg.pinv(small.T) @ self._rule(small) / len(updates)
        return shares.to(updates.dtype) @ updates


class GradDrop(Direction):
    """Every parameter follows one sign, drawn by how much of the gradient has it.

        P = 1/2 (1 + sum_i g_i / sum_i |g_i|);  keep the positive parts with probability P,
        else the negative ones; their sum over N

    On the shared parameters' gradients; the paper does it at one layer's activations.
    Source: Chen et al., "Just pick a sign: Optimizing deep multitask models with gradient sign
    dropout" (2020), arXiv 2010.06808, algorithm 1.
    """

    def combine(self, updates: Tensor) -> Tensor:
        """The parts of one sign of every parameter, summed over the clients, over N."""
        g = updates
        drawn = torch.rand(g.shape[1], dtype=g.dtype, device=g.device)
        purity = 0.5 * (1 + g.sum(dim=0) / g.abs().sum(dim=0))  # NaN, and no sign, where g = 0
        down = torch.where(purity < drawn, g.clamp_max(0).sum(dim=0), 0)
        return torch.where(purity > drawn, g.clamp_min(0).sum(dim=0), down) / len(g)


class TrimmedMean(Direction):
    """The mean of every parameter without its ``trim`` largest and smallest values.

    With fewer than 2 ``trim`` + 1 clients in a round, as many as leave something.
    Source: Yin, Chen, Kannan, Bartlett, "Byzantine-robust distributed learning: Towards optimal
    statistical rates" (2018), arXiv 1803.01498, definition 2.

    Args:
        trim: number of values left out at each end, 0 or more.
    """

    def __init__(self, trim: int = 1) -> None:
        super().__init__()
        self.trim = whole("the trimmed mean's trim", trim, 0)

    def combine(self, updates: Tensor) -> Tensor:
        """The mean of the middle rows, once every parameter's values are in order."""
        trim = min(self.trim, (len(updates) - 1) // 2)
        return updates.sort(dim=0).values[trim : len(updates) - trim].mean(dim=0)
