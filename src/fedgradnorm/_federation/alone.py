"""Clients that share nothing: each trains a network of its own, all of them in one table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._client import Client
from fedgradnorm._engines import Engine
from fedgradnorm._federation.federation import Clients, Outcome, tuned_parameters, tuning
from fedgradnorm._federation.head_averaging import SharedHeads
from fedgradnorm._round.reports import Reports, StackedReports
from fedgradnorm._round.settings import Settings
from fedgradnorm._state.layout import Layout
from fedgradnorm._state.table import HAS_NETWORK, NETWORK
from fedgradnorm.models._flat import FlatNetwork
from fedgradnorm.weighting import Needs

SERVER = "server."  # moments of a client's own server, as rows


class Alone(Clients):
    """Clients that each train alone: network and server optimiser are entries of their rows.

    A client alone weighs 1. Its round is that of a federation of one: the local update, then one
    step of the server's optimiser along it.
    """

    def __init__(
        self,
        network: nn.Module,
        clients: Sequence[Client],
        settings: Settings,
        device: torch.device,
    ) -> None:
        super().__init__(network, clients, settings)
        self.shared_heads = SharedHeads(clients, "own", device)
        engine = self.make_engine(device, Needs.GRADIENT, shares=False)
        assert isinstance(engine, Engine)
        self.engine: Engine = engine
        self.tuned = tuned_parameters(self.network, settings)
        vector = FlatNetwork(self.network, device).vector
        table = optimizers.resolve(settings.server_optimizer, settings.lr)
        self._optimizer = optimizers.make(table, Layout({"shared": vector.shape}))
        self._rates = settings.server_rates()
        for group in self.engine.table.group(self.names):
            self.engine.table.give_room_for_networks(group.part, vector)
            rows = group.part.rows
            rows[NETWORK].copy_(vector.expand_as(rows[NETWORK]))
            rows[HAS_NETWORK].fill_(True)
            for key, value in self._optimizer.start(vector).items():
                rows.add_column(f"{SERVER}{key}", value)

    @property
    def burst(self) -> int:
        """How many rounds may be asked for at once."""
        return 1

    def rounds(self, first: int, actives: Sequence[Sequence[str]]) -> list[Outcome]:
        """Some rounds in a row."""
        return [self._next_round(first + k, active) for k, active in enumerate(actives)]

    def _next_round(self, round_number: int, active: Sequence[str]) -> Outcome:
        if not active:
            return Outcome([], [], {})
        reports = self.round(round_number, active)
        one = torch.ones_like(reports.loss)
        table = {
            "loss": reports.loss,
            "loss_ratio": reports.loss_ratio,
            "gauge_norm": reports.gauge_norm,
            "weight": one,
            "held": torch.zeros_like(one),
        }
        found = {key: column.tolist() for key, column in table.items()}
        return Outcome(list(active), list(reports.failed), found)

    def round(
        self, round_number: int, active: Sequence[str], to: Tensor | None = None, by: float = 0.0
    ) -> Reports:
        """One round of these clients; their networks v may be pulled: grad F(v) + by (v - to)."""
        networks = self._networks(active)
        reports = self.engine.run_clients(networks, round_number, active)
        assert isinstance(reports, StackedReports)
        along = reports.updates if to is None else reports.updates + by * (networks - to)
        options = self._rates.at(round_number) if self._rates else None
        for group in self.engine.table.group(active):
            turns = torch.from_numpy(group.turns).to(networks.device)
            fine = reports.active[turns]
            some = group if not reports.failed else group.only(fine.nonzero()[:, 0].cpu().numpy())
            rows, here = group.part.rows, turns[fine]
            keys = [key for key in rows.keys() if key.startswith(SERVER)]  # noqa: SIM118
            moments = rows.take(some.index, keys)
            moved = networks[here]
            state = {key.removeprefix(SERVER): value for key, value in moments.items()}
            self._optimizer.step(moved, along[here], state, options)
            rows.put(some.index, {NETWORK: moved, **moments}, some.rows.tolist())
        return reports

    def _networks(self, names: Sequence[str]) -> Tensor:
        """The networks of some clients, as rows."""
        found = None
        for group in self.engine.table.group(names):
            own = group.part.rows.take(group.index, [NETWORK])[NETWORK]
            if len(own) == len(names):
                return own
            found = own.new_empty(len(names), own.shape[1]) if found is None else found
            found[torch.from_numpy(group.turns).to(own.device)] = own
        assert found is not None
        return found

    def finish(self, round_number: int) -> None:
        """Heads tuned on the finished networks."""
        if steps := self.settings.final_head_steps:
            self.engine.tune_heads(self._networks(self.names[:1])[0], steps, round_number)

    def personalize(self, round_number: int) -> dict[str, dict[str, Any]]:
        """Each client tunes its network; what each kept, by name."""
        how = tuning(self.settings, self.tuned, round_number)
        first = self._networks(self.names[:1])[0]
        return {} if how is None else self.engine.personalize(first, how)

    def evaluate(
        self, split: str, names: Collection[str] | None = None
    ) -> dict[str, dict[str, float]]:
        """Loss and metrics of the clients in ``names`` that have this split; None: of all."""
        return self.engine.evaluate(self.engine.network.vector, split, names)

    def weights(self) -> list[float]:
        """All 1."""
        return [1.0] * len(self.names)

    def bytes_per_round(self, name: str) -> int:  # noqa: ARG002
        """Nothing is exchanged."""
        return 0

    def part(self, name: str) -> dict[str, Tensor]:
        """A client's row, as copies."""
        return self.engine.client_state(name)

    def give(self, name: str, part: Mapping[str, Any]) -> None:
        """Let a client have what ``part`` returned."""
        self.engine.load_client(name, part)

    def begin(
        self, statistics: Mapping[str, Mapping[str, Tensor]], networks: Mapping[str, Tensor]
    ) -> None:
        """Start with these own parts of clients, and these networks."""
        for group in self.engine.table.group(self.names):
            for name, row in zip(group.names, group.rows.tolist(), strict=True):
                if name in statistics:
                    self.engine.begin(name, statistics[name])
                if name in networks:
                    group.part.rows[NETWORK][row].copy_(networks[name])
                    group.part.rows.changed.add(row)

    def state_dict(self, rows: bool = True) -> dict[str, Any]:
        """The client table; networks and moments are in it."""
        return {"clients": self.engine.state_dict()} if rows else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state saved by :meth:`state_dict`."""
        if "clients" in state:
            self.engine.load_state_dict(state["clients"])
