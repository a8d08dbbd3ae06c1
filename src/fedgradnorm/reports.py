"""What the clients of one round reported, as the server sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from fedgradnorm.weighting import Needs, Signals


@dataclass(frozen=True)
class Reports:
    """The reports of one round; axis 0 is the engine's clients, ``active`` says who counts.

    ``updates`` may be expensive to hold, so the server never asks for it directly: it asks for
    the weighted sum (:meth:`aggregate`), and engines may answer that without N full gradients.
    """

    active: Tensor
    size: Tensor
    loss: Tensor
    loss_ratio: Tensor
    gauge_norm: Tensor
    updates: Tensor
    failed: Sequence[str] = field(default=())

    def signals(self, needs: Needs) -> Signals:
        """What a weighting with these needs may see."""
        gradient = Needs.GRADIENT in needs
        return Signals(
            self.active,
            self.size,
            self.loss,
            self.loss_ratio,
            self.gauge_norm,
            gram=self.updates @ self.updates.T if Needs.GRAM in needs else None,
            gradients=self.updates if gradient else None,
        )

    def aggregate(self, coefficients: Tensor) -> Tensor:
        """sum_i c_i update_i."""
        return coefficients.to(self.updates.dtype) @ self.updates
