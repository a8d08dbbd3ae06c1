"""What the clients of one round reported, and which of it the history records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from fedgradnorm.weighting import Needs, Signals


@dataclass(frozen=True)
class Reports(ABC):
    """The reports of one round; axis 0 is the clients that were asked, ``active`` says who counts.

    N full gradients may be too much to hold, so the server only asks for their weighted sum
    (:meth:`aggregate`), which an executor may answer with a single backward pass.

    Where not all clients were asked, ``rows`` are their indices among all clients.
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
        """The updates, one row per client."""

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


class Column(NamedTuple):
    """A column of the history, with one number per client and round.

    ``read`` takes it from a round's reports, weights and frozen weights. ``sent`` columns are part
    of a client's report, so a client that failed has none. All others are counted by the run.
    """

    meaning: str
    read: Callable[[Reports, Tensor, Tensor], Tensor] | None = None
    sent: bool = False


COLUMNS = {
    "loss": Column("mean loss over the round's batches", lambda r, *_: r.loss, sent=True),
    "weight": Column("the client's weight after the round", lambda _, weights, __: weights),
    "loss_ratio": Column("loss / first loss of the client", lambda r, *_: r.loss_ratio, sent=True),
    "gauge_norm": Column(
        "gradient norm on the measured layer", lambda r, *_: r.gauge_norm, sent=True
    ),
    "active": Column("1, or 0 for a client that failed"),
    "held": Column("1 where the weight is frozen: the gradient vanished", lambda *found: found[2]),
    "samples": Column("examples the client has read so far"),
    "bytes": Column("bytes exchanged with the server so far"),
}
"""The columns of a run's history, in the order of its file."""

SENT = tuple(name for name, column in COLUMNS.items() if column.sent)
"""The numbers that a client may be asked for next to its update and its size."""


def columns(reports: Reports, weights: Tensor, held: Tensor | None) -> dict[str, Tensor]:
    """The columns recorded for one round, with one value per reporting client.

    ``weights`` and ``held`` have a number for each client of the reports.
    """
    held = torch.zeros_like(weights) if held is None else held.to(weights.dtype)
    return {name: c.read(reports, weights, held) for name, c in COLUMNS.items() if c.read}
