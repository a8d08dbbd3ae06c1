"""The clients of a run around one network, or each alone: their rounds and what comes after."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._client import Client
from fedgradnorm._engines import (
    LONGEST,
    Batch,
    Engine,
    Exported,
    Graphs,
    Plan,
    Problem,
    RankedEngine,
    Tuning,
    make_engine,
)
from fedgradnorm._engines.ranks import world
from fedgradnorm._federation.checks import check_numbers, check_shared_tasks
from fedgradnorm._federation.heads import HeadsOnDemand, SharedHeads, probe_of
from fedgradnorm._launched import asked_for
from fedgradnorm._round.private.client_sums import client_sums
from fedgradnorm._round.private.private_plan import check_private, losses_sent
from fedgradnorm._round.reports import COLUMNS, Record, Reports, column_values
from fedgradnorm._round.server import ServerState, server_step
from fedgradnorm._round.settings import Settings
from fedgradnorm._state.table import NETWORK
from fedgradnorm.models._dividing import private_names
from fedgradnorm.models._flat import FlatNetwork, trainable_parameters
from fedgradnorm.models._norm_layer import find_norm_layer, parameters_of
from fedgradnorm.weighting import Equal, Needs, Weighting
from fedgradnorm.weighting._by_task import ByTask

SCALARS = (Needs.SIZE, Needs.LOSS, Needs.NORM)
"""Needs that cost the client one number in its report."""
SERVER = "server."  # moments of the server of a client alone, in its row


class Federation:
    """The clients of a run with their server, and the engine that runs them.

    With ``share="none"`` every client is a federation of one: its network and its server's moments
    are entries of its row, it weighs 1, and ``server`` only holds what all of them begin with.

    With Ditto, clients also keep a ``personal`` network v_i and a head for it:

        v_i <- optimizer step along  grad F_i(v_i) + lambda (v_i - omega),   lambda = ``ditto``

    with omega as the server sent it this round. Reports, weights and the shared network are
    untouched by the personal ones; evaluations and the trained run are personal. Personal steps
    take the server's optimizer, each client its own, and the same batches.
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
        trainable_parameters(network)
        self.network = copy.deepcopy(network)
        self.clients, self.names = list(clients), [client.name for client in clients]
        self.settings, self.shares = settings, settings.share == "all"
        tuning(self.network, settings)  # names layers that it has not
        tasks = {client.name: client.shared_task for client in clients} if self.shares else {}
        self.shared_heads = SharedHeads(tasks, settings.heads, device, settings.head_own)
        self.heads = HeadsOnDemand(self.network, clients, settings, self.shared_heads.names)
        self.personal: Federation | None = None
        if settings.ditto:
            self.personal = Federation(network, clients, Equal(), settings.alone(), device)
        if not self.shares:
            weighting = Equal()
        weighting.run_seed = settings.seed
        if self.shares and settings.weight_per == "task":
            weighting = ByTask(weighting, tasks)
        weighting.bind(self.names)
        self.sums = client_sums(clients, weighting, settings) if self.shares else None
        raw = self.sums is not None or not self.shares
        needs = weighting.needs | Needs.GRADIENT if raw else weighting.needs
        few = settings.few_take_part(len({client.owner for client in clients}))
        many = self.shares and few and not self.shared_heads.groups
        if many:
            assert self.heads[self.names[0]]
        else:  # made before the layer is looked for: clients that do not fit are named
            self.heads.make_all(self.shared_heads)
        self.norm_layer = find_norm_layer(
            self.network, probe_of(self.network, clients[0]), settings.norm_layer
        )
        problem = Problem(
            self.network, self.clients, self.heads, self.norm_layer, settings.local(), device,
            settings.batch_size, settings.seed, needs, settings.precision == "bf16", self.shares,
            many,
        )  # fmt: skip
        self.engine: Engine | RankedEngine
        self._alone: Engine  # of clients alone, which no rank shares out
        if self.shares and settings.executor == "auto" and asked_for() > 1 and len(clients) > 1:
            self.engine = RankedEngine(problem, world())
        else:
            self.engine = self._alone = make_engine(settings.executor, problem)
        self.server = ServerState(
            FlatNetwork(self.network, device).vector,
            weighting,
            **settings.server(),
        )
        if not self.shares:
            own = {f"{SERVER}{key}": value[0] for key, value in self.server.moments.items()}
            for group in self._alone.table.group(self.names):
                for key, value in {NETWORK: self.server.shared, **own}.items():
                    group.part.add_column(key, value)
        if self.shared_heads.groups and not settings.fixes_heads:
            self.server.afterwards = self._average_heads
        if self.shares and settings.compile and device.type == "cuda":
            self.server.fuse()
        self.graphs = Graphs(self.engine, self._captured, self._changed, self._graph_why_not)
        self._columns = {name: one.read for name, one in COLUMNS.items() if one.read}
        self._scalars = sum(need in weighting.needs for need in SCALARS)
        self._receivers = frozenset({c.owner: c.name for c in reversed(self.clients)}.values())

    @property
    def ends(self) -> Federation:
        """Whose rows clients evaluate and end with: these, or with Ditto the personal ones."""
        return self.personal or self

    @property
    def rounds_per_call(self) -> int:
        return LONGEST if self.graphs.why_not() is None else 1

    def rounds(self, first: int, actives: Sequence[Sequence[str]]) -> list[Record]:
        """Some rounds in a row, of which a graph may run several without coming back.

        A round in which everybody failed is the last one returned.
        """
        found = list[Record]()
        while (k := len(found)) < len(actives):
            active = list(actives[k])
            if len(actives) - k > 1:
                tables = self.graphs.run(first + k, actives[k:])
                some = zip(actives[k:], tables, strict=False)
                found += [Record(list(names), [], table) for names, table in some]
                if tables:
                    continue
            if not active and self.sums is None:
                found.append(Record([], [], {}))
                self.graphs.warm += 1
                continue
            reports, weights = self.round(first + k, active)
            frozen = self.server.weighting.frozen
            columns = column_values(self._columns, reports, weights, frozen)
            numbers = {key: column.tolist() for key, column in columns.items()}
            found.append(Record(active, list(reports.failed), numbers))
            if not reports.failed:
                self.graphs.warm += 1
            elif len(reports.failed) == len(active) and self.sums is None:
                break  # the run may end here
        return found

    def round(self, round_number: int, active: Sequence[str]) -> tuple[Reports, Tensor]:
        """One communication: clients work, the server weighs and steps; all weights after it."""
        server, settings = self.server, self.settings
        if not self.shares:
            return self._round_alone(round_number, active), self._ones()
        if self.personal is not None and active:
            self.personal._round_alone(round_number, active, server.shared, settings.ditto)
        reports = self.engine.run_clients(server.shared, round_number, active)
        server.begin_round(round_number)
        if self.sums is not None:  # also where nobody came: that nobody did is not to be told
            return reports, self.sums.server_step(server, reports, round_number)
        if len(reports.failed) == len(active):
            return reports, server.weighting.weight
        return reports, server_step(server, reports)

    def _average_heads(self, reports: Reports, weights: Tensor) -> None:
        given = self.engine.head_rows, reports, weights, self.server.aggregate
        for names, heads in self.shared_heads.averaged(*given):
            self.engine.set_head_rows(names, heads)

    def _round_alone(
        self, round_number: int, active: Sequence[str], to: Tensor | None = None, by: float = 0.0
    ) -> Reports:
        """One round of clients alone; their networks v may be pulled: grad F(v) + by (v - to)."""
        plan = self._alone.plan(active)
        networks = self._networks(plan)
        reports = self._alone.run_clients(networks, round_number, active)
        along = reports.gradients()
        along = along if to is None else along + by * (networks - to)
        self.server.begin_round(round_number)
        self._descend(plan, along, reports.active if reports.failed else None)
        return reports

    def _networks(self, plan: Plan) -> Tensor:
        """The networks of a plan's clients, as rows in the order of the active."""
        rows = [g.part.rows[NETWORK].index_select(0, g.index) for g in plan.groups]
        if len(rows) == 1:
            return rows[0]
        return torch.empty_like(found := torch.cat(rows)).index_copy_(0, plan.order, found)

    def _descend(self, plan: Plan, along: Tensor, fine: Tensor | None) -> None:
        """A server step of every client that did well; None: of all."""
        server = self.server
        for group, turns in zip(plan.groups, plan.turns, strict=True):
            part, here, some = group.part, turns, group
            if fine is not None:
                here = turns[fine[turns]]
                some = group.only(fine[turns].nonzero()[:, 0].cpu().numpy())
            rows = {k: part.rows[k] for k in (NETWORK, *map(SERVER.__add__, server.moments))}
            if not (whole := some.whole):  # else they are moved where they are
                rows = {key: value.index_select(0, some.index) for key, value in rows.items()}
            state = {k.removeprefix(SERVER): value for k, value in rows.items()}
            server.optimizer.step(state.pop(NETWORK), along[here], state, server.options)
            noted = () if self._alone.capturing else some.rows.tolist()
            part.put(some.index, {} if whole else rows, noted)

    def _ones(self) -> Tensor:
        return torch.ones(len(self.names), dtype=torch.float64, device=self.engine.device)

    def _graph_why_not(self) -> str | None:
        """What of the server's part is decided on the host, if anything is."""
        if self.personal is not None:
            return "personal networks are stepped from the host"
        if self.sums is not None or not self.server.weighting.capturable:
            return "the weighting decides something on the host"
        if self.server.rates is not None:
            return "the server's learning rate follows a schedule"
        return None if self.server.optimizer.in_rows else "the optimizer steps on the host"

    def _changed(self, engine: Engine) -> list[Tensor]:
        """Every tensor that a captured round changes."""
        if self.shares:
            return [*self.server.tensors(), *engine.moved_columns()]
        keys = [NETWORK, *(f"{SERVER}{key}" for key in self.server.moments)]
        return [*engine.moved_columns(), *(p.rows[key] for p in engine.table.parts for key in keys)]

    def _captured(self, engine: Engine, plan: Plan, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """A round that decides nothing on the host."""
        networks = self.server.shared if self.shares else self._networks(plan)
        worked = engine.work(networks, plan, batches, 0, engine.name == "joint")
        engine.write(plan, worked)
        reports = engine.reports(plan, worked)
        if self.shares:
            weights = server_step(self.server, reports)
        else:
            self._descend(plan, reports.gradients(), None)
            weights = self._ones()
        return column_values(self._columns, reports, weights, self.server.weighting.frozen)

    def finish(self, round_number: int) -> None:
        """What comes after the last round: heads tuned on the finished network."""
        if steps := self.settings.final_head_steps:
            self.ends.engine.tune_heads(self.ends.server.shared, steps, round_number)

    def personalize(self, round_number: int) -> dict[str, dict[str, Any]]:
        """What comes after that: each client tunes a copy of its own; what each kept, by name."""
        how, ends = tuning(self.network, self.settings, round_number), self.ends
        return {} if how is None else ends.engine.personalize(ends.server.shared, how)

    def evaluate(
        self, split: str, names: Collection[str] | None = None
    ) -> dict[str, dict[str, float]]:
        """Loss and metrics of the clients in ``names`` that have this split; None: of all."""
        return self.ends.engine.evaluate(self.ends.server.shared, split, names)

    def shared_network(self, vector: Tensor) -> nn.Module:
        """A network with these numbers, as a module of its own, on the CPU."""
        flat = FlatNetwork(self.network)
        flat.vector.copy_(vector)
        return flat.module

    def all_trained(self) -> dict[str, Exported]:
        """What every client has learned; under torchrun all ranks must call this."""
        return self.ends.engine.exported_all()

    def head_tables(self) -> list[tuple[list[str], Tensor, Tensor]] | None:
        """Everybody's linear head in stacked rows: names, weights, biases, for each shape.

        None where few clients are registered, or have more than a linear head.
        """
        engine = self.ends.engine
        if engine.journal is None or not engine.only_linear_heads():
            return None
        by_shape: dict[tuple[int, int], list[str]] = {}
        for client in self.clients:
            if (shape := self.heads.shape(client)) is None:
                return None
            by_shape.setdefault(shape, []).append(client.name)
        found = []
        for (outputs, features), names in by_shape.items():
            rows = engine.head_rows(names).cpu()
            weight, bias = rows.split([outputs * features, outputs], dim=1)
            found.append((names, weight.reshape(-1, outputs, features), bias.contiguous()))
        return found

    def part(self, name: str) -> dict[str, Tensor]:
        """A client's row with the network that it works with as its own, as copies."""
        return {NETWORK: self.ends.server.shared.clone()} | self.ends.engine.client_state(name)

    def give(self, name: str, part: Mapping[str, Any]) -> None:
        """Let a client have what ``part`` returned; the shared network stays as it is."""
        self.ends.engine.load_client(name, part)

    def begin(
        self, statistics: Mapping[str, Mapping[str, Tensor]], networks: Mapping[str, Tensor]
    ) -> None:
        """Start with these own parts of clients, and with networks of those that train their own.

        ``statistics`` are running statistics and private layers of the network.
        """
        if self.personal is not None:
            self.personal.begin(statistics, networks)
        networks = {} if self.shares else networks
        self.engine.mark(list(statistics))  # a resumed run does not know the other run
        for name in self.names:
            if (parts := statistics.get(name)) or name in networks:
                self.engine.begin(name, parts or {}, networks.get(name))

    def bytes_per_round(self, name: str) -> int:
        """What a client and the server exchange in a round: ``shared`` down, the report up.

        A head that is averaged goes both ways too. To several tasks of one client ``shared`` comes
        once: it is counted with the first of them. A client alone exchanges nothing.
        """
        if not self.shares:
            return 0
        shared = self.server.shared
        down = shared.numel() if name in self._receivers else 0
        head = 0 if self.settings.fixes_heads else self.shared_heads.sizes.get(name, 0)
        numbers = shared.numel() + down + 2 * head
        return numbers * shared.element_size() + 8 * self._scalars

    def state_dict(self, rows: bool = True) -> dict[str, Any]:
        """Server and clients, everything needed to continue; the client table only with ``rows``.

        All that clients alone have is in that table.
        """
        found = {"clients": self.engine.state_dict()} if rows else {}
        if self.shares:
            found["server"] = self.server.state_dict()
        if self.sums is not None:
            found["sums"] = self.sums.state_dict()
        if self.personal is not None:
            found["personal"] = self.personal.state_dict()
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state saved by :meth:`state_dict`.

        Without the client table all clients are as they began, until their rows are read.
        """
        if self.shares:
            self.server.load_state_dict(state["server"])
        self.engine.load_state_dict(state.get("clients", {"parts": []}))
        if self.sums is not None:
            self.sums.load_state_dict(state["sums"])
        if self.personal is not None:
            self.personal.load_state_dict(state["personal"])


def make_federation(
    network: nn.Module,
    clients: Sequence[Client],
    weighting: Weighting,
    settings: Settings,
    device: torch.device,
) -> Federation:
    """A federation with a weighting of its own, of clients that are first checked together."""
    check_private(clients, settings, losses_sent(weighting))
    check_numbers(clients, network)
    if settings.share == "none":
        client_sums(clients, weighting, settings)  # refused: there is no sum to hide a client in
    else:
        check_shared_tasks(clients, settings, weighting)
    return Federation(network, clients, copy.deepcopy(weighting), settings, device)


def tuning(network: nn.Module, settings: Settings, round_number: int = 0) -> Tuning | None:
    """How clients tune after so many rounds; None: not. A ConfigError names unknown layers."""
    if (table := settings.personalize) is None:
        return None
    what, names = table["what"], tuple[str, ...]()
    if isinstance(what, list):
        private = private_names(network)  # these move with the head
        named = parameters_of(network, what, "personalize.what")
        names = tuple(name for name in named if name not in private)
    elif what == "network":
        names = tuple(trainable_parameters(network))
    head = optimizers.resolve(settings.head_optimizer, settings.lr)
    first = round_number * settings.local().steps + settings.final_head_steps
    return Tuning(table["steps"], {**head, "lr": table["lr"]}, names, first)
