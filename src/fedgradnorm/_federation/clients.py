"""Clients with their engine: rounds, evaluations, and what comes after the last round."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._client import Client
from fedgradnorm._engines import LONGEST, Engine, Exported, Graphs, Problem, RankedEngine
from fedgradnorm._federation.conflict import Pair
from fedgradnorm._federation.head_averaging import SharedHeads
from fedgradnorm._federation.making_heads import HeadsOnDemand, probe_of
from fedgradnorm._round.settings import Settings
from fedgradnorm._round.tuning import Tuning
from fedgradnorm._state.table import NETWORK
from fedgradnorm.models._dividing import private_names
from fedgradnorm.models._flat import FlatNetwork, trainable_parameters
from fedgradnorm.models._gauge import find_gauge, parameters_of
from fedgradnorm.weighting import Needs


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
    graphs: Graphs
    personal: Clients | None = None  # with Ditto, what clients evaluate and end with

    def __init__(
        self,
        network: nn.Module,
        clients: Sequence[Client],
        settings: Settings,
        shared_heads: SharedHeads,
    ) -> None:
        trainable_parameters(network)
        self.network = copy.deepcopy(network)
        self.clients, self.names = list(clients), [client.name for client in clients]
        self.settings, self.shared_heads = settings, shared_heads
        self.heads = HeadsOnDemand(self.network, self.clients, settings, shared_heads.names)
        self.tuned = tuned_parameters(self.network, settings)

    def problem(
        self, device: torch.device, needs: Needs, *, shares: bool, many: bool = False
    ) -> Problem:
        """What an engine is asked to run: first heads, and the layer whose gradient is measured."""
        settings = self.settings
        if many:
            assert self.heads[self.names[0]]
        else:  # made before the layer is looked for: clients that do not fit are named
            self.heads.make_all(self.shared_heads.begin)
        self.gauge = gauge_of(self.network, self.clients, settings)
        return Problem(
            self.network, self.clients, self.heads, self.gauge, settings.local(), device,
            settings.batch_size, settings.seed, needs, settings.precision == "bf16", shares, many,
        )  # fmt: skip

    @property
    def shared(self) -> Tensor:
        """The network of clients that have none of their own."""
        raise NotImplementedError

    @property
    def ends(self) -> Clients:
        """Whose rows clients evaluate and end with: these, or with Ditto the personal ones."""
        return self.personal or self

    @property
    def burst(self) -> int:
        """How many rounds may be asked for at once."""
        return LONGEST if self.graphs.why_not() is None else 1

    def rounds(self, first: int, actives: Sequence[Sequence[str]]) -> list[Outcome]:
        """Some rounds in a row, of which a graph may run several without coming back.

        A round in which everybody failed is the last one. Only the first of these rounds may be one
        whose conflict is recorded.
        """
        found = list[Outcome]()
        while len(found) < len(actives):
            k = len(found)
            alone = len(actives) - k < 2 or self.settings.records_conflict(first + k)
            tables = [] if alone else self.graphs.run(first + k, actives[k:])
            for table in tables:
                found.append(Outcome(list(actives[len(found)]), [], table))
            if not tables:
                found.append(self._next_round(first + k, actives[k]))
                if not found[-1].failed:
                    self.graphs.went_well()
                elif len(found[-1].failed) == len(found[-1].active):
                    break  # the run ends here
        return found

    def _next_round(self, round_number: int, active: Sequence[str]) -> Outcome:
        raise NotImplementedError

    def finish(self, round_number: int) -> None:
        """What comes after the last round: heads tuned on the finished network."""
        if steps := self.settings.final_head_steps:
            self.ends.engine.tune_heads(self.ends.shared, steps, round_number)

    def personalize(self, round_number: int) -> dict[str, dict[str, Any]]:
        """What comes after that: each client tunes a copy of its own; what each kept, by name."""
        how = tuning(self.settings, self.tuned, round_number)
        return {} if how is None else self.ends.engine.personalize(self.ends.shared, how)

    def evaluate(
        self, split: str, names: Collection[str] | None = None
    ) -> dict[str, dict[str, float]]:
        """Loss and metrics of the clients in ``names`` that have this split; None: of all."""
        return self.ends.engine.evaluate(self.ends.shared, split, names)

    def shared_network(self, vector: Tensor) -> nn.Module:
        """A network with these numbers, as a module of its own, on the CPU."""
        flat = FlatNetwork(self.network)
        flat.vector.copy_(vector)
        return flat.module

    def all_trained(self) -> dict[str, Exported]:
        """What every client has learned; under torchrun all ranks take part in this."""
        return self.ends.engine.exported_all()

    def trained(self, name: str) -> Exported:
        """What a client has learned."""
        return self.all_trained()[name]

    def install(self, name: str, client: Exported) -> None:
        """Let a client end with something else."""
        self.ends.engine.install(name, client)

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
        return {NETWORK: self.ends.shared.clone()} | self.ends.engine.client_state(name)

    def give(self, name: str, part: Mapping[str, Any]) -> None:
        """Let a client have what ``part`` returned; the shared network stays as it is."""
        self.ends.engine.load_client(name, part)

    def begin(
        self, statistics: Mapping[str, Mapping[str, Tensor]], networks: Mapping[str, Tensor]
    ) -> None:
        """Start with these own parts of clients, and with networks of those that train their own.

        ``statistics`` are running statistics and private layers of the network.
        """
        self.engine.mark(list(statistics))  # a resumed run does not know the other run
        trained = self.engine.exported_all() if any(statistics.values()) or networks else {}
        for name, now in trained.items():
            if statistics.get(name) or name in networks:
                own = {**now.parts, **statistics.get(name, {})}
                network = networks.get(name, now.network)
                self.engine.install(name, replace(now, parts=own, network=network))


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
