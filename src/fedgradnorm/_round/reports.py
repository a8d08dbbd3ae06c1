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


@dataclass(frozen=True)
class Padded(Reports):
    """Reports in which some of the clients that were asked are missing, because they failed."""

    some: Reports
    positions: Tensor  # of the others among those that were asked

    @classmethod
    def of(
        cls,
        some: Reports,
        positions: Tensor,
        failed: Sequence[str],
        size: Tensor,
        rows: Tensor | None,
    ) -> Padded:
        """``some`` reports at their ``positions`` among as many clients as ``size`` has numbers."""

        def placed(values: Tensor) -> Tensor:
            return values.new_zeros(len(size)).index_copy_(0, positions, values)

        columns = (some.loss, some.loss_ratio, some.gauge_norm)
        loss, ratio, norm = (placed(column) for column in columns)
        return cls(placed(some.active), size, loss, ratio, norm, failed, some, positions, rows=rows)

    def aggregate(self, coefficients: Tensor) -> Tensor:
        """sum_i c_i update_i over those that reported."""
        return self.some.aggregate(coefficients[self.positions])

    def gradients(self) -> Tensor:
        """The updates, with zeros for those that failed."""
        rows = self.some.gradients()
        return rows.new_zeros(len(self.size), rows.shape[1]).index_copy_(0, self.positions, rows)

    def gram(self) -> Tensor:
        """Products of the updates, with zeros for those that failed."""
        gram = self.some.gram()
        whole = gram.new_zeros(len(self.size), len(self.size))
        whole[self.positions[:, None], self.positions] = gram
        return whole
