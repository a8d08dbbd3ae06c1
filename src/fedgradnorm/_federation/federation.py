"""Clients that share one network, their server, and the engine that runs them."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
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
    make_engine,
    ranked_engine,
)
from fedgradnorm._federation.conflict import Pair, pairs
from fedgradnorm._federation.head_averaging import SharedHeads
from fedgradnorm._federation.making_heads import HeadsOnDemand, probe_of
from fedgradnorm._federation.packed_rows import packed_rows, unpacked_rows
from fedgradnorm._launched import asked_for
from fedgradnorm._round.private.client_sums import client_sums
from fedgradnorm._round.reports import Reports
from fedgradnorm._round.server import ServerState, columns, server_round
from fedgradnorm._round.settings import Settings
from fedgradnorm._round.tuning import Tuning
from fedgradnorm._state.table import HAS_NETWORK, NETWORK
from fedgradnorm.models._dividing import private_names
from fedgradnorm.models._flat import FlatNetwork, trainable_parameters
from fedgradnorm.models._gauge import find_gauge, parameters_of
from fedgradnorm.weighting import ByTask, Needs, Weighting


@dataclass(frozen=True)
class Outcome:
    """One round, on the host: who took part, who failed, and a column per quantity.

    A column has a number for each client in ``active``, in that order.
    """

    active: Sequence[str]
    failed: Sequence[str]
    columns: dict[str, list[float]]
    conflict: Sequence[Pair] = ()


class Clients:
    """The clients of a run with their engine: what a shared network and none have in common."""

    engine: Engine | RankedEngine
    shared_heads: SharedHeads

    def __init__(self, network: nn.Module, clients: Sequence[Client], settings: Settings) -> None:
        trainable_parameters(network)
        self.network = copy.deepcopy(network)
        self.clients, self.names = list(clients), [client.name for client in clients]
        self.settings = settings

    def problem(
        self, device: torch.device, needs: Needs, *, shares: bool, many: bool = False
    ) -> tuple[Problem, HeadsOnDemand]:
        """What an engine is asked to run: first heads, and the layer whose gradient is measured."""
        settings = self.settings
        heads = HeadsOnDemand(self.network, self.clients, settings, self.shared_heads.names)
        if many:
            assert heads[self.names[0]]
        else:  # made before the layer is looked for: clients that do not fit are named
            heads.make_all(self.shared_heads.begin)
        self.gauge = gauge_of(self.network, self.clients, settings)
        return Problem(
            self.network, self.clients, self.gauge, settings.local(), needs, device,
            settings.batch_size, shares=shares, many=many,
        ), heads  # fmt: skip

    def local_engine(self, problem: Problem, heads: HeadsOnDemand) -> Engine:
        """An engine that runs all clients in this process."""
        seed, bf16 = self.settings.seed, self.settings.precision == "bf16"
        return make_engine(self.settings.engine, problem, heads, seed=seed, bf16=bf16)

    graphs: Graphs

    @property
    def burst(self) -> int:
        """How many rounds may be asked for at once."""
        return LONGEST if self.graphs.why_not() is None else 1

    def rounds(self, first: int, actives: Sequence[Sequence[str]]) -> list[Outcome]:
        """Some rounds in a row, of which a graph may run several without coming back.

        Only the first of these rounds may be one whose conflict is recorded.
        """
        found = list[Outcome]()
        while len(found) < len(actives):
            k = len(found)
            tables = [] if len(actives) - k < 2 else self._at_once(first + k, actives[k:])
            for table in tables:
                found.append(Outcome(list(actives[len(found)]), [], table))
            if not tables:
                found.append(self._next_round(first + k, actives[k]))
                if not found[-1].failed:
                    self.graphs.went_well()
        return found

    def _at_once(
        self, first: int, actives: Sequence[Sequence[str]]
    ) -> list[dict[str, list[float]]]:
        """Rounds from a graph, where that is possible."""
        if self.settings.records_conflict(first):
            return []
        return self.graphs.run(first, actives)

    def _next_round(self, round_number: int, active: Sequence[str]) -> Outcome:
        raise NotImplementedError

    def shared_network(self, vector: Tensor) -> nn.Module:
        """A network with these numbers, as a module of its own, on the CPU."""
        flat = FlatNetwork(self.network)
        flat.vector.copy_(vector)
        return flat.module

    def trained(self, name: str) -> Exported:
        """What a client has learned."""
        return self.engine.exported(name)

    def all_trained(self) -> dict[str, Exported]:
        """What every client has learned; under torchrun all ranks take part in this."""
        return self.engine.exported_all()

    def head_tables(self) -> list[tuple[list[str], Tensor, Tensor]] | None:
        """Everybody's linear head in stacked rows, where many clients are registered; else None."""
        return None if self.engine.journal is None else self.engine.head_tables()

    def install(self, name: str, client: Exported) -> None:
        """Let a client end with something else."""
        self.engine.install(name, client)


class Federation(Clients):
    """One shared network and the clients that train it."""

    def __init__(
        self,
        network: nn.Module,
        clients: Sequence[Client],
        weighting: Weighting,
        settings: Settings,
        device: torch.device,
    ) -> None:
        super().__init__(network, clients, settings)
        self._receivers = frozenset({c.owner: c.name for c in reversed(self.clients)}.values())
        weighting.run_seed = settings.seed
        if settings.key == "task":
            weighting = ByTask(weighting, {c.name: c.shared_task for c in clients})
        weighting.bind(self.names)
        self.sums = client_sums(clients, weighting, settings)
        self.shared_heads = SharedHeads(clients, settings.heads, device)
        needs = weighting.needs if self.sums is None else weighting.needs | Needs.GRADIENT
        many = settings.few_take_part(len({c.owner for c in clients})) and not self.shared_heads
        problem, heads = self.problem(device, needs, shares=True, many=many)
        if settings.engine == "auto" and asked_for() > 1 and len(clients) > 1:
            bf16 = settings.precision == "bf16"
            self.engine = ranked_engine(problem, heads, seed=settings.seed, bf16=bf16)
        else:
            self.engine = self.local_engine(problem, heads)
        shared = self.shared_heads.names
        self._head_numbers = {
            n: self.engine.head_rows([n]).shape[1] for n in self.names if n in shared
        }
        self.tuned = tuned_parameters(self.network, settings)
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

    def _graph_why_not(self) -> str | None:
        """What of the server's part is decided on the host, if anything is."""
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
        return columns(self.server, reports, server_round(self.server, reports))

    def _next_round(self, round_number: int, active: Sequence[str]) -> Outcome:
        """One round, and what became of it."""
        if not active and self.sums is None:
            return Outcome([], [], {})
        conflict = self._conflict_by_trial(round_number, active)
        reports, weights = self.round(round_number, active)
        found = columns(self.server, reports, weights)
        table = {key: column.tolist() for key, column in found.items()}
        if self.settings.records_conflict(round_number) and not self.engine.conflict_obstacle:
            conflict = pairs(reports, active)
        return Outcome(list(active), list(reports.failed), table, conflict)

    def _conflict_by_trial(self, round_number: int, active: Sequence[str]) -> list[Pair]:
        """The conflict of a round to come, where its own reports will not tell."""
        due = self.settings.records_conflict(round_number) and self.engine.conflict_obstacle
        if not due or not active or len(self.names) < 2:
            return []
        tried = self.engine.run_clients(self.server.shared, round_number, active, keep=False)
        return pairs(tried, active)

    def round(self, round_number: int, active: Sequence[str]) -> tuple[Reports, Tensor]:
        """One communication: clients work, the server weighs and steps."""
        reports = self.engine.run_clients(self.server.shared, round_number, active)
        if self.sums is not None:  # also where nobody came: that nobody did is not to be told
            return reports, self.sums.server_round(self.server, reports, round_number)
        if len(reports.failed) == len(active):
            return reports, self.server.weighting.weight
        self.server.begin_round(round_number)
        return reports, server_round(self.server, reports)

    def _average_heads(self, reports: Reports, weights: Tensor) -> None:
        """Who shares a head gets the mean."""
        rows = self.engine.head_rows
        for names, heads in self.shared_heads.averaged(
            rows, reports, weights, self.server.aggregate
        ):
            self.engine.set_head_rows(names, heads)

    def finish(self, round_number: int) -> None:
        """What comes after the last round: heads tuned on the finished network."""
        if steps := self.settings.final_head_steps:
            self.engine.tune_heads(self.server.shared, steps, round_number)

    def personalize(self, round_number: int) -> dict[str, dict[str, Any]]:
        """What comes after that: each client tunes a copy of its own; what each kept, by name."""
        how = tuning(self.settings, self.tuned, round_number)
        return {} if how is None else self.engine.personalize(self.server.shared, how)

    def evaluate(
        self, split: str, names: Collection[str] | None = None
    ) -> dict[str, dict[str, float]]:
        """Loss and metrics of the clients in ``names`` that have this split; None: of all."""
        return self.engine.evaluate(self.server.shared, split, names)

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

    def part(self, name: str) -> dict[str, Tensor]:
        """A client's row with the network that it works with as its own, as copies."""
        own = {NETWORK: self.server.shared.clone(), HAS_NETWORK: torch.tensor(True)}
        return own | self.engine.client_state(name)

    def give(self, name: str, part: Mapping[str, Any]) -> None:
        """Let a client have what ``part`` returned; the shared network stays as it is."""
        self.engine.load_client(name, part)

    def begin(
        self,
        statistics: Mapping[str, Mapping[str, Tensor]],
        networks: Mapping[str, Tensor],  # noqa: ARG002
    ) -> None:
        """Start with these own parts of clients; networks are for clients alone."""
        for name in self.names:
            if name in statistics:
                self.engine.begin(name, statistics[name])

    def state_dict(self, rows: bool = True) -> dict[str, Any]:
        """Server and clients, everything needed to continue.

        Without ``rows`` it lacks the client table, and has weights as tensors.
        """
        sums = {} if self.sums is None else {"sums": self.sums.state_dict()}
        server = self.server.state_dict(None if rows else packed_rows(self.server.weighting))
        clients = {"clients": self.engine.state_dict()} if rows else {}
        return {"server": server} | clients | sums

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state saved by :meth:`state_dict`."""
        server = state["server"]
        weighting = unpacked_rows(server["weighting"], self.names)
        self.server.load_state_dict({**server, "weighting": weighting})
        if "clients" in state:
            self.engine.load_state_dict(state["clients"])
        if self.sums is not None:
            self.sums.load_state_dict(state["sums"])


def gauge_of(network: nn.Module, clients: Sequence[Client], settings: Settings) -> tuple[str, ...]:
    """The parameters that gradients are measured on, tried on examples of the first client."""
    return find_gauge(network, probe_of(network, clients[0]), settings.gauge)


def tuning(settings: Settings, tuned: tuple[str, ...], round_number: int) -> Tuning | None:
    """How clients tune after so many rounds, ``tuned`` of the network's parameters; None: not."""
    if (table := settings.personalize) is None:
        return None
    head = optimizers.resolve(settings.head_optimizer, settings.lr)
    first = round_number * settings.local().steps + settings.final_head_steps
    return Tuning(table["steps"], {**head, "lr": table["lr"]}, tuned, first)


def tuned_parameters(network: nn.Module, settings: Settings) -> tuple[str, ...]:
    """The parameters of the network that clients tune at the end, besides their heads."""
    what = "head" if settings.personalize is None else settings.personalize["what"]
    if isinstance(what, list):
        named, private = parameters_of(network, what, "personalize.what"), private_names(network)
        return tuple(name for name in named if name not in private)  # these move with the head
    return tuple(trainable_parameters(network)) if what == "network" else ()


SCALARS = (Needs.SIZE, Needs.LOSS, Needs.NORM)
"""Needs that cost the client one number in its report."""
