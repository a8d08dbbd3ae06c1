"""Many registered clients, few of them in a round.

Heads, moments, first losses and counters of all clients lie in stacked tensors. A round's clients
sit down in as many seats as it has clients, are run in one pass as by the joint engine, and their
rows are written back. Nothing is done for a client that does not take part, and one that never did
has no row: its first head follows from the seed and its name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm._engines.batched.plan import Part, Plan
from fedgradnorm._engines.batched.together import Together
from fedgradnorm._engines.joint.joint_reports import JointReports
from fedgradnorm._engines.joint.one_pass import in_order, one_pass
from fedgradnorm._engines.loop import LoopEngine
from fedgradnorm._engines.passes.autograd import AutogradPass
from fedgradnorm._engines.passes.dense import DensePass
from fedgradnorm._engines.passes.shared_pass import Pass
from fedgradnorm._engines.passes.streams import Streams
from fedgradnorm._engines.protocol import Engine
from fedgradnorm._engines.roster.gathered import Ahead, Gathered
from fedgradnorm._engines.roster.registry import Alike, FirstHeads, RegisteredHeads, Registry
from fedgradnorm._engines.roster.row_measures import Measuring
from fedgradnorm._engines.roster.seats import moments_obstacle
from fedgradnorm._engines.roster.shelf import FIRST_LOSS, ROUNDS
from fedgradnorm._engines.roster.some_reports import spread
from fedgradnorm._errors import ConfigError
from fedgradnorm._round.client_round import LocalSettings
from fedgradnorm._round.presence import batches_of
from fedgradnorm._round.reports import Reports
from fedgradnorm._round.tuning import Tuning
from fedgradnorm.models._flat import working_copy
from fedgradnorm.models._streamed.rows import Streamed

WINDOWED = 200  # clients whose batches are drawn for many rounds at once, whoever takes part
AT_ONCE = 1000  # clients whose heads are modules at one time, where the loop has to run them


def roster_obstacle(
    clients: Sequence[Client], how: LocalSettings, gram: bool = False
) -> str | None:
    """Why clients cannot be run a few at a time, beyond what the joint engine asks for."""
    if gram:
        return "the weighting needs the products of all clients' gradients"
    for client in clients:
        if client.head is not None:
            return f"client {client.name!r} has a head of its own"
        if client.of is not None:
            return f"client {client.of!r} has several tasks"
        if client.task.shape or client.task.has_own_loss:
            return f"client {client.name!r} has a loss of its own, or targets with a shape"
    assert how.head_optimizer is not None
    return moments_obstacle(how.head_optimizer)


@dataclass(frozen=True)
class Seated:
    """Clients of one kind in a round, in the order of their seats."""

    kind: Alike
    names: list[str]
    rows: Tensor  # on the kind's shelf
    positions: Tensor  # in the engine's order of clients


class RosterEngine(Together, Engine):
    """Runs a round's clients in seats, and keeps everybody's state in rows."""

    name = "roster"

    def __init__(
        self,
        network: nn.Module,
        clients: Sequence[Client],
        heads: FirstHeads,
        *,
        gauge: Sequence[str],
        how: LocalSettings,
        batch_size: int | None,
        seed: int,
        device: torch.device,
        bf16: bool = False,
    ) -> None:
        assert how.head_optimizer is not None
        self.how, self.device, self.streams = how, device, Streams(device)
        self._template, self._gauge, self._bf16 = network, tuple(gauge), bf16
        self._batch_size, self._seed = batch_size, seed
        self.registry = Registry(clients, heads, how.head_optimizer, batch_size, device)
        self.clients = self.registry.clients
        self._sizes = torch.tensor([float(c.size) for c in clients]).to(device, torch.float64)
        self.front = working_copy(network, device, bf16=bf16)
        self.front.module.train()
        self._pass: Pass = AutogradPass(self.front, gauge)
        first = clients[0].train[0]
        first = first.first if isinstance(first, Streamed) else first
        plain = isinstance(first, Tensor) and first.ndim == 2 and not bf16
        if plain and DensePass.fits(network, gauge):
            self._pass = DensePass(self.front, gauge, self.streams)
        scratch = working_copy(network, device, bf16=bf16)
        self._measuring = Measuring(self.registry, scratch, device, how.first_loss)
        streamed = [c.name for c in clients if isinstance(c.train[0], Streamed)]
        self._ahead = Ahead(lambda name: self._measuring.rows(name, "train"), streamed)
        few = len(clients) <= WINDOWED
        self._windows = batches_of(clients, batch_size, seed, how.steps) if few else None
        self._rates, self._round = how.head_rates(), 0
        self._seated = list[Seated]()
        self.optimizers = self

    @property
    def journal(self) -> Registry:
        """The rows of all clients, of which a checkpoint writes those that changed."""
        return self.registry

    @property
    def conflict_obstacle(self) -> str | None:
        """It never has a single client's update."""
        return "it forms no single updates"

    def clear(self) -> None:
        """Forget the gradients of all heads in seats."""
        for own in self._seated:
            own.kind.seats.clear()

    def step(self) -> None:
        """Every head in a seat that has a gradient takes a step."""
        for own in self._seated:
            own.kind.seats.step(self._rates, self._round, self.how.head_clip)

    def run_clients(self, shared: Tensor, round_number: int, active: Sequence[str]) -> Reports:
        """Everybody in ``active`` at once; what only one client can spoil is left to the loop."""
        self._round, self._seated = round_number, self._seat(active)
        self._find_first_losses(shared)
        plan, self.data = self._plan(), self._gathered(round_number, active)
        losses, squared = one_pass(
            self, self._pass, self.front.module, shared, self.data.rows, plan
        )
        loss, norm = in_order(losses, squared, plan.positions, len(self.clients))
        first = self._first_losses(loss)
        tiny = torch.finfo(self.front.vector.dtype).tiny
        ratio = loss[plan.positions] / torch.cat(first).clamp_min(tiny)
        if not bool((ratio.isfinite() & norm[plan.positions].isfinite()).all()):
            return self._in_turn(shared, round_number, active)
        for own, values in zip(self._seated, first, strict=True):
            own.kind.shelf.write(own.rows, own.kind.seats.tables)
            own.kind.shelf.table(FIRST_LOSS)[own.rows] = values
            own.kind.shelf.table(ROUNDS)[own.rows] += 1
        return JointReports(
            active=plan.active,
            size=self._sizes,
            loss=loss,
            loss_ratio=torch.zeros_like(loss).index_copy_(0, plan.positions, ratio),
            gauge_norm=norm,
            failed=(),
            run=self._pass,
            owner=plan.owner,
        )

    def _seat(self, active: Sequence[str]) -> list[Seated]:
        """Let the round's clients sit down."""
        found = []
        for kind, names, rows in self.registry.grouped(active):
            kind.seat(names, rows)
            found.append(Seated(kind, names, rows, self._positions(names)))
        return found

    def _positions(self, names: Sequence[str]) -> Tensor:
        """Where clients are in the order of all."""
        found = [self.registry.position[name] for name in names]
        return torch.tensor(found, device=self.device)

    def _plan(self) -> Plan:
        """The seats in turn, as parts of one joint batch."""
        parts, start = list[Part](), 0
        for own in self._seated:
            count, group = len(own.names), own.kind.seats.group
            chosen = None if count == own.kind.seats.count else slice(0, count)
            rows = slice(start, start + count * group.batch)
            parts.append(Part(group, list(range(count)), chosen, own.positions, rows))
            start = rows.stop
        positions = torch.cat([part.positions for part in parts])
        owner = torch.cat([p.positions.repeat_interleave(p.group.batch) for p in parts])
        active = torch.zeros(len(self.clients), dtype=torch.bool, device=self.device)
        active[positions] = True
        return Plan(parts, None, owner, positions, active)

    def _gathered(self, round_number: int, active: Sequence[str]) -> Gathered:
        """The rows that the round reads."""
        drawn = self._drawn(round_number, active)
        groups = [(own.kind.seats.group, own.names) for own in self._seated]
        train = {name: self._measuring.rows(name, "train") for name in active}
        if not self._ahead:
            return Gathered(groups, train, drawn, self.front.module, self.device)
        self._ahead.expect(drawn)
        found = Gathered(groups, train, drawn, self.front.module, self.device)
        self._ahead.rest(active)
        if len(active) == len(self.clients):  # so it is known who comes next
            self._ahead.expect(self._drawn(round_number + 1, active))
        return found

    def _drawn(self, round_number: int, active: Sequence[str]) -> dict[str, NDArray[np.int64]]:
        """Row numbers [steps, batch] of each client."""
        if self._windows is not None:
            rows = self._windows.of_round(round_number)
            return {name: rows[name] for name in active}
        clients = [self.clients[name] for name in active]
        batches = batches_of(clients, self._batch_size, self._seed, self.how.steps)
        return batches.many(active, round_number * self.how.steps, self.how.steps)

    def _first_losses(self, loss: Tensor) -> list[Tensor]:
        """F_0 of the round's clients, kind by kind; one that is not known yet is this round's."""
        found = []
        for own in self._seated:
            first = own.kind.shelf.table(FIRST_LOSS)[own.rows]
            found.append(torch.where(first.isnan(), loss[own.positions], first))
        return found

    def _find_first_losses(self, shared: Tensor) -> None:
        """Evaluate those that are still unknown, unless a client's first round tells them."""
        if self.how.first_loss == "first_round":
            return
        for own in self._seated:
            first = own.kind.shelf.table(FIRST_LOSS)
            new = [k for k, value in enumerate(first[own.rows].tolist()) if value != value]
            if new:
                names, rows = [own.names[k] for k in new], own.rows[new]
                first[rows] = self._measuring.first_losses(shared, own.kind, names, rows)

    def _in_turn(self, shared: Tensor, round_number: int, active: Sequence[str]) -> Reports:
        """A round by the loop, which finds out whose numbers are not finite."""
        loop = self._loop(active)
        some = loop.run_clients(shared, round_number, active)
        self._take_over(loop)
        return spread(some, self._positions(active), self._sizes, some.failed)

    def _loop(self, names: Sequence[str]) -> LoopEngine:
        """The reference engine for some of the clients, with copies of their state."""
        loop = LoopEngine(
            self._template,
            [self.clients[name] for name in names],
            {name: self.registry.head(name) for name in names},
            gauge=self._gauge,
            how=self.how,
            batch_size=self._batch_size,
            seed=self._seed,
            device=self.device,
            bf16=self._bf16,
        )
        loop.load_state_dict({name: self.registry.state(name) for name in names})
        return loop

    def _take_over(self, loop: LoopEngine) -> None:
        for name, state in loop.state_dict().items():
            self.registry.load(name, state)

    def _loops(self) -> Iterator[LoopEngine]:
        """All clients by the loop, some at a time."""
        names = list(self.clients)
        for start in range(0, len(names), AT_ONCE):
            loop = self._loop(names[start : start + AT_ONCE])
            yield loop
            self._take_over(loop)

    def evaluate(
        self, shared: Tensor, split: str, names: Collection[str] | None = None
    ) -> dict[str, dict[str, float]]:
        """Loss and metrics of every client that has this split; rows of many pass together."""
        return self._measuring.evaluate(shared, split, names)

    def tune_heads(self, shared: Tensor, steps: int, round_number: int) -> None:
        """By the loop."""
        for loop in self._loops():
            loop.tune_heads(shared, steps, round_number)

    def personalize(self, shared: Tensor, how: Tuning) -> dict[str, dict[str, Any]]:  # noqa: ARG002
        """Refused: a network for each registered client is what this engine is there to avoid."""
        raise ConfigError("engine 'roster' keeps no networks of single clients; use engine='auto'")

    def trial(self) -> Engine:
        """All clients by the loop, with copies of what a round changes."""
        return self._loop(list(self.clients))

    def heads(self) -> Mapping[str, nn.Module]:
        """Each client's head, made when it is asked for."""
        return RegisteredHeads(self.registry)

    def state_dict(self) -> dict[str, Any]:
        """The private state of all clients that took part, by name; others are as they began."""
        return {name: self.registry.state(name) for name in self.registry.known()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what any engine's ``state_dict`` returned."""
        for name in self.clients:
            if name in state:
                self.registry.load(name, state[name])
