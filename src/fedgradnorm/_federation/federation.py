"""Clients that share one network, their server, and the engine that runs them."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._client import Client
from fedgradnorm._engines import Engine, make_engine
from fedgradnorm._federation.conflict import Pair, pairs
from fedgradnorm._federation.head_averaging import SharedHeads
from fedgradnorm._federation.making_heads import HeadsOnDemand, probe_of
from fedgradnorm._federation.packed_rows import packed_rows, unpacked_rows
from fedgradnorm._launched import asked_for
from fedgradnorm._round.client_state import as_state
from fedgradnorm._round.private.client_sums import client_sums
from fedgradnorm._round.reports import Reports
from fedgradnorm._round.server import ServerState, columns, server_round
from fedgradnorm._round.settings import Settings
from fedgradnorm._round.tuning import Tuning
from fedgradnorm.models._dividing import private_names
from fedgradnorm.models._flat import FlatNetwork, trainable_parameters
from fedgradnorm.models._gauge import find_gauge, parameters_of
from fedgradnorm.models._streamed.rows import Streamed
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


@dataclass(frozen=True)
class Basis:
    """What a federation works with: a copy of the network, never changed; its flat vector; the
    parameters that gradients are measured on; who runs the clients.
    """

    network: nn.Module
    vector: Tensor
    gauge: tuple[str, ...]
    engine: Engine


class Federation:
    """One shared network and the clients that train it.

    It is given its ``basis`` where others have the same network; else it makes one.
    """

    def __init__(
        self,
        network: nn.Module,
        clients: Sequence[Client],
        weighting: Weighting,
        settings: Settings,
        device: torch.device,
        basis: Basis | None = None,
    ) -> None:
        trainable_parameters(network)
        self.clients, self.names = list(clients), [client.name for client in clients]
        self._receivers = frozenset({c.owner: c.name for c in reversed(self.clients)}.values())
        self.settings = settings
        weighting.run_seed = settings.seed
        if settings.key == "task":
            weighting = ByTask(weighting, {c.name: c.task_name for c in clients})
        weighting.bind(self.names)
        self.sums = client_sums(clients, weighting, settings)
        self.shared_heads = SharedHeads(clients, settings.heads, device)
        if basis is None:
            basis = self._make_basis(network, weighting, device)
        self.network, self.gauge, self.engine = basis.network, basis.gauge, basis.engine
        shared = self.shared_heads.names
        heads = self.engine.heads() if shared else {}
        self._head_numbers = {n: sum(p.numel() for p in heads[n].parameters()) for n in shared}
        self.tuned = tuned_parameters(self.network, settings)
        self.server = ServerState(
            basis.vector,
            weighting,
            optimizers.resolve(settings.server_optimizer, settings.lr),
            aggregate=settings.aggregate,
            order=settings.order,
            rates=settings.server_rates(),
        )
        self._scalars = sum(need in weighting.needs for need in SCALARS)
        if self.shared_heads:
            self.server.afterwards = self._average_heads
        if settings.compile and self.burst > 1:
            self.server.fuse()
            self.engine.fuse()

    def _make_basis(self, network: nn.Module, weighting: Weighting, device: torch.device) -> Basis:
        """A copy, a gauge and an engine of its own."""
        settings, network = self.settings, copy.deepcopy(network)
        few = settings.few_take_part(len({client.owner for client in self.clients}))
        streamed = any(isinstance(client.train[0], Streamed) for client in self.clients)
        if settings.record_conflict:  # which needs every client's gradient
            few = streamed = False
        made = HeadsOnDemand(network, self.clients, settings, self.shared_heads.names)
        heads: Mapping[str, nn.Module] = made
        if few or settings.engine == "roster":
            assert made[self.names[0]]
        elif streamed or asked_for() > 1:
            assert all(made.values())  # each rank keeps those of its own clients, an engine rows
        else:
            heads = dict(made)
        # Made before the gauge is looked for: who does not fit is named.
        if self.shared_heads:
            heads = self.shared_heads.begin(dict(heads))
        gauge = gauge_of(network, self.clients, settings)
        engine = make_engine(
            settings.engine,
            network,
            self.clients,
            gauge,
            settings.local(),
            weighting.needs if self.sums is None else weighting.needs | Needs.GRADIENT,
            device,
            heads=heads,
            few=few,
            streamed=streamed,
            unlike_roster=_roster_obstacle(settings, bool(self.shared_heads)),
            batch_size=settings.batch_size,
            seed=settings.seed,
            bf16=settings.precision == "bf16",
        )
        return Basis(network, FlatNetwork(network, device).vector, gauge, engine)

    @property
    def burst(self) -> int:
        """How many rounds may be asked for at once."""
        return self.engine.burst(self.server)

    def rounds(self, first: int, actives: Sequence[Sequence[str]]) -> list[Outcome]:
        """Some rounds in a row, of which the engine may run several without coming back.

        Only the first of these rounds may be one whose conflict is recorded.
        """
        conflict, outcomes = self._conflict_by_trial(first, actives[0]), list[Outcome]()
        while len(outcomes) < len(actives):
            outcomes += self._next_rounds(first + len(outcomes), actives[len(outcomes) :])
        return [replace(outcomes[0], conflict=conflict), *outcomes[1:]] if conflict else outcomes

    def _next_rounds(self, first: int, actives: Sequence[Sequence[str]]) -> list[Outcome]:
        """All of these rounds where the engine runs them at once, or else the first of them."""
        if len(actives) > 1 and self.burst > 1:
            at_once = self.engine.rounds(self.server, first, actives)
            if at_once:
                return [Outcome(self.names, [], table) for table in at_once]
        return [self._next_round(first, actives[0])]

    def _next_round(self, round_number: int, active: Sequence[str]) -> Outcome:
        """One round, and what became of it."""
        if not active and self.sums is None:
            return Outcome([], [], {})
        reports, weights = self.round(round_number, active)
        found = columns(self.server, reports, weights)
        if reports.rows is None:
            here = torch.tensor([self._place[name] for name in active], device=weights.device)
            found = {key: column.to(here.device)[here] for key, column in found.items()}
        table = {key: column.tolist() for key, column in found.items()}
        due = self.settings.records_conflict(round_number) and not self.engine.conflict_obstacle
        conflict = pairs(reports, self.names) if due else []
        return Outcome(list(active), list(reports.failed), table, conflict)

    @cached_property
    def _place(self) -> dict[str, int]:
        """Where each client is among all, for reports of all."""
        return {name: i for i, name in enumerate(self.names)}

    def _conflict_by_trial(self, round_number: int, active: Sequence[str]) -> list[Pair]:
        """The conflict of a round to come, where its own reports will not tell."""
        due = self.settings.records_conflict(round_number) and self.engine.conflict_obstacle
        if not due or not active or len(self.names) < 2:
            return []
        shared = self.server.shared.data
        return pairs(self.engine.trial().run_clients(shared, round_number, active), self.names)

    def round(self, round_number: int, active: Sequence[str]) -> tuple[Reports, Tensor]:
        """One communication: clients work, the server weighs and steps."""
        shared = self.server.shared.data
        reports = self.engine.run_clients(shared, round_number, active)
        if self.sums is not None:  # also where nobody came: that nobody did is not to be told
            return reports, self.sums.server_round(self.server, reports, round_number)
        if len(reports.failed) == len(active):
            return reports, self.server.weighting.weight
        self.server.begin_round(round_number)
        return reports, server_round(self.server, reports)

    def _average_heads(self, reports: Reports, weights: Tensor) -> None:
        """Who shares a head gets the mean."""
        heads, aggregate = self.engine.heads(), self.server.aggregate
        self.shared_heads.average_round(heads, reports, weights, aggregate)

    def finish(self, round_number: int) -> None:
        """What comes after the last round: heads tuned on the finished network."""
        if steps := self.settings.final_head_steps:
            self.engine.tune_heads(self.server.shared.data, steps, round_number)

    def personalize(self, round_number: int) -> dict[str, dict[str, Any]]:
        """What comes after that: each client tunes a copy of its own; what each kept, by name."""
        how = tuning(self.settings, self.tuned, round_number)
        return {} if how is None else self.engine.personalize(self.server.shared.data, how)

    def evaluate(
        self, split: str, names: Collection[str] | None = None
    ) -> dict[str, dict[str, float]]:
        """Loss and metrics of the clients in ``names`` that have this split; None: of all."""
        return self.engine.evaluate(self.server.shared.data, split, names)

    def owners(self) -> list[Federation]:
        """Who holds the networks and heads that the clients end up with."""
        return [self]

    def bytes_per_round(self, name: str) -> int:
        """What a client and the server exchange in a round: ``shared`` down, the report up.

        A head that is averaged goes both ways too. To several tasks of one client ``shared`` comes
        once: it is counted with the first of them.
        """
        shared = self.server.shared
        scalars = self._scalars
        down = shared.numel() if name in self._receivers else 0
        numbers = shared.numel() + down + 2 * self._head_numbers.get(name, 0)
        return numbers * shared.element_size() + 8 * scalars

    def shared_network(self, own: Tensor | None = None) -> nn.Module:
        """The shared network, or a client's ``own``, as a module of its own, on the CPU."""
        flat = FlatNetwork(self.network)
        flat.vector.copy_(self.server.shared.data if own is None else own)
        return flat.module

    def part(self, state: Mapping[str, Any], name: str) -> dict[str, Any]:
        """A client's part of a whole state: its private one, with the network as its own."""
        return {**state["clients"][name], "own": state["server"]["shared"]}

    def give(self, name: str, part: Mapping[str, Any]) -> None:
        """Let a client have what ``part`` returned; the shared network stays as it is."""
        self.engine.load_state_dict({name: part})

    def begin(
        self, statistics: Mapping[str, Mapping[str, Tensor]], networks: Mapping[str, Tensor]
    ) -> None:
        """Start with these own parts of clients, and these networks of clients alone."""
        states = self.engine.state_dict()  # all ranks take part in this
        mine = [name for name in self.names if name in statistics]
        network = self.network
        self.engine.load_state_dict(
            {n: {**states[n], **as_state(network, statistics[n])} for n in mine}
        )
        for name in self.names:
            if name in networks:
                self.server.shared.data.copy_(networks[name])

    def state_dict(self, rows: bool = True) -> dict[str, Any]:
        """Server and clients, everything needed to go on.

        Without ``rows`` it lacks what the engine's journal holds, and has weights as tensors.
        """
        sums = {} if self.sums is None else {"sums": self.sums.state_dict()}
        server = self.server.state_dict(None if rows else packed_rows(self.server.weighting))
        return {"server": server, "clients": self.engine.state_dict() if rows else {}} | sums

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""
        server = state["server"]
        weighting = unpacked_rows(server["weighting"], self.names)
        self.server.load_state_dict({**server, "weighting": weighting})
        self.engine.load_state_dict(state["clients"])
        if self.sums is not None:
            self.sums.load_state_dict(state["sums"])


def _roster_obstacle(settings: Settings, shared_heads: bool) -> str | None:
    """What of the settings needs more of a client than its row in the roster, if anything does."""
    wanted = {
        "heads are shared": shared_heads,
        "ditto gives every client a network": bool(settings.ditto),
        "personalize gives every client a network": settings.personalize is not None,
        f"keep = {settings.keep!r} keeps a second state": settings.keeps_best,
    }
    return next((reason for reason, given in wanted.items() if given), None)


def gauge_of(network: nn.Module, clients: Sequence[Client], settings: Settings) -> tuple[str, ...]:
    """The parameters that gradients are measured on, tried on rows of the first client."""
    return find_gauge(network, probe_of(network, clients[0]), settings.gauge)


def tuning(settings: Settings, tuned: tuple[str, ...], round_number: int) -> Tuning | None:
    """How clients tune after so many rounds, ``tuned`` of the network's parameters; None: not."""
    if (table := settings.personalize) is None:
        return None
    head = optimizers.resolve(settings.head_optimizer, settings.lr)
    first = round_number * settings.local().steps + settings.final_head_steps
    return Tuning(table["steps"], {**head, "lr": table["lr"]}, tuned, first)


def tuned_parameters(network: nn.Module, settings: Settings) -> tuple[str, ...]:
    """The parameters of the network that clients tune at the end, beside their heads."""
    what = "head" if settings.personalize is None else settings.personalize["what"]
    if isinstance(what, list):
        named, private = parameters_of(network, what, "personalize.what"), private_names(network)
        return tuple(name for name in named if name not in private)  # these move with the head
    return tuple(trainable_parameters(network)) if what == "network" else ()


SCALARS = (Needs.SIZE, Needs.LOSS, Needs.NORM)
"""Needs that cost the client one number in its report."""
