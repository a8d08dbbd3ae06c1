"""The executors: a round of clients one at a time, under vmap, or in one joint pass."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm._engines.branches import in_branches
from fedgradnorm._engines.gradients import Batch, BlockGradients
from fedgradnorm._engines.head_phase import FrozenFeatures
from fedgradnorm._engines.joint import JointPass, JointReports
from fedgradnorm._engines.kept_clients import Block
from fedgradnorm._engines.measured_clients import MeasuredClients
from fedgradnorm._engines.parts import ClientPart, FirstHeads
from fedgradnorm._engines.tuning import tune
from fedgradnorm._round.evaluation import evaluate
from fedgradnorm._round.local_update import (
    Gradients,
    LocalSpec,
    Report,
    Work,
    head_phase,
    local_update,
    log_classes,
    shared_phase,
)
from fedgradnorm._round.private.private_gradients import FLOOR, PrivateClient, PrivateGradients
from fedgradnorm._round.reports import Padded, Reports, StackedReports
from fedgradnorm._round.seeding import number
from fedgradnorm._round.tuning import Tuning
from fedgradnorm._state.table import FIRST_LOSS, OWN, ROUNDS, Row
from fedgradnorm.models._flat import FlatNetwork
from fedgradnorm.models._streamed.reading_ahead import ReadingAhead
from fedgradnorm.models._streamed.rows import Streamed
from fedgradnorm.tasks._task import Task
from fedgradnorm.weighting import Needs


@dataclass(frozen=True)
class Plan:
    """The clients of a round by part, and where they are: nothing in it depends on the round."""

    active: tuple[str, ...]
    groups: list[Block]
    turns: list[Tensor]  # of each group, among the active
    order: Tensor  # all turns in a row
    places: Tensor | None  # of the active among all; None: all are active
    size: Tensor
    owners: list[str]

    def in_order(self, values: Tensor) -> Tensor:
        """Columns ``[..., clients]`` of group after group, in the order of the active."""
        if len(self.groups) == 1:
            return values
        return torch.empty_like(values).index_copy_(-1, self.order, values)

    @property
    def names(self) -> list[str]:
        """The clients, group after group."""
        return [name for group in self.groups for name in group.names]


@dataclass(frozen=True)
class Worked:
    """What the clients of a plan did, group after group: rows, first losses, losses and norms.

    ``updates`` is None after a joint pass, which has none.
    """

    rows: list[Row]
    first: list[Tensor]
    loss: Tensor
    ratio: Tensor
    norm: Tensor
    updates: Tensor | None

    def fine(self) -> Tensor:
        """Which clients' numbers are all finite."""
        total = self.ratio + self.norm
        if self.updates is not None:
            total = total + self.updates.sum(dim=1)
            total = total + torch.cat([row[OWN].sum(dim=1) for row in self.rows])
        return torch.isfinite(total)


class Engine(MeasuredClients):
    """Runs clients. What they keep lives in ``table``, one row per client.

    A round reads rows of the active clients, works on copies of them, and writes back those of the
    clients whose numbers are finite. So a client that fails is left as it was.
    """

    def __init__(
        self,
        network: nn.Module,
        clients: Sequence[Client],
        heads: FirstHeads,
        *,
        norm_layer: Sequence[str],
        spec: LocalSpec,
        batch_size: int | None,
        seed: int,
        needs: Needs = Needs.NOTHING,
        **settings: Any,
    ) -> None:
        given = {"norm_layer": norm_layer, "spec": spec, "batch_size": batch_size, "seed": seed}
        super().__init__(network, clients, heads, **given, **settings)
        sizes = [float(client.size) for client in clients]
        self.sizes = torch.tensor(sizes, dtype=torch.float64, device=self.device)
        self.private = self._private_clients(network, batch_size)
        self._joint: JointPass | None = None
        if self.choice.executor == "joint":
            self._joint = JointPass(self.network, norm_layer, products=Needs.GRAM in needs)
        inputs = {name: client.train[0] for name, client in self.clients.items()}
        self._ahead = ReadingAhead(self.examples.batches, inputs)
        self._plan: Plan | None = None

    def _private_clients(
        self, network: nn.Module, batch_size: int | None
    ) -> dict[str, PrivateClient]:
        """The clients that clip and add noise; they work on a copy that is as it was given."""
        names = [name for name, client in self.clients.items() if client.privacy is not None]
        plain = FlatNetwork(network, self.device) if names else self.network
        found = {}
        for name in names:
            data = self.examples.split(name, "train")
            assert data is not None
            x, y = data
            assert isinstance(x, Tensor)  # other inputs are refused before
            assert isinstance(y, Tensor)
            head = self.table.one(name)[0].head
            given = (self.clients[name], head, plain, (x, y), self.spec, batch_size, self.seed)
            found[name] = PrivateClient(*given)
        return found

    @property
    def measured_numbers(self) -> int:
        """How many parameters the measured layer has."""
        return self.network.vector[self.norm_layer].numel()

    def moved_columns(self) -> list[Tensor]:
        """Every column of the table that a round changes."""
        return [
            part.rows[key] for part in self.table.parts for key in [*part.moved, FIRST_LOSS, ROUNDS]
        ]

    def plan(self, active: Sequence[str]) -> Plan:
        """Who takes part, and where their rows are; kept while the same clients take part."""
        if self._plan is not None and self._plan.active == tuple(active):
            return self._plan
        groups, places = self.table.group(active), None
        if len(active) < len(self.clients):
            places = torch.from_numpy(self.table.places(active)).to(self.device)
        turns = [torch.from_numpy(group.turns).to(self.device) for group in groups]
        order = torch.cat(turns) if turns else torch.empty(0, dtype=torch.int64)
        size = self.sizes if places is None else self.sizes[places]
        owners = [self.clients[name].owner for group in groups for name in group.names]
        self._plan = Plan(tuple(active), groups, turns, order, places, size, owners)
        return self._plan

    def run_clients(
        self, shared: Tensor, round_number: int, active: Sequence[str], keep: bool = True
    ) -> Reports:
        """Everybody in ``active`` works on the shared vector [P], or on networks [active, P].

        With ``keep`` False nothing is written back: the round is only tried, with every update.
        """
        if not active:
            return self._nobody(shared)
        plan = self.plan(active)
        joint = self._joint is not None and keep and shared.ndim == 1
        batches = [self._batch(group, round_number) for group in plan.groups]
        first = self._first_losses(plan, shared, round_number)
        if self.name == "vmap":
            with self._chance("noise", round_number):
                worked = self.work(shared, plan, batches, first, round_number, joint)
        else:
            worked = self.work(shared, plan, batches, first, round_number, joint)
        fine = worked.fine()
        if bool(fine.all()):
            if keep:
                self.write(plan, worked)
            return self.reports(plan, worked)
        bad = {name for name, ok in zip(plan.names, fine.tolist(), strict=True) if not ok}
        if joint:
            return self._without(bad, shared, round_number, active)
        if keep:
            self.write(plan, worked, fine)
        return self.reports(plan, worked, fine, bad)

    def _nobody(self, shared: Tensor) -> Reports:
        """The reports of a round without clients."""
        none = self.sizes[:0]
        rows = torch.empty(0, dtype=torch.int64, device=self.device)
        updates = shared.new_empty(0, shared.shape[-1])
        return StackedReports(none > 0, none, none, none, none, [], updates=updates, rows=rows)

    def _batch(self, group: Block, round_number: int) -> Batch | None:
        """The examples of a group that runs in one call; others read theirs one by one."""
        at_once = self._joint is not None or self.runs_at_once(group)
        return self.examples.block(group, round_number) if at_once else None

    def work(
        self,
        shared: Tensor,
        plan: Plan,
        batches: Sequence[Batch | None],
        first: Sequence[Tensor],
        round_number: int,
        joint: bool,
    ) -> Worked:
        """The clients' part of a round, on copies of their rows; nothing is decided on the host."""
        rows = [self.rows_of(group) for group in plan.groups]
        options = self.spec.head_rates.at(round_number) if self.spec.head_rates else None
        updates: Tensor | None = None
        for group in plan.groups:
            group.part.whole.train()
        if joint:
            assert self._joint is not None
            given = [batch for batch in batches if batch is not None]
            loss, norm = self._joint.run(
                shared, plan.groups, rows, given, self.spec, options, plan.owners, self.features
            )
        else:
            pieces = [
                partial(self._group, group, row, batch, shared, turns, round_number, options)
                for group, turns, row, batch in zip(
                    plan.groups, plan.turns, rows, batches, strict=True
                )
            ]
            found = in_branches(pieces, self.device)
            report = _joined(found)
            loss, norm, updates = report.loss, report.gradient_norm, report.update
        each = zip(plan.groups, first, loss.split([len(g.names) for g in plan.groups]), strict=True)
        known = [self._first(*three) for three in each]
        ratio = loss / torch.cat(known).clamp_min(torch.finfo(shared.dtype).tiny)
        return Worked(rows, known, loss, ratio, norm, updates)

    def _first(self, group: Block, first: Tensor, loss: Tensor) -> Tensor:
        """Each client's first loss: this one if there was none."""
        if (private := self.private.get(group.names[0])) is not None:
            loss = loss.clamp_min(FLOOR * private.bound)
        return torch.where(first.isnan(), loss, first)

    def write(self, plan: Plan, worked: Worked, fine: Tensor | None = None) -> None:
        """Write back the rows of the clients that did well; None: of all."""
        start = 0
        for group, row, first in zip(plan.groups, worked.rows, worked.first, strict=True):
            part, index, numbers = group.part, group.index, group.rows
            if self.capturing and group.whole:
                part.rows[FIRST_LOSS].copy_(first)
                part.rows[ROUNDS].add_(1)
                continue
            new = {key: row[key] for key in part.moved}
            new |= {FIRST_LOSS: first, ROUNDS: part.rows[ROUNDS][index] + 1}
            if fine is not None:
                own = fine[start : start + len(index)]
                start += len(index)
                index, numbers = index[own], numbers[own.cpu().numpy()]
                new = {key: value[own] for key, value in new.items()}
            part.rows.put(index, new, () if self.capturing else numbers.tolist())
            if not self.capturing:
                part.known_rows.update(numbers.tolist())

    def reports(
        self, plan: Plan, worked: Worked, fine: Tensor | None = None, bad: Collection[str] = ()
    ) -> Reports:
        """What the server sees of a round."""
        table = torch.stack([worked.loss, worked.ratio, worked.norm])
        updates = worked.updates
        active = torch.ones_like(plan.size, dtype=torch.bool)
        if fine is not None:
            assert updates is not None
            table, updates = table.where(fine, 0.0), updates.where(fine[:, None], 0.0)
            active = plan.in_order(fine)
        loss, ratio, norm = plan.in_order(table)
        failed = [name for name in plan.active if name in bad]
        given: dict[str, Any] = {"failed": failed, "rows": plan.places}
        if updates is None:
            assert self._joint is not None
            given |= {"joint": self._joint, "turns": plan.order}
            return JointReports(active, plan.size, loss, ratio, norm, **given)
        if len(plan.groups) > 1:
            updates = torch.empty_like(updates).index_copy_(0, plan.order, updates)
        return StackedReports(active, plan.size, loss, ratio, norm, updates=updates, **given)

    def _without(
        self, bad: Collection[str], shared: Tensor, round_number: int, active: Sequence[str]
    ) -> Reports:
        """A joint pass again, without the clients that have failed."""
        plan, failed = self.plan(active), [name for name in active if name in bad]
        positions = [k for k, name in enumerate(active) if name not in bad]
        if not positions:
            zero = torch.zeros_like(plan.size)
            updates = shared.new_zeros(len(active), len(shared))
            given = (zero > 0, plan.size, zero, zero, zero, failed)
            return StackedReports(*given, updates=updates, rows=plan.places)
        some = self.run_clients(shared, round_number, [active[k] for k in positions])
        where = torch.tensor(positions, device=self.device)
        return Padded.of(some, where, [*failed, *some.failed], plan.size, plan.places)

    def runs_at_once(self, group: Block) -> bool:
        """Whether a group's clients run in one call; private ones and sequences take turns."""
        client = self.clients[group.names[0]]
        joined = self.examples.can_pool(client.name) or self.choice.many
        fits = joined or isinstance(client.train[0], Streamed)
        return self.name == "vmap" and client.privacy is None and fits

    def _group(
        self,
        group: Block,
        row: Row,
        batch: Batch | None,
        shared: Tensor,
        turns: Tensor,
        round_number: int,
        options: Mapping[str, Any] | None,
    ) -> Report:
        """The clients of one part: their rows are moved, and what they send is returned."""
        part, spec, names = group.part, self.spec, group.names
        omega = shared.expand(len(names), -1) if shared.ndim == 1 else shared[turns]
        at_once = batch if self.runs_at_once(group) else None  # a joint pass may only be tried
        features = None if at_once is None else self._frozen_features(group, shared, at_once)
        if at_once is None:
            found = []
            for k, name in enumerate(self._ahead.in_turn(names, round_number)):
                mine = {key: value[k : k + 1] for key, value in row.items()}
                with self._chance_of(name, round_number):
                    gradients = self._gradients_of_one(part, name, omega[k], mine, round_number)
                    work = self._work(part, gradients)
                    report = local_update(work, spec, omega[k : k + 1], mine, options)
                if isinstance(gradients, PrivateGradients):
                    report = gradients.finish(report, self.measured_numbers)
                found.append(report)
            return _joined(found)
        found, chunk = [], self.choice.chunk
        if features is not None:
            heads = self._work(part, features.gradients(at_once))
            head_phase(heads, spec, omega, row, options)
        run = local_update if features is None else shared_phase
        for start in range(0, len(names), chunk):
            here = slice(start, start + chunk)
            mine = {key: value[here] for key, value in row.items()}
            count = None if len(names[here]) == 1 else len(names[here])
            given = (at_once.part(here), count, self.clients[names[start]].task)
            work = self._work(part, BlockGradients(part, *given, self.choice.pure))
            found.append(run(work, spec, omega[here], mine, options))
        return _joined(found)

    def _chance_of(self, name: str, round_number: int) -> AbstractContextManager[None]:
        """A client's own chance in the loop; under vmap all clients of a round share one."""
        if self.name == "vmap":
            return nullcontext()
        return self._chance("noise", self.clients[name].owner, round_number)

    def _work(self, part: ClientPart, gradients: Gradients) -> Work:
        return Work(gradients, part.head_optimizer, part.local_optimizer, self.norm_layer)

    def _gradients_of_one(
        self, part: ClientPart, name: str, omega: Tensor, row: Row, round_number: int
    ) -> BlockGradients | PrivateGradients:
        """One client's gradients: on its own batches, or noisy ones of a private client."""
        if (private := self.private.get(name)) is not None:
            rounds = int(part.rows[ROUNDS][self.table.one(name)[1]])
            chance = private.chance_of(row[OWN][0], rounds, omega, round_number)
            return PrivateGradients(private, part.shared, part.own, part.head, chance)
        batch = self.examples.one(name, round_number)
        return BlockGradients(part, batch, None, self.clients[name].task, self.choice.pure)

    def _frozen_features(self, group: Block, shared: Tensor, batch: Batch) -> FrozenFeatures | None:
        """The shared network's outputs for the head steps, where clients can share them."""
        spec = self.spec
        if not self.choice.pure or shared.ndim != 1 or group.part.reaches_in:
            return None
        if spec.together or not spec.head_steps:
            return None
        self.network.use(shared)
        return self.features(group, batch, 0, spec.head_steps)

    def features(self, group: Block, batch: Batch, first: int, steps: int) -> FrozenFeatures:
        """What the network, as it is, makes of the batches of some head steps."""
        return FrozenFeatures(self.network.module, self.examples, group, batch, first, steps)

    def reads_at_once(self, group: Block) -> bool:
        """Whether a group's batches are one lookup in pooled examples."""
        at_once = self._joint is not None or self.runs_at_once(group)
        return at_once and all(map(self.examples.can_pool, group.names))

    def seed_round(self, round_number: int) -> None:
        """Seed what dropout draws from in a round that is replayed from a graph."""
        if not self.choice.pure and self.device.type == "cuda":
            here = torch.cuda.default_generators[torch.cuda.current_device()]
            here.manual_seed(self._noise(round_number))

    def _noise(self, *counter: object) -> int:
        return number(self.seed, "noise", *counter) % 2**63

    @contextmanager
    def _chance(self, *counter: object) -> Iterator[None]:
        """Dropout draws from torch's generator: make that a function of a counter."""
        generators = [torch.default_generator]
        if self.device.type == "cuda":
            generators.append(torch.cuda.default_generators[torch.cuda.current_device()])
        before = [generator.get_state() for generator in generators]
        try:
            for generator in generators:  # torch.manual_seed walks the stack where CUDA is unused
                generator.manual_seed(number(self.seed, *counter) % 2**63)
            yield
        finally:
            for generator, state in zip(generators, before, strict=True):
                generator.set_state(state)

    def _first_losses(self, plan: Plan, shared: Tensor, round_number: int) -> list[Tensor]:
        """F_0 of the clients, group by group; NaN where their first round will tell it."""
        found = self.known_first(plan)
        if self.spec.first_loss == "first_round":
            return found
        for group, turns, first in zip(plan.groups, plan.turns, found, strict=True):
            if not bool(first.isnan().any()):
                continue
            omega = shared.expand(len(turns), -1) if shared.ndim == 1 else shared[turns]
            if (private := self.private.get(group.names[0])) is not None:
                row = self.rows_of(group)
                first.fill_(self._private_first_loss(private, group, omega, row, round_number))
                continue
            new = first.isnan().nonzero()[:, 0]
            own = shared if shared.ndim == 1 else omega[new]
            first[new] = self.measured_first(group.only(new.cpu().numpy()), own)
        return found

    @staticmethod
    def known_first(plan: Plan) -> list[Tensor]:
        """The first losses that are known, NaN for others."""
        rows = [group.part.rows[FIRST_LOSS] for group in plan.groups]
        return [
            first.clone() if group.whole else first[group.index]
            for group, first in zip(plan.groups, rows, strict=True)
        ]

    def _private_first_loss(
        self, private: PrivateClient, group: Block, omega: Tensor, row: Row, round_number: int
    ) -> float:
        if not private.terms.loss_share:
            return 1.0
        if self.spec.first_loss == "log_classes":
            return log_classes(private.client.task)
        name, part = group.names[0], group.part
        gradients = self._gradients_of_one(part, name, omega[0], row, round_number)
        assert isinstance(gradients, PrivateGradients)
        return gradients.first_loss(omega, row)

    @property
    def conflict_obstacle(self) -> str | None:
        """Why the reports of a round do not tell the clients' conflict, or None if they do."""
        return "it forms no single updates" if self._joint is not None else None

    def tune_heads(self, shared: Tensor, steps: int, round_number: int) -> None:
        """``steps`` on each client's head alone, on the finished and frozen network (FedBABU).

        Batches continue with those of round ``round_number``; the network is in evaluation mode.
        """
        how = replace(self.spec, head_steps=steps, schedule="alternating")
        for group in self.table.group(self.names):
            row = self.rows_of(group)
            group.part.whole.eval()
            group.part.head.train()
            for k, name in enumerate(group.names):
                own = self.table.network(name)
                omega = (shared if own is None else own)[None]
                mine = {key: value[k : k + 1] for key, value in row.items()}
                batch = self.examples.counted(name, round_number * self.spec.steps, steps)
                one = BlockGradients(group.part, batch, None, self.clients[name].task)
                with self._chance("final", name):
                    head_phase(self._work(group.part, one), how, omega, mine)
            new = {key: row[key] for key in group.part.moved}
            group.part.rows.put(group.index, new, group.rows.tolist())

    def personalize(self, shared: Tensor, how: Tuning) -> dict[str, dict[str, Any]]:
        """Each client tunes a copy of the network and its head; what each kept, by name."""
        kept = {}
        for name in self.names:
            part, number = self.table.one(name)
            own = self.table.network(name)
            row = {key: part.rows[key][number : number + 1].clone() for key in part.moved}
            omega = (shared if own is None else own)[None].clone()
            batch = self.examples.counted(name, how.first, how.steps) if how.steps else None
            held_out = self.examples.split(name, "validation")
            task = self.clients[name].task

            def measure(part: ClientPart = part, row: Row = row, omega: Tensor = omega,
                        task: Task = task, data: Any = held_out) -> float:  # fmt: skip
                self.network.use(omega[0])
                front, head = part.load({key: value[0] for key, value in row.items()})
                return evaluate(task, front, head, *data)["loss"]

            with self._chance("personal", name):
                gradients = None if batch is None else BlockGradients(part, batch, None, task)
                kept[name] = tune(part, gradients, row, omega, how, measure if held_out else None)
            moved = bool(how.parameters) and kept[name]["step"] > 0
            self.keep(name, row, omega[0] if moved else None)
        return kept


def _joined(reports: Sequence[Report]) -> Report:
    """The reports of several blocks, one after another."""
    if len(reports) == 1:
        return reports[0]
    columns = ("update", "loss", "gradient_norm")
    return Report(*(torch.cat([getattr(r, key) for r in reports]) for key in columns))
