"""What every engine offers: it runs the clients of a round and says what they reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedgradnorm.reports import Reports


class Engine(Protocol):
    """Runs clients. Their private state lives here, keyed by client name."""

    name: str

    def run_clients(self, shared: Tensor, round_number: int, active: Sequence[str]) -> Reports:
        """Everybody named in ``active`` works on ``shared`` for a round."""

    def evaluate(self, shared: Tensor, split: str) -> dict[str, dict[str, float]]:
        """Loss and metrics of every client that has this split."""

    def heads(self) -> dict[str, nn.Module]:
        """Each client's head."""

    def state_dict(self) -> dict[str, Any]:
        """All clients' private state, by name."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what any engine's ``state_dict`` returned."""


def row_mask(names: Sequence[str], chosen: Sequence[str], device: torch.device) -> Tensor:
    """True for the rows of ``names`` that are ``chosen``."""
    wanted = set(chosen)
    return torch.tensor([name in wanted for name in names], device=device)
