"""Clients spread over the ranks of torchrun, for a cluster that trusts itself.

Client i is on rank i mod K, with its row on that rank's device, run by the best executor for that
rank's own clients. What crosses ranks in a round is what the server needs: a column of numbers per
active client, and one sum of weighted updates. The server's step is the same arithmetic on the same
numbers on every rank, so the new network need not be sent at all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedgradnorm._client import Client
from fedgradnorm._engines.choice import make_engine
from fedgradnorm._engines.engine import Problem
from fedgradnorm._engines.parts import ClientPart, Exported
from fedgradnorm._engines.ranks import World
from fedgradnorm._engines.tuning import Tuning
from fedgradnorm._errors import ConfigError
from fedgradnorm._round.reports import SENT, Reports
from fedgradnorm._state.table import ClientTable, Row


@dataclass(frozen=True)
class RankedReports(Reports):
    """Reports of which this rank holds a part; the server asks all ranks at once."""

    world: World
    local: Reports
    mine: Tensor  # where this rank's clients are among those that were asked
    like: Tensor

    def aggregate(self, coefficients: Tensor) -> Tensor:
        """sum_i c_i update_i: each rank its own part, then one sum over ranks."""
        total = torch.zeros_like(self.like)
        if len(self.mine):
            total.copy_(self.local.aggregate(coefficients[self.mine]))
        return self.world.sum(total)

    def gradients(self) -> Tensor:
        """All ranks' updates; sent only if they are asked for."""
        whole = self.like.new_zeros(len(self.active), len(self.like))
        if len(self.mine):
            whole[self.mine] = self.local.gradients()
        return self.world.sum(whole)  # each row is zero on all ranks but one: the sum is exact


class RankedEngine:
    """Runs this rank's share of the clients and meets the other ranks for everything else.

    All ranks must call every method in the same order: the trainer does, since all of them run the
    same rounds. ``local`` is the engine of this rank's share, which may be empty.
    """

    name = "ranks"

    def __init__(self, problem: Problem, world: World) -> None:
        clients, self.world, self.device = problem.clients, world, problem.device
        self.names = [client.name for client in clients]
        self._position = {name: i for i, name in enumerate(self.names)}
        _check_alike(world, clients)
        owners = {owner: k for k, owner in enumerate(dict.fromkeys(c.owner for c in clients))}
        share = [c for c in clients if owners[c.owner] % world.size == world.rank]
        self.local = make_engine("auto", replace(problem, clients=share))
        self.own = {client.name for client in share}
        sizes = [float(client.size) for client in clients]
        self._size = torch.tensor(sizes, dtype=torch.float64, device=self.device)
        self._many = problem.many

    def run_clients(
        self, shared: Tensor, round_number: int, active: Sequence[str], updates: bool = False
    ) -> Reports:
        """This rank's part of ``active`` works; a column of numbers per client goes round."""
        at, names = self._share(active)
        mine = torch.tensor(at, dtype=torch.int64, device=self.device)
        local = self.local.run_clients(shared, round_number, names, updates)
        lost = set(local.failed)
        failed = torch.tensor([name in lost for name in names])
        columns = (local.active, failed, *(getattr(local, key) for key in SENT))
        table = torch.zeros(len(columns), len(active), dtype=torch.float64, device=self.device)
        table[:, mine] = torch.stack([c.to(self.device, torch.float64) for c in columns])
        if active:
            self.world.sum(table)  # each column is zero on all ranks but one: the sum is exact
        rows = None
        if len(active) < len(self.names):
            places = [self._position[name] for name in active]
            rows = torch.tensor(places, dtype=torch.int64, device=self.device)
        return RankedReports(
            active=table[0] > 0,
            size=self._size if rows is None else self._size[rows],
            **dict(zip(SENT, table[2:], strict=True)),
            failed=[name for name, bad in zip(active, table[1].tolist(), strict=True) if bad],
            world=self.world,
            local=local,
            mine=mine,
            like=shared,
            rows=rows,
        )

    def set_noise(self, name: str, noise: float) -> None:
        if name in self.own:
            self.local.set_noise(name, noise)

    def _share(self, names: Sequence[str]) -> tuple[list[int], list[str]]:
        """This rank's clients among some: where they are among them, and their names."""
        at = [k for k, name in enumerate(names) if name in self.own]
        return at, [names[k] for k in at]

    def _merged(self, mine: Mapping[str, Any]) -> dict[str, Any]:
        """All ranks' values by client, in the order of clients."""
        found = {name: value for part in self.world.gather(mine) for name, value in part.items()}
        return {name: found[name] for name in self.names if name in found}

    def tune_heads(self, shared: Tensor, steps: int, round_number: int) -> None:
        self.local.tune_heads(shared, steps, round_number)

    def personalize(self, shared: Tensor, how: Tuning) -> dict[str, dict[str, Any]]:
        """Each rank its own clients; what they saved is sent to every rank."""
        return self._merged(self.local.personalize(shared, how))

    def evaluate(
        self, shared: Tensor, split: str, names: Collection[str] | None = None
    ) -> dict[str, dict[str, float]]:
        """Each rank its own clients; the scores are sent to every rank."""
        own = None if names is None else [name for name in names if name in self.own]
        return self._merged(self.local.evaluate(shared, split, own))

    def exported_all(self) -> dict[str, Exported]:
        return self._merged(self.local.exported_all())

    def begin(self, name: str, parts: Mapping[str, Tensor], network: Tensor | None) -> None:
        if name in self.own:
            self.local.begin(name, parts, network)

    def head_rows(self, names: Sequence[str]) -> Tensor:
        """The heads of some clients, which are of one shape, as rows on every rank."""
        at, own = self._share(names)
        mine = self.local.head_rows(own).cpu() if own else None
        parts = [(at, rows) for at, rows in self.world.gather((at, mine)) if at]
        found: Tensor = parts[0][1].new_empty(len(names), parts[0][1].shape[1])
        for at, rows in parts:
            found[at] = rows
        return found.to(self.device)

    def set_head_rows(self, names: Sequence[str], heads: Tensor) -> None:
        at, own = self._share(names)
        self.local.set_head_rows(own, heads[at])

    def mark(self, names: Sequence[str]) -> None:
        """Let a checkpoint hold the rows of these clients, on their own ranks."""
        self.local.mark(self._share(names)[1])

    def only_linear_heads(self) -> bool:
        """Whether no rank's clients keep anything else of what they have learned."""
        return all(self.world.gather(self.local.only_linear_heads()))

    def client_state(self, name: str) -> Row:
        mine = dict[str, Row]()
        if name in self.own:
            mine[name] = {key: value.cpu() for key, value in self.local.client_state(name).items()}
        found: Row = self._merged(mine)[name]
        return found

    def load_client(self, name: str, state: Mapping[str, Any]) -> None:
        if name in self.own:
            self.local.load_client(name, state)

    def state_dict(self) -> dict[str, Any]:
        return self._joined(self.world.gather(self.local.state_dict()))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore this rank's clients, from a state of any number of ranks."""
        self.local.load_state_dict(self._mine(state))

    @property
    def journal(self) -> RankedEngine | None:
        """The rows of all ranks' clients, where a checkpoint writes only those that changed.

        All ranks call :meth:`count`, :meth:`changed` and :meth:`settle`, in this order.
        """
        return self if self._many else None

    def count(self) -> tuple[int, int]:
        """How many rows changed on all ranks since :meth:`settle`, and how many ever did."""
        counts = self.world.gather(self.local.table.count())
        return sum(new for new, _ in counts), sum(known for _, known in counts)

    def changed(self, everything: bool = False) -> dict[str, Any]:
        """The rows that changed on any rank, on rank 0; which of them it wants goes for all."""
        mine = self.local.table.changed(self.world.leaders(everything))
        return self._joined(self.world.to_leader(mine))

    def settle(self) -> None:
        """Everything that changed so far has been saved."""
        self.local.table.settle()

    def take(self, saved: Mapping[str, Any]) -> None:
        self.local.table.take(self._mine(saved))

    def _joined(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        parts = [part for state in states for part in state["parts"]]
        return {"parts": sorted(parts, key=lambda part: self._position[part["names"][0]])}

    def _mine(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        found = []
        for part in saved["parts"]:
            at, names = self._share(part["names"])
            if at:
                tables = {key: table[at] for key, table in part["tables"].items()}
                found.append({"names": names, "tables": tables})
        return {"parts": found}


Journal = ClientTable[ClientPart] | RankedEngine
"""The rows of many clients, of which a checkpoint writes those that changed."""


def _check_alike(world: World, clients: Sequence[Client]) -> None:
    """Every rank must have been given the same clients, since any may be asked to run any."""
    mine = [(c.name, c.size, c.task.kind, c.task.outputs) for c in clients]
    for rank, theirs in enumerate(world.gather(mine)):
        if theirs != mine:
            raise ConfigError(
                f"rank {rank} was given other clients than rank {world.rank}; make the same ones "
                "on every rank, with the same seed"
            )
