"""Clients that share one network, their server, and the engine that runs them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._client import Client
from fedgradnorm._engines import Batch, Engine, Graphs, Plan, RankedEngine, make_engine
from fedgradnorm._engines.ranks import world
from fedgradnorm._federation.alone import Alone
from fedgradnorm._federation.clients import Clients, Outcome
from fedgradnorm._federation.conflict import pairs
from fedgradnorm._federation.head_averaging import SharedHeads
from fedgradnorm._launched import asked_for
from fedgradnorm._round.private.client_sums import client_sums
from fedgradnorm._round.reports import Reports
from fedgradnorm._round.server import ServerState, recorded, server_step
from fedgradnorm._round.settings import Settings
from fedgradnorm.models._flat import FlatNetwork
from fedgradnorm.weighting import ByTask, Needs, Weighting

SCALARS = (Needs.SIZE, Needs.LOSS, Needs.NORM)
"""Needs that cost the client one number in its report."""
PACKED = "packed"


class Federation(Clients):
    """One shared network and the clients that train it.

    With Ditto, clients also keep a ``personal`` network v_i and a head for it:

        v_i <- optimiser step along  grad F_i(v_i) + lambda (v_i - omega),   lambda = ``ditto``

    with omega as the server sent it this round. Reports, weights and the shared network are
    untouched by the personal ones; evaluations and the trained run are personal. Personal steps
    take the server's optimiser, each client its own, and the same batches.
    Source: Li et al., "Ditto: Fair and robust federated learning through personalization" (2021),
    algorithm 1.
    """

    personal: Alone | None

    def __init__(
        self,
        network: nn.Module,
        clients: Sequence[Client],
        weighting: Weighting,
        settings: Settings,
        device: torch.device,
        personal: Alone | None = None,
    ) -> None:
        shared_heads = SharedHeads(clients, settings.heads, device, settings.head_own)
        super().__init__(network, clients, settings, shared_heads)
        self.personal = personal
        self._receivers = frozenset({c.owner: c.name for c in reversed(self.clients)}.values())
        weighting.run_seed = settings.seed
        if settings.key == "task":
            weighting = ByTask(weighting, {c.name: c.shared_task for c in clients})
        weighting.bind(self.names)
        self.sums = client_sums(clients, weighting, settings)
        needs = weighting.needs if self.sums is None else weighting.needs | Needs.GRADIENT
        many = settings.few_take_part(len({c.owner for c in clients})) and not self.shared_heads
        problem = self.problem(device, needs, shares=True, many=many)
        if settings.engine == "auto" and asked_for() > 1 and len(clients) > 1:
            self.engine = RankedEngine(problem, world())
        else:
            self.engine = make_engine(settings.engine, problem)
        self._head_numbers = self.shared_heads.sizes(self.heads)
        self.server = ServerState(
            FlatNetwork(self.network, device).vector,
            weighting,
            optimizers.resolve(settings.server_optimizer, settings.lr),
            aggregate=settings.aggregate,
            order=settings.order,
            rates=settings.server_rates(),
        )
        self._scalars = sum(need in weighting.needs for need in SCALARS)
        if self.shared_heads:
            self.server.afterwards = self._average_heads
        if settings.compile and device.type == "cuda":
            self.server.fuse()
        self.graphs = Graphs(self.engine, self._captured, self._changed, self._graph_why_not)

    @property
    def shared(self) -> Tensor:
        """The network that the server sends."""
        return self.server.shared

    def _graph_why_not(self) -> str | None:
        """What of the server's part is decided on the host, if anything is."""
        if self.personal is not None:
            return "personal networks are stepped from the host"
        if self.sums is not None or not self.server.weighting.capturable:
            return "the weighting decides something on the host"
        if self.server.rates:
            return "the server's learning rate follows a schedule"
        return None if self.server.optimizer.in_rows else "the optimizer steps on the host"

    def _changed(self, engine: Engine) -> list[Tensor]:
        return [*self.server.tensors(), *engine.moved_columns()]

    def _captured(self, engine: Engine, plan: Plan, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """A round that decides nothing on the host."""
        first, joint = engine.known_first(plan), engine.name == "joint"
        worked = engine.work(self.server.shared, plan, batches, first, 0, joint)
        engine.write(plan, worked)
        reports = engine.reports(plan, worked)
        return recorded(self.server, reports, server_step(self.server, reports))

    def _next_round(self, round_number: int, active: Sequence[str]) -> Outcome:
        """One round, and what became of it."""
        if not active and self.sums is None:
            return Outcome([], [], {})
        reports, weights = self.round(round_number, active)
        found = recorded(self.server, reports, weights)
        table = {key: column.tolist() for key, column in found.items()}
        due = self.settings.records_conflict(round_number)
        conflict = pairs(reports, active) if due else []
        return Outcome(list(active), list(reports.failed), table, conflict)

    def round(self, round_number: int, active: Sequence[str]) -> tuple[Reports, Tensor]:
        """One communication: clients work, the server weighs and steps."""
        shared, due = self.server.shared, self.settings.records_conflict(round_number)
        if self.personal is not None and active:
            self.personal.round(round_number, active, shared, self.settings.ditto)
        reports = self.engine.run_clients(shared, round_number, active, updates=due)
        self.server.begin_round(round_number)
        if self.sums is not None:  # also where nobody came: that nobody did is not to be told
            return reports, self.sums.server_step(self.server, reports, round_number)
        if len(reports.failed) == len(active):
            return reports, self.server.weighting.weight
        return reports, server_step(self.server, reports)

    def _average_heads(self, reports: Reports, weights: Tensor) -> None:
        """Who shares a head gets the mean."""
        rows = self.engine.head_rows
        for names, heads in self.shared_heads.averaged(
            rows, reports, weights, self.server.aggregate
        ):
            self.engine.set_head_rows(names, heads)

    def weights(self) -> list[float]:
        """Each client's weight as it is now."""
        found: list[float] = self.server.weighting.weight.tolist()
        return found

    def bytes_per_round(self, name: str) -> int:
        """What a client and the server exchange in a round: ``shared`` down, the report up.

        A head that is averaged goes both ways too. To several tasks of one client ``shared`` comes
        once: it is counted with the first of them.
        """
        shared = self.server.shared
        down = shared.numel() if name in self._receivers else 0
        numbers = shared.numel() + down + 2 * self._head_numbers.get(name, 0)
        return numbers * shared.element_size() + 8 * self._scalars

    def begin(
        self, statistics: Mapping[str, Mapping[str, Tensor]], networks: Mapping[str, Tensor]
    ) -> None:
        """Start with these own parts of clients; networks are for the personal ones."""
        super().begin(statistics, {})
        if self.personal is not None:
            self.personal.begin(statistics, networks)

    def state_dict(self, rows: bool = True) -> dict[str, Any]:
        """Server and clients, everything needed to continue.

        Without ``rows`` it lacks the client table, and has weights as tensors.
        """
        sums = {} if self.sums is None else {"sums": self.sums.state_dict()}
        server = self.server.state_dict(None if rows else packed(self.server.weighting))
        clients = {"clients": self.engine.state_dict()} if rows else {}
        personal = {} if self.personal is None else {"personal": self.personal.state_dict()}
        return {"server": server} | clients | sums | personal

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state saved by :meth:`state_dict`."""
        server = state["server"]
        weighting = unpacked(server["weighting"], self.names)
        self.server.load_state_dict({**server, "weighting": weighting})
        if "clients" in state:
            self.engine.load_state_dict(state["clients"])
        if self.sums is not None:
            self.sums.load_state_dict(state["sums"])
        if self.personal is not None:
            self.personal.load_state_dict(state["personal"])


def packed(weighting: Weighting) -> dict[str, Any] | None:
    """A weighting's state with a tensor over all clients for each kind of number.

    A table per client is slow to make and to write for many clients. None where a method keeps more
    than such rows.
    """
    if type(weighting).state_dict is not Weighting.state_dict:
        return None
    tables = {key: row.cpu().clone() for key, row in weighting.rows.items()}
    extra = copy.deepcopy(weighting.extra)
    return {"clients": dict(weighting._away), PACKED: tables, **extra}


def unpacked(state: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
    """The state of a weighting as it loads it; one that is not packed is left as it is."""
    if PACKED not in state:
        return state
    columns = {key: table.tolist() for key, table in state[PACKED].items()}
    if any(len(column) != len(names) for column in columns.values()):
        raise ValueError(f"weights of another number of clients than {len(names)}")
    rows = {n: {key: column[i] for key, column in columns.items()} for i, n in enumerate(names)}
    rest = {key: value for key, value in state.items() if key != PACKED}
    return {**rest, "clients": {**state["clients"], **rows}}
