"""Nash-MTL: the clients bargain about the direction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedgradnorm.weighting.gradients import TorchJD, make_rule
from fedgradnorm.weighting.gram import root


class NashMTL(TorchJD):
    """The Nash bargaining solution: G p = 1 / p, approached from the last round's p.

    By ``iterations`` convex programs a round. TorchJD's solver starts from its last answer but
    keeps that to itself and for one fixed set of clients; here it is a row of state per client.
    Source: Navon et al., "Multi-task learning as a bargaining game" (2022), algorithm 1.
    """

    positive = True
    starts: ClassVar[Mapping[str, float]] = {**TorchJD.starts, "bargain": 1.0}

    def __init__(self, iterations: int = 20) -> None:
        super().__init__("NashMTL", n_tasks=1, max_norm=0.0, optim_niter=iterations)
        self.iterations = iterations
        self._rules: dict[int, Any] = {}

    def apply(self, gram: Tensor, names: Sequence[str]) -> Tensor:
        """The bargain among the clients that are here."""
        count = len(names)
        if count not in self._rules:
            self._rules[count] = make_rule(
                "NashMTL", n_tasks=count, max_norm=0.0, optim_niter=self.iterations
            )
        rule = self._rules[count].weighting
        rows = [self.clients.index(name) for name in names]
        kept = self.rows["bargain"]
        rule.prvs_alpha = kept[rows].cpu().numpy()
        weights: Tensor = rule(root(gram))
        usable = torch.isfinite(weights).all() and bool((weights > 0).all())
        kept[rows] = weights.to(kept) if usable else torch.ones_like(kept[rows])
        return weights
