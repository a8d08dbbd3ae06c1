"""One forward pass of the shared network for many clients, and its one backward pass.

Between the two the server chooses how much each client's part of the signal counts, so a pass first
tells each client's gradient length on the gauge and only then takes the weighted backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from fedgradnorm.models._input_rows import Inputs


class Pass(Protocol):
    """How a network is run for all clients at once."""

    def forward(self, shared: Tensor, x: Inputs) -> Tensor:
        """The network's outputs for ``x``, without a graph."""

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
    return signal * factors[owner].to(signal.dtype)[:, None]
