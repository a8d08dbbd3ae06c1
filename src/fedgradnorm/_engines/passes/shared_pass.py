"""One forward pass of the shared network for many clients, and its one backward pass.

Between the two the server chooses how much each client's part of the signal counts. So a pass first
tells each client's gradient length on the gauge. The weighted backward pass comes after that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedgradnorm.models._input_rows import Inputs


@dataclass(frozen=True)
class SharedRows:
    """Rows of a joint batch that several tasks of one client share, so that each passes once.

    A row of the joint batch is one that passes (``back``), as one of its tasks (``turn``). For each
    row that passes, ``first`` is its first place in the joint batch. ``places`` are all of them,
    [rows that pass, tasks]; where there are fewer, the number of rows.
    """

    first: Tensor
    back: Tensor
    turn: Tensor
    places: Tensor

    def spread(self, values: Tensor) -> Tensor:
        """What was computed of rows that passed, for every row of the joint batch."""
        return values[self.back]

    def of_turn(self, signal: Tensor, turn: int) -> Tensor:
        """One task's part of a joint batch's signal, at the rows that passed."""
        return self._with_nothing(signal)[self.places[:, turn]]

    def summed(self, signal: Tensor) -> Tensor:
        """All tasks' parts together, in an order that does not change."""
        return self._with_nothing(signal)[self.places].sum(dim=1)

    def each_turn(
        self, signal: Tensor, through: Callable[[Tensor], Sequence[Tensor]]
    ) -> list[Tensor]:
        """What ``through`` makes of each task's part, for every row of the joint batch."""
        turns = [through(self.of_turn(signal, k)) for k in range(self.places.shape[1])]
        return [torch.stack(parts)[self.turn, self.back] for parts in zip(*turns, strict=True)]

    def _with_nothing(self, signal: Tensor) -> Tensor:
        return torch.cat([signal, torch.zeros_like(signal[:1])])


class Pass(Protocol):
    """How a network is run for all clients at once."""

    def forward(self, shared: Tensor, x: Inputs, rows: SharedRows | None = None) -> Tensor:
        """The network's outputs for ``x``, without a graph; for all places of ``rows``, if any."""

    def measure(self, signal: Tensor, parts: Sequence[tuple[slice, int]]) -> list[Tensor]:
        """|gradient on the gauge|^2 of the clients of each part, given d loss / d output.

        A part is a stretch of rows and how many of them are one client's.
        """

    def backward(self, factors: Tensor, owner: Tensor) -> Tensor:
        """The gradient of the sum of all losses, as one vector; ``owner`` is each row's client,
        whose losses are multiplied by its factor.
        """

    def fuse(self) -> None:
        """Let the compiler make few kernels of the many small ones, where that is worth it."""


def scaled(signal: Tensor, factors: Tensor, owner: Tensor) -> Tensor:
    """Each row times the factor of its client."""
    return signal * factors[owner].to(signal.dtype).reshape(-1, *[1] * (signal.ndim - 1))
