"""Many registered clients, few of them in a round.

Heads, moments, first losses and counters of all clients lie in stacked tensors. A round's clients
sit down in as many seats as it has clients, are run in one pass as by the joint engine, and their
rows are written back. Nothing is done for a client that does not take part, and one that never did
has no row: its first head follows from the seed and its name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
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
from fedgradnorm._engines.roster.gathered import Ahead, Gathered, Reader
from fedgradnorm._engines.roster.registry import FirstHeads, RegisteredHeads, Registry, Seated
from fedgradnorm._engines.roster.row_measures import Measuring
from fedgradnorm._engines.roster.seats import moments_obstacle
from fedgradnorm._engines.roster.shelf import FIRST_LOSS, ROUNDS
from fedgradnorm._engines.roster.some_reports import spread
from fedgradnorm._errors import ConfigError
from fedgradnorm._round.client_round import LocalSettings
from fedgradnorm._round.reports import Reports
from fedgradnorm._round.tuning import Tuning
from fedgradnorm.models._flat import working_copy
from fedgradnorm.models._streamed.rows import Streamed

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
        self._reader = Reader(clients, batch_size, seed, how.steps)
        self._sizes = torch.tensor([c.size for c in clients], dtype=torch.float64, device=device)
        self.front = working_copy(network, device, bf16=bf16)
        self.front.module.train()
        self._pass: Pass = AutogradPass(self.front, gauge)
        first = clients[0].train[0]
        first = first.first if isinstance(first, Streamed) else first
        plain = isinstance(first, Tensor) and first.ndim == 2 and not bf16
        if plain and DensePass.fits(network, gauge):
            self._pass = DensePass(self.front, gauge, self.streams)
        scratch = working_copy(network, device, bf16=bf16)
        self._measuring = Measuring(self.registry, self._reader, scratch, device, how.first_loss)
        streamed = [c.name for c in clients if isinstance(c.train[0], Streamed)]
        self._ahead = Ahead(streamed, self._reader.rows(self.registry.places(streamed)))
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
        """Nothing: every head in a seat gets a new gradient before each step."""

    def step(self) -> None:
        """Every head in a seat takes a step."""
        for own in self._seated:
            own.kind.seats.step(self._rates, self._round, self.how.head_clip)

    def run_clients(self, shared: Tensor, round_number: int, active: Sequence[str]) -> Reports:
        """Everybody in ``active`` at once; what only one client can spoil is left to the loop."""
        self._round, self._seated = round_number, self._seat(active)
        self._find_first_losses(shared)
        plan, self.data = self._plan(len(active)), self._gathered(round_number)
        losses, squared = one_pass(
            self, self._pass, self.front.module, shared, self.data.rows, plan
        )
        loss, norm = in_order(losses, squared, plan.positions, len(active))
        first = self._first_losses(plan, loss)
        ratio = loss / first.clamp_min(torch.finfo(self.front.vector.dtype).tiny)
        if not bool((ratio.isfinite() & norm.isfinite()).all()):
            return self._in_turn(shared, round_number, active)
        for own, part in zip(self._seated, plan.parts, strict=True):
            own.kind.shelf.write(own.rows, own.kind.seats.tables)
            own.kind.shelf.table(FIRST_LOSS)[own.rows] = first[part.positions]
            own.kind.shelf.table(ROUNDS)[own.rows] += 1
        here = self._places(plan)
        return JointReports(
            active=plan.active,
            size=self._sizes[here],
            loss=loss,
            loss_ratio=ratio,
            gauge_norm=norm,
            failed=(),
            rows=here,
            run=self._pass,
            owner=plan.owner,
        )

    def _seat(self, active: Sequence[str]) -> list[Seated]:
        """Let the round's clients sit down."""
        found = self.registry.grouped(active)
        for own in found:
            own.kind.seat(own.names, own.rows)
        return found

    def _plan(self, clients: int) -> Plan:
        """The seats in turn, as parts of one joint batch; positions are among those active."""
        parts, start = list[Part](), 0
        for own in self._seated:
            count, group = len(own.names), own.kind.seats.group
            chosen = None if count == own.kind.seats.count else slice(0, count)
            rows = slice(start, start + count * group.batch)
            turns = torch.from_numpy(own.turns).to(self.device)
            parts.append(Part(group, list(range(count)), chosen, turns, rows))
            start = rows.stop
        positions = torch.cat([part.positions for part in parts])
        owner = torch.cat([p.positions.repeat_interleave(p.group.batch) for p in parts])
        active = torch.ones(clients, dtype=torch.bool, device=self.device)
        return Plan(parts, None, owner, positions, active)

    def _places(self, plan: Plan) -> Tensor:
        """Where the round's clients are in the order of all."""
        places = torch.from_numpy(np.concatenate([own.places for own in self._seated]))
        places = places.to(self.device)
        return torch.empty_like(places).index_copy_(0, plan.positions, places)

    def _gathered(self, round_number: int) -> Gathered:
        """The rows that the round reads."""
        reader, groups = self._reader, []
        reader.check((own.places, own.kind.batch) for own in self._seated)
        if self._ahead:
            self._ahead.expect(self._drawn(round_number))
        for kind, names, places, _, _ in self._seated:
            rows, drawn = reader.rows(places), reader.drawn(places, kind.batch, round_number)
            groups.append((kind.seats.group, names, rows, reader.held[places], drawn))
        found = Gathered(groups, self.front.module, self.device)
        if self._ahead:
            self._ahead.rest(name for own in self._seated for name in own.names)
            if sum(len(own.names) for own in self._seated) == len(self.clients):
                self._ahead.expect(self._drawn(round_number + 1))  # it is known who comes next
        return found

    def _drawn(self, round_number: int) -> dict[str, NDArray[np.int64]]:
        """Row numbers [steps, batch] of each of the round's clients."""
        return {
            name: rows
            for own in self._seated
            for name, rows in zip(
                own.names,
                self._reader.drawn(own.places, own.kind.batch, round_number),
                strict=True,
            )
        }

    def _first_losses(self, plan: Plan, loss: Tensor) -> Tensor:
        """F_0 of the round's clients; one that is not known yet is this round's."""
        known = [own.kind.shelf.table(FIRST_LOSS)[own.rows] for own in self._seated]
        first = torch.empty_like(loss).index_copy_(0, plan.positions, torch.cat(known))
        return torch.where(first.isnan(), loss, first)

    def _find_first_losses(self, shared: Tensor) -> None:
        """Evaluate those that are still unknown, unless a client's first round tells them."""
        if self.how.first_loss == "first_round":
            return
        for own in self._seated:
            first = own.kind.shelf.table(FIRST_LOSS)
            unknown = first[own.rows].isnan()
            if bool(unknown.any()):
                new = own.only(unknown.nonzero()[:, 0].cpu().numpy())
                first[new.rows] = self._measuring.first_losses(shared, new)

    def _in_turn(self, shared: Tensor, round_number: int, active: Sequence[str]) -> Reports:
        """A round by the loop, which finds out whose numbers are not finite."""
        loop = self._loop(active)
        some = loop.run_clients(shared, round_number, active)
        self._take_over(loop)
        places = torch.from_numpy(self.registry.places(active)).to(self.device)
        return spread(some, places, self._sizes, some.failed)

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
