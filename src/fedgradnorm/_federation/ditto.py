"""Ditto: beside the shared network, each client trains a whole network of its own near to it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm._federation.alone import alone
from fedgradnorm._federation.federation import Federation
from fedgradnorm._round.reports import Reports
from fedgradnorm._round.settings import Settings
from fedgradnorm.weighting import Equal, Weighting


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
        self._own = alone(network, clients, Equal(), settings, device)
        self.personal = {federation.names[0]: federation for federation in self._own}

    @property
    def burst(self) -> int:
        """One: personal networks are stepped from the host."""
        return 1

    def round(self, round_number: int, active: Sequence[str]) -> tuple[Reports, Tensor]:
        """Personal steps toward the network as it was sent, then the federation's own round."""
        self._own.pulled(round_number, active, self.server.shared.data, self.settings.ditto)
        return super().round(round_number, active)

    def finish(self, round_number: int) -> None:
        """The personal networks' heads, where they are tuned at the end."""
        for own in self.personal.values():
            own.finish(round_number)

    def personalize(self, round_number: int) -> dict[str, dict[str, Any]]:
        """Copies of the personal networks."""
        found = [own.personalize(round_number) for own in self.personal.values()]
        return {name: kept for result in found for name, kept in result.items()}

    def owners(self) -> list[Federation]:
        """The personal ones."""
        return list(self.personal.values())

    def evaluate(
        self, split: str, names: Collection[str] | None = None
    ) -> dict[str, dict[str, float]]:
        """Loss and metrics of the personal networks of the clients in ``names``; None: of all."""
        return self._own.evaluate(split, names)

    def part(self, state: Mapping[str, Any], name: str) -> dict[str, Any]:
        """A client's part, with its personal network."""
        return self.personal[name].part(state["personal"][name], name)

    def give(self, name: str, part: Mapping[str, Any]) -> None:
        """Let a client have what ``part`` returned."""
        self.personal[name].give(name, part)

    def begin(
        self, statistics: Mapping[str, Mapping[str, Tensor]], networks: Mapping[str, Tensor]
    ) -> None:
        """The networks are the personal ones."""
        super().begin(statistics, {})
        for own in self.personal.values():
            own.begin(statistics, networks)

    def state_dict(self, rows: bool = True) -> dict[str, Any]:
        """The federation's state and every personal one."""
        personal = {name: own.state_dict() for name, own in self.personal.items()}
        return {**super().state_dict(rows), "personal": personal}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""
        super().load_state_dict(state)
        for name, own in self.personal.items():
            own.load_state_dict(state["personal"][name])
