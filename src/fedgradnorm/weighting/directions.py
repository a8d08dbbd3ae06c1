"""Methods that give the server a direction instead of weights: they need every update itself.

Their weights stay at 1. The direction has the size of a mean update, so that one learning rate
serves all methods. Also TorchJD's; see gradients.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedgradnorm.errors import ConfigError
from fedgradnorm.weighting.base import Needs, Signals, Weighting
from fedgradnorm.weighting.gradients import make_rule
from fedgradnorm.weighting.gram import root
from fedgradnorm.weighting.rows import draw, private_generator


class Direction(Weighting):
    """Base: the active clients' updates, in the order of their names, to one vector."""

    needs = Needs.GRADIENT
    capturable = False

    def __init__(self) -> None:
        super().__init__()
        self._draws = 0

    @abstractmethod
    def combine(self, updates: Tensor) -> Tensor:
        """One vector of the size of a mean from the rows of ``updates``."""

    def weigh(self, signals: Signals) -> Tensor:
        """One for every client: the direction is no weighted mean."""
        self._draws += 1
        return torch.ones_like(signals.active, dtype=torch.float64)

    def direction(self, signals: Signals) -> Tensor | None:
        """What the server steps along."""
        assert signals.gradients is not None
        active = signals.active.nonzero().flatten().tolist()
        updates = signals.gradients[sorted(active, key=lambda row: self.clients[row])].detach()
        bits = draw(self.run_seed, self._draws).getrandbits(63)
        with torch.no_grad(), private_generator(bits, updates.device):
            return self.combine(updates)

    def state_dict(self) -> dict[str, Any]:
        """The rows, and how often chance was asked."""
        return {**super().state_dict(), "draws": self._draws}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""
        super().load_state_dict(state)
        self._draws = state["draws"]


class ConFIG(Direction):
    """The direction with one cosine to all updates: v = U^+ 1, U the unit updates.

    Its length is the sum of the updates' projections on it, over N. All of that is about angles, so
    TorchJD's rule is given the N x N root of the updates' Gram matrix instead of the N x D updates:
    the same vector, sooner, and in double precision. (On the updates themselves
    its pseudo-inverse would cut every singular value below D eps of the largest, which for millions
    of parameters in single precision is nearly all of them.)
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

    def __init__(self) -> None:
        super().__init__()
        self._rule = make_rule("GradDrop")

    def combine(self, updates: Tensor) -> Tensor:
        """TorchJD's vector over N."""
        vector: Tensor = self._rule(updates) / len(updates)
        return vector


class TrimmedMean(Direction):
    """The mean of every parameter without its ``trim`` largest and smallest values.

    With fewer than 2 ``trim`` + 1 clients in a round, as many as leave something.
    Source: Yin, Chen, Kannan, Bartlett, "Byzantine-robust distributed learning: Towards optimal
    statistical rates" (2018), arXiv 1803.01498, definition 2.
    """

    def __init__(self, trim: int = 1) -> None:
        super().__init__()
        if trim < 0:
            raise ConfigError(f"the trimmed mean's trim must be >= 0, not {trim!r}")
        self.trim = trim
        self._rule = make_rule("TrimmedMean", trim_number=trim)

    def combine(self, updates: Tensor) -> Tensor:
        """TorchJD's vector."""
        self._rule.trim_number = min(self.trim, (len(updates) - 1) // 2)
        vector: Tensor = self._rule(updates)
        return vector
