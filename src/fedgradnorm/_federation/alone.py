"""Clients that share nothing: each trains a network of its own, all of them in one table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._client import Client
from fedgradnorm._engines import Batch, Engine, Graphs, Plan
from fedgradnorm._federation.federation import Clients, Outcome, tuned_parameters, tuning
from fedgradnorm._federation.head_averaging import SharedHeads
from fedgradnorm._round.reports import Reports, StackedReports, columns
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
        asked = self.problem(device, Needs.GRADIENT, shares=False)
        self.engine: Engine = self.local_engine(*asked)
        self.tuned = tuned_parameters(self.network, settings)
        vector = FlatNetwork(self.network, device).vector
        table = optimizers.resolve(settings.server_optimizer, settings.lr)
        self._optimizer = optimizers.make(table, Layout({"shared": vector.shape}))
        self._rates = settings.server_rates()
        own = {NETWORK: vector, HAS_NETWORK: torch.tensor(True, device=device)}
        own |= {f"{SERVER}{k}": v for k, v in self._optimizer.start(vector).items()}
        for group in self.engine.table.group(self.names):
            for key, value in own.items():
                group.part.rows.add_column(key, value)
        self._first, self._kept = vector, list(self._optimizer.start(vector))
        self.graphs = Graphs(self.engine, self._captured, self._changed, self._graph_why_not)

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
        rows = [g.part.rows.take(g.index, [NETWORK])[NETWORK] for g in plan.groups]
        found = torch.cat(rows) if len(rows) > 1 else rows[0]
        if len(rows) == 1:
            return found
        return torch.empty_like(found).index_copy_(0, plan.order, found)

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
            moments = rows.take(some.index, [f"{SERVER}{key}" for key in self._kept])
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
        keys = [NETWORK, *(f"{SERVER}{key}" for key in self._kept)]
        own = [part.rows[key] for part in engine.table.parts for key in keys]
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

    def finish(self, round_number: int) -> None:
        """Heads tuned on the finished networks."""
        if steps := self.settings.final_head_steps:
            self.engine.tune_heads(self._first, steps, round_number)

    def personalize(self, round_number: int) -> dict[str, dict[str, Any]]:
        """Each client tunes its network; what each kept, by name."""
        how = tuning(self.settings, self.tuned, round_number)
        return {} if how is None else self.engine.personalize(self._first, how)

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
