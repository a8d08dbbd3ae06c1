"""Clients spread over the ranks of torch.distributed, for a cluster that trusts itself.

Client i lives on rank i mod K, with its head, its optimiser and its data on that rank's device, run
by the best engine for that rank's own clients. What crosses ranks in a round is what the server
needs: a row of numbers per active client, and one sum of weighted updates. The server's step is the
same arithmetic on the same numbers on every rank, so the new network need not be sent at all.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm._engines.distributed.elsewhere import Elsewhere
from fedgradnorm._engines.distributed.ranks_journal import RanksJournal
from fedgradnorm._engines.protocol import Engine
from fedgradnorm._engines.ranks import World
from fedgradnorm._errors import ConfigError
from fedgradnorm._round.reports import Reports
from fedgradnorm._round.tuning import Tuning

COLUMNS = ("active", "failed", "loss", "loss_ratio", "gauge_norm")


@dataclass(frozen=True)
class DistributedReports(Reports):
    """Reports of which this rank holds a part; the server asks all ranks at once."""

    world: World
    local: Reports | None  # None: none of this rank's clients took part
    shares: Sequence[Sequence[int]]  # each rank's clients, as rows
    like: Tensor

    def aggregate(self, coefficients: Tensor) -> Tensor:
        """sum_i c_i update_i: each rank its own part, then one sum over ranks."""
        mine = torch.zeros_like(self.like)
        if self.local is not None:
            own = torch.tensor(self.shares[self.world.rank], device=coefficients.device)
            own = own if self.local.rows is None else own[self.local.rows.to(own.device)]
            mine.copy_(self.local.aggregate(coefficients[own]))
        return self.world.sum(mine)

    def gradients(self) -> Tensor:
        """All ranks' updates; sent only if the weighting asks for them."""
        most = max(map(len, self.shares))
        mine = self.like.new_zeros(most, len(self.like))
        if self.local is not None:
            mine[: len(self.shares[self.world.rank])] = self.local.gradients()
        whole = self.like.new_empty(len(self.active), len(self.like))
        for rows, part in zip(self.shares, self.world.stack(mine), strict=True):
            whole[list(rows)] = part[: len(rows)]
        return whole


class DistributedEngine(Engine):
    """Runs this rank's share of the clients and meets the other ranks for everything else.

    ``make_local`` makes the engine for some clients, None for nobody. All ranks must call every
    method in the same order: the trainer does, since all of them run the same rounds.
    """

    name = "distributed"

    def __init__(
        self,
        clients: Sequence[Client],
        heads: Mapping[str, nn.Module],
        *,
        world: World,
        device: torch.device,
        make_local: Callable[[Sequence[Client]], Engine | None],
    ) -> None:
        self.world, self.device = world, device
        self.names = [client.name for client in clients]
        _check_alike(world, clients)
        self.shares = _shares(clients, world)
        own = [clients[i] for i in self.shares[world.rank]]
        self.own = {client.name: k for k, client in enumerate(own)}
        self._position = {name: i for i, name in enumerate(self.names)}
        self.local = make_local(own)
        self._journal = self._common_journal()
        sizes = [float(client.size) for client in clients]
        self._size = torch.tensor(sizes, dtype=torch.float64, device=device)
        self._first = heads  # of which other ranks' are made only when all are asked for

    def _common_journal(self) -> RanksJournal | None:
        """One for all ranks, where each that has clients keeps them in rows."""
        mine = None if self.local is None else self.local.journal
        known = self.world.gather(None if self.local is None else mine is not None)
        if False in known or True not in known:
            return None
        return RanksJournal(self.world, mine, self.names, self.own)

    @property
    def journal(self) -> RanksJournal | None:
        """The rows of all ranks' clients, which rank 0 asks for and the others give."""
        return self._journal

    def run_clients(self, shared: Tensor, round_number: int, active: Sequence[str]) -> Reports:
        """This rank's part of ``active`` works; a row of numbers per active client goes round."""
        mine = [k for k, name in enumerate(active) if name in self.own]
        local = None
        table = torch.zeros(len(COLUMNS), len(active), dtype=torch.float64, device=self.device)
        if self.local is not None and mine:
            names = [active[k] for k in mine]
            local = self.local.run_clients(shared, round_number, names)
            lost = set(local.failed)
            failed = torch.tensor([name in lost for name in names])
            columns = (local.active, local.loss, local.loss_ratio, local.gauge_norm)
            found = [column.to(self.device, torch.float64) for column in columns]
            if local.rows is None:
                there = torch.tensor([self.own[name] for name in names], device=self.device)
                found = [column[there] for column in found]
            found.insert(1, failed.to(self.device, torch.float64))
            table[:, torch.tensor(mine, device=self.device)] = torch.stack(found)
        if active:
            self.world.sum(table)  # each row is zero on all ranks but one: the sum is exact
        lines = torch.tensor([self._position[n] for n in active], dtype=torch.int64).to(self.device)
        whole = table.new_zeros(len(COLUMNS), len(self.names)).index_copy_(1, lines, table)
        return DistributedReports(
            active=whole[0] > 0,
            size=self._size,
            loss=whole[2],
            loss_ratio=whole[3],
            gauge_norm=whole[4],
            failed=[name for name, bad in zip(active, table[1].tolist(), strict=True) if bad],
            world=self.world,
            local=local,
            shares=self.shares,
            like=shared,
        )

    @property
    def conflict_obstacle(self) -> str | None:
        """No rank has all updates."""
        return "the updates are spread over the ranks, whose engines may form no single ones"

    def trial(self) -> DistributedEngine:
        """With a trial of each rank's own engine."""
        twin = copy.copy(self)
        twin.local = None if self.local is None else self.local.trial()
        return twin

    def tune_heads(self, shared: Tensor, steps: int, round_number: int) -> None:
        """Each rank its own clients'."""
        if self.local is not None:
            self.local.tune_heads(shared, steps, round_number)

    def personalize(self, shared: Tensor, how: Tuning) -> dict[str, dict[str, Any]]:
        """Each rank its own clients; what they kept is told to all."""
        return self._merged({} if self.local is None else self.local.personalize(shared, how))

    def evaluate(
        self, shared: Tensor, split: str, names: Collection[str] | None = None
    ) -> dict[str, dict[str, float]]:
        """Each rank its own clients; what they found is told to all."""
        if self.local is None:
            return self._merged({})
        if names is not None:
            names = [name for name in names if name in self.own]
        return self._merged(self.local.evaluate(shared, split, names))

    def heads(self) -> dict[str, nn.Module]:
        """Each client's head, those of other ranks as they are now."""
        mine = {} if self.local is None else self.local.heads()
        states = {name: _on_host(dict(head.state_dict())) for name, head in mine.items()}
        return {name: self._head(name, mine, state) for name, state in self._merged(states).items()}

    def _head(
        self, name: str, mine: Mapping[str, nn.Module], state: Mapping[str, Any]
    ) -> nn.Module:
        """This rank's own head, or a copy of another's."""
        if name in mine:
            return mine[name]
        head = copy.deepcopy(self._first[name]).to(self.device)
        head.load_state_dict(state)
        return head

    def state_dict(self) -> dict[str, Any]:
        """All clients' private state, by name, on every rank."""
        return self._merged({} if self.local is None else _on_host(self.local.state_dict()))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what any engine's ``state_dict`` returned, from any number of ranks."""
        if self.local is not None:
            self.local.load_state_dict(state)

    def _merged(self, mine: Mapping[str, Any]) -> dict[str, Any]:
        """All ranks' values by client, in the order of clients."""
        found = {name: value for part in self.world.gather(mine) for name, value in part.items()}
        return {name: found[name] for name in self.names if name in found}


def _check_alike(world: World, clients: Sequence[Client]) -> None:
    """Every rank must have been given the same clients, since any may be asked to run any."""
    mine = [(c.name, c.size, c.task.kind, c.task.outputs) for c in clients]
    for rank, theirs in enumerate(world.gather(mine)):
        if theirs != mine:
            raise ConfigError(
                f"rank {rank} was given other clients than rank {world.rank}; make the same ones "
                "on every rank, with the same seed"
            )


def _on_host(value: Any) -> Any:
    """The nested state with its tensors on the CPU, so that any rank can read it."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, Mapping):
        return {key: _on_host(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_on_host(item) for item in value)
    return value


def _shares(clients: Sequence[Client], world: World) -> list[list[int]]:
    """Each rank's clients, as rows: who has their data or, where all do, one after another.

    Several tasks of one client are on one rank.
    """
    places = {
        name: k % world.size for k, name in enumerate(dict.fromkeys(c.owner for c in clients))
    }
    if any(isinstance(client, Elsewhere) for client in clients):
        places = {c.owner: c.rank if isinstance(c, Elsewhere) else world.rank for c in clients}
    shares: list[list[int]] = [[] for _ in range(world.size)]
    for row, client in enumerate(clients):
        shares[places[client.owner]].append(row)
    return shares
