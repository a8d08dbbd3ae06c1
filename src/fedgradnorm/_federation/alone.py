"""Clients alone: a federation for each, all of them run in one stacked pass where that is possible.

The federations stay what holds the state: they are evaluated, saved, loaded and stopped one by one.
A pass for all only knows their tensors, as rows of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._client import Client
from fedgradnorm._engines import Plan, Unshared, adam_of_rows, make_unshared
from fedgradnorm._federation.federation import Basis, Federation, Outcome, gauge_of
from fedgradnorm._federation.making_heads import first_head
from fedgradnorm._round.reports import StackedReports
from fedgradnorm._round.server import COLUMNS, ServerState, columns, weighed
from fedgradnorm._round.settings import Settings
from fedgradnorm.models._flat import trainable_parameters
from fedgradnorm.weighting import Equal, Weighting


class Federations(list[Federation]):
    """The federations of a run, which take their rounds in turn."""

    @property
    def burst(self) -> int:
        """How many rounds may be asked for at once."""
        return min(federation.burst for federation in self)

    def rounds(self, first: int, actives: Sequence[Sequence[Sequence[str]]]) -> list[list[Outcome]]:
        """Some rounds in a row, of each federation those who take part in each of them.

        The outcomes of each round, which together have all who took part, in their order.
        """
        both = zip(self, actives, strict=True)
        each = [federation.rounds(first, own) for federation, own in both]
        return [list(together) for together in zip(*each, strict=True)]

    def evaluate(
        self, split: str, names: Collection[str] | None = None
    ) -> dict[str, dict[str, float]]:
        """Loss and metrics of the clients in ``names`` that have this split; None: of all."""
        wanted = None if names is None else set(names)
        found: dict[str, dict[str, float]] = {}
        for federation in self:
            if wanted is None:
                found |= federation.evaluate(split)
            elif own := [name for name in federation.names if name in wanted]:
                found |= federation.evaluate(split, own)
        return found

    def pulled(self, round_number: int, active: Sequence[str], to: Tensor, by: float) -> None:
        """A round of clients alone whose networks v are also pulled: grad F(v) + by (v - to)."""
        wanted = set(active)
        for federation in self:
            if wanted.intersection(federation.names):
                _pulled(federation, round_number, to, by)


class SideBySide(Federations):
    """Federations of one client each, which take their rounds together.

    A client whose numbers are not finite takes its round again by itself.
    """

    def __init__(self, federations: Sequence[Federation], run: Unshared) -> None:
        super().__init__(federations)
        self._run = run
        self._named = {federation.names[0]: federation for federation in federations}
        self._servers = [federation.server for federation in federations]
        for name, federation in self._named.items():
            federation.server.shared.data = run.vector_of(name)
        settings = federations[0].settings
        self._optimizer = optimizers.Joined(
            {server.shared: server.optimizer for server in self._servers},
            optimizers.resolve(settings.server_optimizer, settings.lr),
        )
        self._adam = adam_of_rows(run.vectors, [server.optimizer for server in self._in_order()])
        self._steady = settings.participation == 1.0  # who takes part stays so until it stops
        # One client has weight 1, but a rule may still keep something of what it sees.
        self._plain = all(type(server.weighting) is Equal for server in self._servers)
        if settings.compile and self.burst > 1:
            run.fuse()

    def _in_order(self) -> list[ServerState]:
        """The servers, in the order of the pass's rows."""
        return [self._named[name].server for name in self._run.order]

    @property
    def burst(self) -> int:
        """Many on a GPU, where a round decides nothing on the host."""
        return self._run.at_once.burst(self._run, self._servers)

    def rounds(self, first: int, actives: Sequence[Sequence[Sequence[str]]]) -> list[list[Outcome]]:
        """Some rounds in a row, each of them one outcome of all."""
        coming = [[n for own in actives for n in own[k]] for k in range(len(actives[0]))]
        found = list[Outcome]()
        while len(found) < len(coming):
            found += self._next_rounds(first + len(found), coming[len(found) :])
        return [[outcome] for outcome in found]

    def evaluate(
        self, split: str, names: Collection[str] | None = None
    ) -> dict[str, dict[str, float]]:
        """Loss and metrics, of those together who can be; the others by themselves."""
        wanted = self._named if names is None else set(names)
        asked = [name for name in self._named if name in wanted]
        found = self._run.evaluate(split, asked)
        found |= super().evaluate(split, [name for name in asked if name not in found])
        return {name: found[name] for name in asked if name in found}

    def _next_rounds(self, first: int, actives: Sequence[Sequence[str]]) -> list[Outcome]:
        """All of these rounds where they can be had at once, or else the first of them."""
        active, count = actives[0], len(actives)
        same = self._steady and bool(active) and all(one == active for one in actives)
        if count > 1 and same and self.burst > 1:
            servers = [self._named[name].server for name in active]
            if self._adam is not None:
                self._adam.ready()  # loaded moments are in their rows before a round is captured
            run, one_round = self._run, self._captured
            results = run.at_once.run(run, first, count, active, one_round, servers)
            if results is not None:
                order = list(map(run.planner.plan(active).names.index, active))
                return [_outcome(active, table) for table in results[:, :, order].tolist()]
        return [self._next_round(first, active)]

    def _captured(self, rows: Tensor, plan: Plan) -> dict[str, Tensor]:
        """A round that may be captured."""
        return self._serve(plan.names, self._run.work(rows, plan))

    def _next_round(self, round_number: int, active: Sequence[str]) -> Outcome:
        """A round of those in ``active``, and what became of them."""
        if not active:
            return Outcome([], [], {})
        names, reports = self._run.run(round_number, active)
        self._begin_round(round_number)
        table = self._serve(names, reports)
        rows = torch.stack([table[key] for key in COLUMNS], dim=1).tolist()
        found, failed = dict(zip(names, rows, strict=True)), list[str]()
        for name in reports.failed:
            (own,) = self._named[name].rounds(round_number, [[name]])
            found[name] = [own.columns[key][0] for key in COLUMNS]
            failed += own.failed
        by_column = zip(*(found[name] for name in active), strict=True)
        return _outcome(active, [list(column) for column in by_column], failed)

    def _begin_round(self, round_number: int) -> None:
        """All servers step with the rate of this round from now on."""
        for server in self._servers:
            server.begin_round(round_number)
        if rates := self._servers[0].rates:
            self._optimizer.set(rates.at(round_number))

    def _serve(self, names: Sequence[str], reports: StackedReports) -> dict[str, Tensor]:
        """The servers' part of a round, but for clients that failed; ``COLUMNS`` of all."""
        if self._plain:  # weight 1 for everybody, so all of them take one step
            self._descend(names, reports, reports.updates)
            one = torch.ones_like(reports.loss)
            return {
                "loss": reports.loss,
                "loss_ratio": reports.loss_ratio,
                "gauge_norm": reports.gauge_norm,
                "weight": one,
                "held": torch.zeros_like(one),
            }
        tables, directions = list[dict[str, Tensor]](), list[Tensor]()
        for row, name in self._run.streams.side_by_side(list(enumerate(names))):
            server, own = self._named[name].server, _one_of(reports, row)
            if name in reports.failed:  # its own federation will tell
                tables.append(dict.fromkeys(COLUMNS, torch.zeros_like(own.loss)))
                directions.append(reports.updates[row])
                continue
            weights, direction = weighed(server, own)
            tables.append(columns(server, own, weights))
            directions.append(direction)
        self._descend(names, reports, torch.stack(directions))
        return {key: torch.cat([table[key] for table in tables]) for key in COLUMNS}

    def _descend(self, names: Sequence[str], reports: StackedReports, along: Tensor) -> None:
        """A step of all servers but those of clients that failed, along the rows of ``along``."""
        everybody = not reports.failed and len(names) == len(self)
        if everybody and self._adam is not None and self._adam.ready():
            self._adam.step(along, self._optimizer.how)
            return
        self._optimizer.link()  # a federation may have loaded other moments
        self._optimizer.clear()
        for name, direction in zip(names, along.unbind(), strict=True):
            if name not in reports.failed:
                self._named[name].server.shared.grad = direction
        self._optimizer.step()

    def pulled(self, round_number: int, active: Sequence[str], to: Tensor, by: float) -> None:
        """A round in which networks are also pulled."""
        names, reports = self._run.run(round_number, active)
        self._begin_round(round_number)
        away = torch.stack([self._named[name].server.shared.data for name in names]) - to
        self._descend(names, reports, reports.updates + by * away)
        for name in reports.failed:
            _pulled(self._named[name], round_number, to, by)


def alone(
    network: nn.Module,
    clients: Sequence[Client],
    weighting: Weighting,
    settings: Settings,
    device: torch.device,
) -> Federations:
    """A federation for each client, side by side unless an engine is asked for or one is needed."""
    run, bases = None, dict[str, Basis]()
    if settings.engine == "auto" and len(clients) > 1:
        run, bases = _one_pass(network, clients, settings, device)
    found = [
        Federation(network, [c], copy.deepcopy(weighting), settings, device, bases.get(c.name))
        for c in clients
    ]
    return Federations(found) if run is None else SideBySide(found, run)


def _one_pass(
    network: nn.Module, clients: Sequence[Client], settings: Settings, device: torch.device
) -> tuple[Unshared | None, dict[str, Basis]]:
    """A pass for all, and what each client's federation has of it; none where that would be another
    training."""
    trainable_parameters(network)
    network = copy.deepcopy(network)
    heads = {c.name: first_head(network, c, settings) for c in clients}
    gauge = gauge_of(network, clients, settings)
    run = make_unshared(
        network,
        clients,
        heads,
        settings.local(),
        gauge=gauge,
        batch_size=settings.batch_size,
        seed=settings.seed,
        device=device,
        bf16=settings.precision == "bf16",
    )
    if run is None:
        return None, {}
    names = [client.name for client in clients]
    bases = {n: Basis(network, run.vector_of(n), gauge, run.engine_of(n)) for n in names}
    return run, bases


def _pulled(federation: Federation, round_number: int, to: Tensor, by: float) -> None:
    """A client's round alone, with a pull (Li et al. 2021, algorithm 1); nothing if it fails."""
    server = federation.server
    shared = server.shared.data
    reports = federation.engine.run_clients(shared, round_number, federation.names)
    if reports.failed:
        return
    server.begin_round(round_number)
    one = torch.ones(1, dtype=torch.float64, device=shared.device)
    server.shared.grad = reports.aggregate(one) + by * (shared - to)
    server.optimizer.step()


def _outcome(
    active: Sequence[str], table: Sequence[list[float]], failed: Sequence[str] = ()
) -> Outcome:
    """A round of ``active``; ``table`` has ``COLUMNS``."""
    return Outcome(active, failed, dict(zip(COLUMNS, table, strict=True)))


def _one_of(reports: StackedReports, row: int) -> StackedReports:
    """The report of one client, as a federation of that client has it."""
    one = slice(row, row + 1)
    return StackedReports(
        active=reports.active[one],
        size=reports.size[one],
        loss=reports.loss[one],
        loss_ratio=reports.loss_ratio[one],
        gauge_norm=reports.gauge_norm[one],
        failed=(),
        updates=reports.updates[one],
    )
