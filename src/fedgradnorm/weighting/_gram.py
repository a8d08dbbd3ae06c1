"""Weights from the N x N matrix of the updates' inner products."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from fedgradnorm.weighting._base import VANISHED, Needs, Signals, Weighting

log = logging.getLogger("fedgradnorm")


class GramWeighting(Weighting):
    """A method that is a function of G_ij = update_i . update_j.

    A subclass implements ``solve(gram, names)``. Clients are sorted by name, so that neither
    rounding nor random numbers depend on the order they were bound in. G is divided by a power of
    four near its mean diagonal, so that nothing depends on the units of the losses. A client whose
    update has vanished is left out (its weight is 1 and multiplies nothing) instead of turning the
    whole answer to zero. A single client weighs 1. Where a method has no answer, weights are equal.
    """

    needs = Needs.GRAM
    beyond_sums = "the inner products of the clients' updates"
    starts: ClassVar[Mapping[str, float]] = {"frozen": 0.0}
    capturable = False

    @abstractmethod
    def solve(self, gram: Tensor, names: Sequence[str]) -> Tensor:
        """A weight for each row of ``gram``, up to a common factor; at least two rows."""

    def weigh(self, signals: Signals) -> Tensor:
        """The method's weights of the clients with a live update, 1 for the others."""
        assert signals.gram is not None
        gram = signals.gram.detach().double().cpu()
        active = signals.active.cpu()
        length = torch.where(active, gram.diagonal(), 0)
        live = active & (length > VANISHED**2 * length.max()) & torch.isfinite(length)
        self.rows["frozen"].copy_(active & ~live)
        weights = torch.ones(len(active), dtype=torch.float64)
        ordered = sorted(live.nonzero().flatten().tolist(), key=lambda row: self.clients[row])
        if len(ordered) > 1:
            names = [self.clients[row] for row in ordered]
            part = gram[ordered][:, ordered]
            part = (part + part.T) / 2  # exactly symmetric, whoever computed it
            found = self.solve(part / unit(part), names).double()
            if torch.isfinite(found).all() and (total := found.sum()) > 0:
                weights[ordered] = found * len(names) / total
            else:
                log.info("%s has no answer for this round; equal weights", type(self).__name__)
        return weights.to(signals.active.device)


def unit(gram: Tensor) -> float:
    """A power of four near the mean of the diagonal: it and its root divide without rounding."""
    mean = float(gram.diagonal().mean())
    return 4.0 ** round(math.log(mean, 4))


def root(gram: Tensor) -> Tensor:
    """R with R R^T = G: N x N numbers that stand for the N updates in all that is about angles."""
    values, vectors = torch.linalg.eigh(gram)
    found: Tensor = vectors * values.clamp_min(0).sqrt()
    return found
