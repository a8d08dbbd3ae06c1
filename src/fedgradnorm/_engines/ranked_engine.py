"""Clients spread over the ranks of torch.distributed, for a cluster that trusts itself.

Client i is on rank i mod K, with its row and its data on that rank's device, run by the best
executor for that rank's own clients. What crosses ranks in a round is what the server needs: a
column of numbers per active client, and one sum of weighted updates. The server's step is the same
arithmetic on the same numbers on every rank, so the new network need not be sent at all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm._engines.choice import Problem, make_engine
from fedgradnorm._engines.elsewhere import Elsewhere
from fedgradnorm._engines.engine import Engine
from fedgradnorm._engines.kept_clients import Exported
from fedgradnorm._engines.parts import FirstHeads
from fedgradnorm._engines.ranks import World, world
from fedgradnorm._engines.ranks_journal import RanksJournal
from fedgradnorm._errors import ConfigError
from fedgradnorm._round.reports import SENT, Reports
from fedgradnorm._round.tuning import Tuning
from fedgradnorm._state.table import Row
from fedgradnorm.weighting import Needs

COLUMNS = ("active", "failed", *SENT)


@dataclass(frozen=True)
class RankedReports(Reports):
    """Reports of which this rank holds a part; the server asks all ranks at once."""

    world: World
    local: Reports | None  # None: none of this rank's clients took part
    mine: Tensor  # where this rank's clients are among those that were asked
    like: Tensor

    def aggregate(self, coefficients: Tensor) -> Tensor:
        """sum_i c_i update_i: each rank its own part, then one sum over ranks."""
        total = torch.zeros_like(self.like)
        if self.local is not None:
            total.copy_(self.local.aggregate(coefficients[self.mine]))
        return self.world.sum(total)

    def gradients(self) -> Tensor:
        """All ranks' updates; sent only if the weighting asks for them."""
        whole = self.like.new_zeros(len(self.active), len(self.like))
        if self.local is not None:
            whole[self.mine] = self.local.gradients()
        return self.world.sum(whole)  # each row is zero on all ranks but one: the sum is exact


def ranked_engine(problem: Problem, heads: FirstHeads, *, seed: int, bf16: bool) -> RankedEngine:
    """An engine for this rank's share of the clients, and the meeting of all ranks."""
    here = world()
    if Needs.GRAM in problem.needs:  # products across ranks are taken from gradients
        problem = replace(problem, needs=problem.needs | Needs.GRADIENT)
    return RankedEngine(problem, heads, here, seed=seed, bf16=bf16)


class RankedEngine:
    """Runs this rank's share of the clients and meets the other ranks for everything else.

    All ranks must call every method in the same order: the trainer does, since all of them run the
    same rounds.
    """

    def __init__(
        self, problem: Problem, heads: FirstHeads, world: World, *, seed: int, bf16: bool
    ) -> None:
        clients = problem.clients
        self.world, self.device = world, problem.device
        self.clients = {client.name: client for client in clients}
        self.names = list(self.clients)
        _check_alike(world, clients)
        own = [clients[i] for i in _share(clients, world)]
        self.own = {client.name for client in own}
        self._position = {name: i for i, name in enumerate(self.names)}
        self.local: Engine | None = None
        if own:
            self.local = make_engine(
                "auto", replace(problem, clients=own), heads, seed=seed, bf16=bf16
            )
        sizes = [float(client.size) for client in clients]
        self._size = torch.tensor(sizes, dtype=torch.float64, device=self.device)
        self._journal: RanksJournal | None = None
        if problem.many:
            table = None if self.local is None else self.local.table
            self._journal = RanksJournal(world, table, self.names, self.own)

    @property
    def name(self) -> str:
        """What a run says of its executor."""
        return "ranks"

    @property
    def journal(self) -> RanksJournal | None:
        """The rows of all ranks' clients, which rank 0 asks for and the others give."""
        return self._journal

    def run_clients(
        self, shared: Tensor, round_number: int, active: Sequence[str], keep: bool = True
    ) -> Reports:
        """This rank's part of ``active`` works; a column of numbers per client goes round."""
        mine = torch.tensor(
            [k for k, name in enumerate(active) if name in self.own], dtype=torch.int64
        ).to(self.device)
        local = None
        table = torch.zeros(len(COLUMNS), len(active), dtype=torch.float64, device=self.device)
        if self.local is not None and len(mine):
            names = [name for name in active if name in self.own]
            local = self.local.run_clients(shared, round_number, names, keep)
            lost = set(local.failed)
            failed = torch.tensor([name in lost for name in names], device=self.device)
            columns = (local.active, failed, *(getattr(local, key) for key in SENT))
            table[:, mine] = torch.stack([c.to(self.device, torch.float64) for c in columns])
        if active:
            self.world.sum(table)  # each column is zero on all ranks but one: the sum is exact
        rows = None
        if len(active) < len(self.names):
            places = [self._position[name] for name in active]
            rows = torch.tensor(places, dtype=torch.int64, device=self.device)
        failed_there = table[1].tolist()
        return RankedReports(
            active=table[0] > 0,
            size=self._size if rows is None else self._size[rows],
            **dict(zip(SENT, table[2:], strict=True)),
            failed=[name for name, bad in zip(active, failed_there, strict=True) if bad],
            world=self.world,
            local=local,
            mine=mine,
            like=shared,
            rows=rows,
        )

    @property
    def conflict_obstacle(self) -> str | None:
        """No rank has all updates."""
        return "the updates are spread over the ranks, whose executors may form no single ones"

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

    def exported_all(self) -> dict[str, Exported]:
        """What every client has learned, on every rank."""
        mine = {} if self.local is None else {n: self.local.exported(n) for n in self.local.names}
        return self._merged(mine)

    def exported(self, name: str) -> Exported:
        """What one client has learned."""
        return self.exported_all()[name]

    def heads(self) -> dict[str, nn.Module]:
        """Each client's head, as a copy on the CPU."""
        return {name: client.head for name, client in self.exported_all().items()}

    def head_rows(self, names: Sequence[str]) -> Tensor:
        """The heads of some clients, which are of one shape, as rows on every rank."""
        own = [name for name in names if name in self.own]
        mine = {}
        if self.local is not None and own:
            mine = dict(zip(own, self.local.head_rows(own).cpu(), strict=True))
        found = self._merged(mine)
        return torch.stack([found[name] for name in names]).to(self.device)

    def set_head_rows(self, names: Sequence[str], heads: Tensor) -> None:
        """Give this rank's clients their heads."""
        mine = [k for k, name in enumerate(names) if name in self.own]
        if self.local is not None and mine:
            self.local.set_head_rows([names[k] for k in mine], heads[mine])

    def head_tables(self) -> list[tuple[list[str], Tensor, Tensor]] | None:
        """Everybody's linear head in stacked rows, on every rank."""
        mine = [] if self.local is None else self.local.head_tables()
        gathered = self.world.gather(mine)
        if any(tables is None for tables in gathered):
            return None
        found: dict[tuple[int, ...], list[tuple[list[str], Tensor, Tensor]]] = {}
        for table in (table for tables in gathered for table in tables):
            found.setdefault(tuple(table[1].shape[1:]), []).append(table)
        joined = [self._joined(tables) for tables in found.values()]
        return sorted(joined, key=lambda table: self._position[table[0][0]])

    def _joined(
        self, tables: Sequence[tuple[list[str], Tensor, Tensor]]
    ) -> tuple[list[str], Tensor, Tensor]:
        """Heads of one shape, in the order of clients."""
        names = [name for table in tables for name in table[0]]
        order = sorted(range(len(names)), key=lambda k: self._position[names[k]])
        weight, bias = (
            torch.cat(parts)[order] for parts in zip(*(t[1:] for t in tables), strict=True)
        )
        return [names[k] for k in order], weight, bias

    def client_state(self, name: str) -> Row:
        """A client's row, on every rank."""
        mine = {}
        if self.local is not None and name in self.own:
            mine[name] = {k: v.cpu() for k, v in self.local.client_state(name).items()}
        found: Row = self._merged(mine)[name]
        return found

    def load_client(self, name: str, state: Mapping[str, Any]) -> None:
        """Restore a client's row, on its own rank."""
        if self.local is not None and name in self.own:
            self.local.load_client(name, state)

    def begin(self, name: str, parts: Mapping[str, Tensor]) -> None:
        """Let a client start with these parts of the network, on its own rank."""
        if self.local is not None and name in self.own:
            self.local.begin(name, parts)

    def install(self, name: str, client: Exported) -> None:
        """Let a client end with something else, on its own rank."""
        if self.local is not None and name in self.own:
            self.local.install(name, client)

    def state_dict(self) -> dict[str, Any]:
        """All clients' rows, on every rank."""
        mine = {"parts": []} if self.local is None else self.local.state_dict()
        parts = [part for own in self.world.gather(mine) for part in own["parts"]]
        return {"parts": sorted(parts, key=lambda part: self._position[part["names"][0]])}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore this rank's clients, from a state of any number of ranks."""
        if self.local is not None:
            self.local.load_state_dict({"parts": self._mine(state["parts"])})

    def _mine(self, parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        found = []
        for part in parts:
            here = [k for k, name in enumerate(part["names"]) if name in self.own]
            if here:
                tables = {key: table[here] for key, table in part["tables"].items()}
                found.append({"names": [part["names"][k] for k in here], "tables": tables})
        return found

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


def _share(clients: Sequence[Client], world: World) -> list[int]:
    """This rank's clients, by number: those whose data it has or, where all do, one after another.

    Several tasks of one client are on one rank.
    """
    places = {
        name: k % world.size for k, name in enumerate(dict.fromkeys(c.owner for c in clients))
    }
    if any(isinstance(client, Elsewhere) for client in clients):
        places = {c.owner: c.rank if isinstance(c, Elsewhere) else world.rank for c in clients}
    return [row for row, client in enumerate(clients) if places[client.owner] == world.rank]
