"""Clients that share nothing: each trains a network of its own, all of them in one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._client import Client
from fedgradnorm._engines import Batch, Engine, Graphs, Plan, make_engine
from fedgradnorm._federation.clients import Clients, Outcome
from fedgradnorm._federation.head_averaging import SharedHeads
from fedgradnorm._round.reports import Reports, StackedReports, columns
from fedgradnorm._round.settings import Settings
from fedgradnorm._state.layout import Layout
from fedgradnorm._state.table import NETWORK
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
        super().__init__(network, clients, settings, SharedHeads(clients, "own", device))
        problem = self.problem(device, Needs.GRADIENT, shares=False)
        self.engine: Engine = make_engine(settings.engine, problem)
        vector = FlatNetwork(self.network, device).vector
        table = optimizers.resolve(settings.server_optimizer, settings.lr)
        self._optimizer = optimizers.make(table, Layout({"shared": vector.shape}))
        self._rates = settings.server_rates()
        moments = {f"{SERVER}{k}": v for k, v in self._optimizer.start(vector).items()}
        for group in self.engine.table.group(self.names):
            for key, value in {NETWORK: vector, **moments}.items():
                group.part.rows.add_column(key, value)
        self._moments = list(moments)
        self.graphs = Graphs(self.engine, self._captured, self._changed, self._graph_why_not)

    @property
    def shared(self) -> Tensor:
        """Never used: every client has a network of its own."""
        return self.engine.network.vector

    def _next_round(self, round_number: int, active: Sequence[str]) -> Outcome:
        if not active:
            return Outcome([], [], {})
        reports = self.round(round_number, active)
        found = {
            key: column.tolist()
            for key, column in columns(reports, torch.ones_like(reports.loss), None).items()
        }
        return Outcome(list(active), list(reports.failed), found)

    def round(
        self, round_number: int, active: Sequence[str], to: Tensor | None = None, by: float = 0.0
    ) -> Reports:
        """One round of these clients; their networks v may be pulled: grad F(v) + by (v - to)."""
        plan = self.engine.plan(active)
        networks = self._networks(plan)
        reports = self.engine.run_clients(networks, round_number, active)
        assert isinstance(reports, StackedReports)
        along = reports.updates if to is None else reports.updates + by * (networks - to)
        options = self._rates.at(round_number) if self._rates else None
        fine = reports.active if reports.failed else None
        self._descend(plan, networks, along, options, fine)
        return reports

    def _networks(self, plan: Plan) -> Tensor:
        """The networks of a plan's clients, as rows in the order of the active."""
        rows = [g.part.rows[NETWORK].index_select(0, g.index) for g in plan.groups]
        if len(rows) == 1:
            return rows[0]
        return torch.empty_like(found := torch.cat(rows)).index_copy_(0, plan.order, found)

    def _descend(
        self,
        plan: Plan,
        networks: Tensor,
        along: Tensor,
        options: Mapping[str, Any] | None,
        fine: Tensor | None,
    ) -> None:
        """A server step of every client that did well; None: of all."""
        for group, turns in zip(plan.groups, plan.turns, strict=True):
            here, some = turns, group
            if fine is not None:
                here = turns[fine[turns]]
                some = group.only(fine[turns].nonzero()[:, 0].cpu().numpy())
            rows = group.part.rows
            moments = rows.take(some.index, self._moments)
            state = {key.removeprefix(SERVER): value for key, value in moments.items()}
            moved = networks[here]
            self._optimizer.step(moved, along[here], state, options)
            noted = () if self.engine.capturing else some.rows.tolist()
            rows.put(some.index, {NETWORK: moved, **moments}, noted)

    def _graph_why_not(self) -> str | None:
        if self._rates:
            return "the learning rate follows a schedule"
        return None if self._optimizer.in_rows else "the optimizer steps on the host"

    def _changed(self, engine: Engine) -> list[Tensor]:
        own = [p.rows[key] for p in engine.table.parts for key in (NETWORK, *self._moments)]
        return [*engine.moved_columns(), *own]

    def _captured(self, engine: Engine, plan: Plan, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """A round that decides nothing on the host."""
        networks = self._networks(plan)
        worked = engine.work(networks, plan, batches, engine.known_first(plan), 0, False)
        engine.write(plan, worked)
        reports = engine.reports(plan, worked)
        assert isinstance(reports, StackedReports)
        self._descend(plan, networks, reports.updates, None, None)
        return columns(reports, torch.ones_like(reports.loss), None)

    def weights(self) -> list[float]:
        """All 1."""
        return [1.0] * len(self.names)

    def bytes_per_round(self, name: str) -> int:  # noqa: ARG002
        """Nothing is exchanged."""
        return 0

    def state_dict(self, rows: bool = True) -> dict[str, Any]:
        """The client table; networks and moments are in it."""
        return {"clients": self.engine.state_dict()} if rows else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state saved by :meth:`state_dict`."""
        if "clients" in state:
            self.engine.load_state_dict(state["clients"])
