"""What the clients of one round reported, as the server sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from fedgradnorm.weighting import Needs, Signals


@dataclass(frozen=True)
class Reports(ABC):
    """The reports of one round; axis 0 is the clients that were asked, ``active`` says who counts.

    N full gradients may be too much to hold, so the server only asks for their weighted sum
    (:meth:`aggregate`), which an executor may answer with a single backward pass.

    Where not all clients were asked, ``rows`` says where each of them is in the order of all.
    """

    active: Tensor
    size: Tensor
    loss: Tensor
    loss_ratio: Tensor
    gauge_norm: Tensor
    failed: Sequence[str]
    rows: Tensor | None = field(default=None, kw_only=True)

    def signals(self, needs: Needs) -> Signals:
        """What a weighting with these needs may see."""
        return Signals(
            self.active,
            self.size,
            self.loss,
            self.loss_ratio,
            self.gauge_norm,
            gram=self.gram() if Needs.GRAM in needs else None,
            gradients=self.gradients() if Needs.GRADIENT in needs else None,
            rows=self.rows,
        )

    @abstractmethod
    def aggregate(self, coefficients: Tensor) -> Tensor:
        """sum_i c_i update_i."""

    @abstractmethod
    def gradients(self) -> Tensor:
        """The updates, a row per client."""

    def gram(self) -> Tensor:
        """update_i . update_j for all pairs of clients."""
        updates = self.gradients()
        return updates @ updates.T


@dataclass(frozen=True)
class StackedReports(Reports):
    """Reports that hold every client's update as a row of one matrix."""

    updates: Tensor

    def aggregate(self, coefficients: Tensor) -> Tensor:
        """sum_i c_i update_i."""
        return coefficients.to(self.updates.dtype) @ self.updates

    def gradients(self) -> Tensor:
        """The updates themselves."""
        return self.updates
