"""Ditto: next to the shared network, each client trains a whole network of its own close to it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm._engines import Exported
from fedgradnorm._federation.alone import Alone
from fedgradnorm._federation.federation import Federation
from fedgradnorm._round.reports import Reports
from fedgradnorm._round.settings import Settings
from fedgradnorm.weighting import Weighting


class Ditto(Federation):
    """A federation whose clients also keep a personal network v_i and a head for it.

        v_i <- optimiser step along  grad F_i(v_i) + lambda (v_i - omega),   lambda = ``ditto``

    with omega as the server sent it this round. Reports, weights and the shared network are those
    of the federation, untouched by the personal ones; evaluations and the trained run are personal.
    Personal steps take the server's optimiser, each client its own, and the same batches.
    Source: Li et al., "Ditto: Fair and robust federated learning through personalization" (2021),
    algorithm 1.
    """

    def __init__(
        self,
        network: nn.Module,
        clients: Sequence[Client],
        weighting: Weighting,
        settings: Settings,
        device: torch.device,
    ) -> None:
        super().__init__(network, clients, weighting, settings, device)
        settings = replace(settings, ditto=0.0, participation=1.0, aggregate="mean", key="client")
        if settings.engine == "joint":
            settings = replace(settings, engine="auto")
        self.personal = Alone(network, clients, settings, device)

    @property
    def burst(self) -> int:
        """One: personal networks are stepped from the host."""
        return 1

    def round(self, round_number: int, active: Sequence[str]) -> tuple[Reports, Tensor]:
        """Personal steps toward the network as it was sent, then the federation's own round."""
        self.personal.round(round_number, active, self.server.shared, self.settings.ditto)
        return super().round(round_number, active)

    def finish(self, round_number: int) -> None:
        """The personal networks' heads, where they are tuned at the end."""
        self.personal.finish(round_number)

    def personalize(self, round_number: int) -> dict[str, dict[str, Any]]:
        """Copies of the personal networks."""
        return self.personal.personalize(round_number)

    def trained(self, name: str) -> Exported:
        """What a client has learned for itself."""
        return self.personal.trained(name)

    def all_trained(self) -> dict[str, Exported]:
        """What all clients have learned for themselves."""
        return self.personal.all_trained()

    def install(self, name: str, client: Exported) -> None:
        """Let a client end with something else."""
        self.personal.install(name, client)

    def evaluate(
        self, split: str, names: Collection[str] | None = None
    ) -> dict[str, dict[str, float]]:
        """Loss and metrics of the personal networks of the clients in ``names``; None: of all."""
        return self.personal.evaluate(split, names)

    def part(self, name: str) -> dict[str, Tensor]:
        """A client's row, with its personal network."""
        return self.personal.part(name)

    def give(self, name: str, part: Mapping[str, Any]) -> None:
        """Let a client have what ``part`` returned."""
        self.personal.give(name, part)

    def begin(
        self, statistics: Mapping[str, Mapping[str, Tensor]], networks: Mapping[str, Tensor]
    ) -> None:
        """The networks are the personal ones."""
        super().begin(statistics, {})
        self.personal.begin(statistics, networks)

    def state_dict(self, rows: bool = True) -> dict[str, Any]:
        """The federation's state and every personal one."""
        return {**super().state_dict(rows), "personal": self.personal.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state saved by :meth:`state_dict`."""
        super().load_state_dict(state)
        self.personal.load_state_dict(state["personal"])
