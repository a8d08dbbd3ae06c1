"""The executors: a round of clients one at a time, under vmap, or in one joint pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm._engines.evaluator import Evaluator
from fedgradnorm._engines.examples import Batch, Block, Examples, Plan, SharedExamples
from fedgradnorm._engines.gradients import (
    BlockGradients,
    frozen_features,
    head_gradient,
)
from fedgradnorm._engines.joint import JointPass, JointReports, in_branches
from fedgradnorm._engines.parts import (
    PLACE,
    ClientPart,
    Exported,
    padded_batches,
    part_key,
)
from fedgradnorm._engines.tuning import Tuning, tune
from fedgradnorm._errors import FedGradNormError, ModelError
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
    step_own,
)
from fedgradnorm._round.private.private_gradients import FLOOR, PrivateClient, PrivateGradients
from fedgradnorm._round.reports import Reports
from fedgradnorm._round.seeding import number
from fedgradnorm._state.table import BUFFER, FIRST_LOSS, NETWORK, OWN, ROUNDS, ClientTable, Row
from fedgradnorm.models._flat import FlatNetwork, working_copy
from fedgradnorm.models._streamed import Streamed
from fedgradnorm.tasks._task import Task
from fedgradnorm.weighting import Needs

if TYPE_CHECKING:
    from fedgradnorm._federation.heads import HeadsOnDemand


@dataclass(frozen=True)
class Problem:
    """What an executor is asked to run.

    ``shares`` is False where every client trains a network of its own. ``many`` registered clients
    have rows and examples only when they are asked for.
    """

    network: nn.Module
    clients: Sequence[Client]
    heads: HeadsOnDemand
    norm_layer: Sequence[str]
    spec: LocalSpec
    device: torch.device
    batch_size: int | None
    seed: int
    needs: Needs = Needs.NOTHING
    bf16: bool = False
    shares: bool = True
    many: bool = False


@dataclass(frozen=True)
class Worked:
    """What the clients of a plan did: rows, first losses, losses and norms, group after group.

    ``updates`` are in the order of the active; None after a joint pass, which has none.
    """

    rows: list[Row]
    first: list[Tensor]
    loss: Tensor
    ratio: Tensor
    norm: Tensor
    updates: Tensor | None


class Engine:
    """Runs clients. What they keep lives in ``table``, one row per client.

    A round reads rows of the active clients, works on copies of them, and writes back those of the
    clients whose numbers are finite. So a client that fails is left as it was.

    ``pure`` networks have no dropout and no batch statistics, so that the features of an example
    depend on nothing else. ``chunk`` is how many clients' networks are stepped in one call.
    """

    capturing = False  # a CUDA graph: what the host counts is counted when it is replayed

    def __init__(
        self, problem: Problem, executor: str = "loop", pure: bool = False, chunk: int = 1
    ) -> None:
        clients, device = problem.clients, problem.device
        self.clients = {client.name: client for client in clients}
        self.names = list(self.clients)
        self.spec, self.seed, self.device = problem.spec, problem.seed, device
        self.name, self.pure, self.chunk, self.many = executor, pure, chunk, problem.many
        self.network = working_copy(problem.network, device, bf16=problem.bf16)
        self.norm_layer = _places([self.network.slices[n] for n in problem.norm_layer], device)
        self.sizes = torch.tensor([float(c.size) for c in clients], dtype=torch.float64).to(device)
        self._heads, buffers = problem.heads, self.network.buffers()
        pads = pure and (executor == "joint" or chunk > 1)
        widths = padded_batches(clients, problem.batch_size, pads)
        mixed = {width for size, width in widths.items() if size < width}
        self.examples = Examples(
            clients, self.network.module, device, batch_size=problem.batch_size, seed=problem.seed,
            steps=problem.spec.steps, pooled=not problem.many,
        )  # fmt: skip

        def width_of(client: Client) -> int:
            return widths[min(problem.batch_size or client.drawn, client.drawn)]

        def new_part(client: Client) -> ClientPart:
            head, width = problem.heads[client.name], width_of(client)
            given = problem.spec, width, width in mixed, buffers
            return ClientPart(client, self.network, head, *given)

        def first_rows(part: ClientPart, some: Sequence[Client]) -> Row:
            return part.first_rows(some, problem.heads) | {PLACE: self.examples.places(some)}

        self.table: ClientTable[ClientPart] = ClientTable(
            clients,
            device,
            key=lambda one: part_key(one, problem.heads, width_of(one), problem.many),
            new_part=new_part,
            first_rows=first_rows,
        )
        self._evaluator = Evaluator(self.table, self.examples, self.network)
        self.evaluate = self._evaluator.evaluate
        # heads and losses of the user's may draw at random, whatever the executor
        self._own_code = any(c.head is not None or c.task.has_own_loss for c in clients)
        self._several = any(c.of is not None for c in clients)  # tasks of one client
        self.private: dict[str, PrivateClient] = {}  # they work on a copy that is as it was given
        some = [client for client in clients if client.privacy is not None]
        plain = FlatNetwork(problem.network, device) if some else self.network
        for client in some:
            (x, y), part = (
                self.examples.existing(client.name, "train"),
                self.table.one(client.name)[0],
            )
            assert isinstance(x, Tensor)  # other inputs are refused before
            assert isinstance(y, Tensor)
            given = part.head, plain, (x, y), self.spec, problem.batch_size, self.seed
            self.private[client.name] = PrivateClient(client, *given)
        joint = executor == "joint"
        self._joint = JointPass(self.network, problem.norm_layer) if joint else None
        self._plan: Plan | None = None
        self._groups: dict[tuple[str, ...], list[tuple[Block, Tensor]]] = {}
        self._updates = self._gradient = self.network.vector.new_empty(0, 0)

    def set_noise(self, name: str, noise: float) -> None:
        """The noise multiplier of a private client, from whoever charges its rounds."""
        self.private[name].noise = noise

    def moved_columns(self) -> list[Tensor]:
        """Every column of the table that a round changes."""
        return [p.rows[key] for p in self.table.parts for key in [*p.moved, FIRST_LOSS, ROUNDS]]

    def rows_of(self, group: Block) -> Row:
        """Copies of what a round reads and changes of the clients of a group."""
        rows = group.part.rows
        if self.capturing and group.whole:  # a graph keeps copies of its own
            return {key: rows[key] for key in group.part.read}
        return {key: rows[key].index_select(0, group.index) for key in group.part.read}

    def plan(self, active: Sequence[str]) -> Plan:
        """Who participates, and where their rows are; kept while the participants stay the same."""
        if self._plan is not None and self._plan.active == tuple(active):
            return self._plan
        groups, places = self.table.group(active), None
        if len(active) < len(self.clients):
            places = torch.from_numpy(self.table.places(active)).to(self.device)
        turns = [torch.from_numpy(group.turns).to(self.device) for group in groups]
        order = torch.cat(turns) if turns else torch.empty(0, dtype=torch.int64)
        size = self.sizes if places is None else self.sizes[places]
        owners = tuple(range(len(active)))
        if self._several:
            first: dict[str, int] = {}
            names = [self.clients[name].owner for group in groups for name in group.names]
            owners = tuple(first.setdefault(name, k) for k, name in enumerate(names))
        once, owner = None, order
        if self._joint is not None and active:
            batches = [group.part.batch for group in groups for _ in group.names]
            once = SharedExamples.of(owners, batches, self.device)
            each = np.repeat(np.arange(len(batches)), batches)
            owner = torch.from_numpy(each).to(self.device)
        self._plan = Plan(tuple(active), groups, turns, order, places, size, owners, once, owner)
        return self._plan

    def run_clients(
        self, shared: Tensor, round_number: int, active: Sequence[str], updates: bool = False
    ) -> Reports:
        """Everybody in ``active`` works on the shared vector [P], or on networks [active, P].

        With ``updates`` the reports hold every client's update, which a joint pass does not form.
        Updates are written over by the next call.
        """
        plan = self.plan(active)
        if not active:
            none, empty = plan.size, shared.new_empty(0, shared.shape[-1])
            return Reports(none > 0, none, none, none, none, [], updates=empty, rows=plan.places)
        joint = self._joint is not None and not updates
        blocks = [joint or self.runs_at_once(group) for group in plan.groups]
        names = [n for g, here in zip(plan.groups, blocks, strict=True) if here for n in g.names]
        drawn = self.examples.batches.of_round(round_number, names) if names else {}
        batches = [
            self.examples.block(group, drawn) if here else None
            for group, here in zip(plan.groups, blocks, strict=True)
        ]
        first = None
        if self.spec.first_loss != "first_round":
            first = self._first_losses(plan, shared, round_number)
        together = self.name == "vmap" or (joint and self._own_code)  # draw from one stream
        with self._chance("noise", round_number) if together else nullcontext():
            worked = self.work(shared, plan, batches, round_number, joint, first)
        total = worked.ratio + worked.norm
        total = total + torch.cat([
            sum((row[key].sum(dim=1) for key in group.part.statistics), row[OWN].sum(dim=1))
            for group, row in zip(plan.groups, worked.rows, strict=True)
        ])  # fmt: skip
        if worked.updates is not None:
            total = total + worked.updates.sum(dim=1)[plan.order]
        fine = torch.isfinite(total)
        if bool(fine.all()):
            self.write(plan, worked)
            return self.reports(plan, worked)
        if joint:  # client by client, to leave out those that fail
            return self.run_clients(shared, round_number, active, updates=True)
        self.write(plan, worked, fine)
        return self.reports(plan, worked, fine)

    def work(
        self,
        shared: Tensor,
        plan: Plan,
        batches: Sequence[Batch | None],
        round_number: int,
        joint: bool,
        first: Sequence[Tensor] | None = None,
    ) -> Worked:
        """The clients' part of a round, on copies of their rows; nothing is decided on the host.

        ``first`` are the first losses, if they are known beyond what the table holds.
        """
        rows = [self.rows_of(group) for group in plan.groups]
        rates = self.spec.head_rates
        options = None if rates is None else rates.at(round_number)
        updates: Tensor | None = None
        for group in plan.groups:
            group.part.whole.train()
        if joint:
            assert self._joint is not None
            read = [batch for batch in batches if batch is not None]
            loss, norm = self._joint.run(
                shared, plan, rows, read, self.spec, options, self.features
            )
        else:
            count, size = len(plan.active), shared.shape[-1]
            if self.capturing:
                updates = shared.new_empty(count, size)
            else:  # kept between rounds: new memory costs more than what is written to it
                if len(self._updates) < count:
                    self._updates = shared.new_empty(count, size)
                    self._gradient = shared.new_empty(1, size)
                updates = self._updates[:count]
            pieces = list[Callable[[], list[Report]]]()
            for group, turns, row, batch in zip(
                plan.groups, plan.turns, rows, batches, strict=True
            ):
                networks = shared.expand(len(turns), -1) if shared.ndim == 1 else shared[turns]
                given = group, row, networks, updates, options
                pieces.append(
                    partial(self._in_turn, *given, round_number)
                    if batch is None
                    else partial(self._at_once, *given, batch, shared.ndim == 1, turns)
                )
            found = [report for some in in_branches(pieces, self.device) for report in some]
            loss = torch.cat([report.loss for report in found])
            norm = torch.cat([report.grad_norm for report in found])
        known = list[Tensor]()
        losses = loss.split([len(group.names) for group in plan.groups])
        for k, (group, now) in enumerate(zip(plan.groups, losses, strict=True)):
            before = group.part.rows[FIRST_LOSS][group.index] if first is None else first[k]
            if (private := self.private.get(group.names[0])) is not None:
                now = now.clamp_min(FLOOR * private.bound)
            known.append(torch.where(before.isfinite(), before, now))
        ratio = loss / torch.cat(known).clamp_min(torch.finfo(shared.dtype).tiny)
        return Worked(rows, known, loss, ratio, norm, updates)

    def _in_turn(
        self,
        group: Block,
        row: Row,
        networks: Tensor,
        updates: Tensor,
        options: Mapping[str, Any] | None,
        round_number: int,
    ) -> list[Report]:
        """The clients of one part, one after another; their rows are moved."""
        found, part = list[Report](), group.part
        for k, name in enumerate(self.examples.in_turn(group.names, round_number)):
            mine = {key: value[k : k + 1] for key, value in row.items()}
            before = {key: value.clone() for key, value in mine.items()} if self.private else {}
            into = updates[group.turns[k], None]
            counter = "noise", self.clients[name].owner, round_number
            # under vmap all clients of a round draw from one stream
            with nullcontext() if self.name == "vmap" else self._chance(*counter):
                gradients: BlockGradients | PrivateGradients
                if name in self.private:
                    gradients = self._noisy(group, k, round_number)
                else:
                    batch, task = self.examples.one(name, round_number), self.clients[name].task
                    written = into, self._gradient
                    gradients = BlockGradients(part, batch, None, task, self.pure, *written)
                work = self._work(part, gradients)
                with self._naming([name]):
                    report = local_update(work, self.spec, networks[k : k + 1], mine, options)
            if isinstance(gradients, PrivateGradients):
                report = gradients.finish(report, self.norm_layer, mine, before)
            if report.update.data_ptr() != into.data_ptr():
                into.copy_(report.update)
            found.append(report)
        return found

    def _at_once(
        self,
        group: Block,
        row: Row,
        networks: Tensor,
        updates: Tensor,
        options: Mapping[str, Any] | None,
        batch: Batch,
        one_network: bool,
        turns: Tensor,
    ) -> list[Report]:
        """The clients of one part, as many in one call as fit; their rows are moved."""
        part, names, spec = group.part, group.names, self.spec
        run, found = local_update, list[Report]()
        frozen = self.pure and one_network and not part.reaches_in
        if frozen and spec.head_steps and not spec.joint_phases:
            # heads share the network's outputs
            self.network.use(networks[0])
            steps = range(spec.head_steps)
            features = self.features(group, batch, steps)
            for k in steps:
                gradient = head_gradient(part, row, features(k), batch.y(k), own=True)[2]
                step_own(part.head_optimizer, spec, row, gradient, options)
            run = shared_phase
        for start in range(0, len(names), self.chunk):
            here = slice(start, start + self.chunk)
            mine = {key: value[here] for key, value in row.items()}
            count, into, later = len(names[here]), None, None
            if len(names) == len(updates):
                into = updates[here]
            elif count == 1 and not self.capturing:  # a graph is replayed with other turns
                into = updates[group.turns[start], None]
            if count == 1 and not self.capturing:
                later = self._gradient
            block = BlockGradients(
                part, batch.part(here), None if count == 1 and not part.padded else count,
                self.clients[names[start]].task, self.pure, into, later,
            )  # fmt: skip
            with self._naming(names[here]):
                report = run(self._work(part, block), spec, networks[here], mine, options)
            if into is None:
                updates.index_copy_(0, turns[here], report.update)
            elif report.update.data_ptr() != into.data_ptr():
                into.copy_(report.update)
            found.append(report)
        return found

    @contextmanager
    def _naming(self, names: Sequence[str]) -> Iterator[None]:
        """Name the clients on whose batches a network, head or loss of the user's fails."""
        try:
            yield
        except FedGradNormError:
            raise
        except Exception as error:
            if self.capturing:  # a graph that cannot be captured is no error
                raise
            reason = " ".join(str(error).split()) or type(error).__name__
            way = "call network.train() and try it on such a batch"
            if "more than 1 value per channel" in reason:
                way = (
                    "batch statistics need two examples: raise local.batch_size, give the client "
                    "more examples, or use LayerNorm or GroupNorm"
                )
            whose = ", ".join(map(repr, names[:5]))
            raise ModelError(
                f"client {whose}: network, head or loss fails on a training batch: {reason}; {way}"
            ) from error

    def _work(self, part: ClientPart, gradients: Gradients) -> Work:
        return Work(gradients, part.head_optimizer, part.local_optimizer, self.norm_layer)

    def _noisy(self, group: Block, k: int, round_number: int) -> PrivateGradients:
        part, private = group.part, self.private[group.names[k]]
        given = private, part.shared, part.own, part.head
        return PrivateGradients(*given, private.source(round_number))

    def features(self, group: Block, batch: Batch, steps: range) -> Callable[[int], Tensor]:
        """What the network, as it is, makes of the batches of some head steps."""
        others = self.capturing and not group.whole  # may be there when a graph is replayed
        module, examples = self.network.module, self.examples
        return frozen_features(module, examples, group, batch, steps, every_visit=others)

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
            part.put(index, new, () if self.capturing else numbers.tolist())
            if not self.capturing:
                part.known_rows.update(numbers.tolist())

    def reports(self, plan: Plan, worked: Worked, fine: Tensor | None = None) -> Reports:
        """What the server sees of a round; ``fine``: of the clients that did well."""
        table, updates = torch.stack([worked.loss, worked.ratio, worked.norm]), worked.updates
        if len(plan.groups) > 1:  # in the order of the active
            table = torch.empty_like(table).index_copy_(1, plan.order, table)
        active = torch.ones_like(plan.size, dtype=torch.bool)
        given: dict[str, Any] = {"failed": [], "rows": plan.places}
        if fine is not None:
            assert updates is not None
            active = active.index_copy(0, plan.order, fine)
            table, updates = table.where(active, 0.0), updates.where(active[:, None], 0.0)
            named = zip(plan.active, active.tolist(), strict=True)
            given["failed"] = [name for name, ok in named if not ok]
        loss, ratio, norm = table
        if updates is None:
            given |= {"joint": self._joint, "turns": plan.order}
            return JointReports(active, plan.size, loss, ratio, norm, **given)
        return Reports(active, plan.size, loss, ratio, norm, updates=updates, **given)

    def runs_at_once(self, group: Block) -> bool:
        """Whether a group's clients run in one call; private ones and sequences take turns."""
        client = self.clients[group.names[0]]
        joined = client.name in self.examples.where or self.many
        fits = joined or isinstance(client.train[0], Streamed)
        return self.name == "vmap" and client.privacy is None and fits

    def reads_at_once(self, group: Block) -> bool:
        """Whether a group's batches are one lookup in pooled examples."""
        at_once = self._joint is not None or self.runs_at_once(group)
        return at_once and all(name in self.examples.where for name in group.names)

    def seed_round(self, round_number: int) -> None:
        """Seed what dropout draws from in a round that is replayed from a graph."""
        if not self.pure and self.device.type == "cuda":
            here = torch.cuda.default_generators[torch.cuda.current_device()]
            here.manual_seed(number(self.seed, "noise", round_number) % 2**63)

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
        """F_0 of the clients, group by group."""
        found, how = [g.part.rows[FIRST_LOSS][g.index] for g in plan.groups], self.spec.first_loss
        for group, turns, first in zip(plan.groups, plan.turns, found, strict=True):
            if not bool(first.isnan().any()):
                continue
            new = first.isnan().nonzero()[:, 0]
            some = group.only(new.cpu().numpy())
            private = self.private.get(group.names[0])
            if private is not None and not private.terms.loss_share:
                first.fill_(1.0)
            elif how == "log_classes":
                known = [log_classes(self.clients[name].task) for name in some.names]
                first[new] = torch.tensor(known, dtype=torch.float64, device=self.device)
            elif private is not None:
                networks, row = (
                    shared if shared.ndim == 1 else shared[turns[0]],
                    self.rows_of(group),
                )
                noisy = self._noisy(group, 0, round_number)
                first.fill_(noisy.first_loss(networks[None], row))
            else:
                own = shared if shared.ndim == 1 else shared[turns[new]]
                together = self.name != "loop"
                first[new] = self._evaluator.training_losses(some, own, together)
        return found

    def tune_heads(self, shared: Tensor, steps: int, round_number: int) -> None:
        """``steps`` on each client's head alone, on the finished and frozen network (FedBABU).

        Batches continue with those of round ``round_number``; the network is in evaluation mode.
        """
        how = replace(self.spec, head_steps=steps, phases="alternating")
        for group in self.table.group(self.names):
            row = self.rows_of(group)
            group.part.whole.eval()
            group.part.head.train()
            for k, name in enumerate(group.names):
                own = self.table.network(name)
                networks = (shared if own is None else own)[None]
                mine = {key: value[k : k + 1] for key, value in row.items()}
                batch = self.examples.counted(name, round_number * self.spec.steps, steps)
                one = BlockGradients(group.part, batch, None, self.clients[name].task)
                with self._chance("final", name):
                    head_phase(self._work(group.part, one), how, networks, mine)
            new = {key: row[key] for key in group.part.moved}
            group.part.put(group.index, new, group.rows.tolist())

    def personalize(self, shared: Tensor, how: Tuning) -> dict[str, dict[str, Any]]:
        """Each client tunes a copy of the network and its head; what each kept, by name."""
        kept = {}
        for name in self.names:
            part, number = self.table.one(name)
            own = self.table.network(name)
            row = {key: part.rows[key][number : number + 1].clone() for key in part.moved}
            networks = (shared if own is None else own)[None].clone()
            batch = self.examples.counted(name, how.first, how.steps) if how.steps else None
            held_out = self.examples.split(name, "validation")
            task = self.clients[name].task

            def measure(part: ClientPart = part, row: Row = row, networks: Tensor = networks,
                        task: Task = task, data: Any = held_out) -> float:  # fmt: skip
                self.network.use(networks[0])
                modules = part.load({key: value[0] for key, value in row.items()})
                return evaluate(task, *modules, *data)["loss"]

            with self._chance("personal", name):
                gradients = None if batch is None else BlockGradients(part, batch, None, task)
                kept[name] = tune(
                    part, gradients, row, networks, how, measure if held_out else None
                )
            moved = bool(how.parameters) and kept[name]["step"] > 0
            self._keep(name, row, networks[0] if moved else None)
        return kept

    def _keep(self, name: str, row: Row, network: Tensor | None) -> None:
        """Write a client's row; ``network`` is its own from now on, unless it is None."""
        part, number = self.table.one(name)
        if network is not None:
            part.add_column(NETWORK, torch.full_like(network, torch.nan))
            row = row | {NETWORK: network[None]}
        part.put(torch.tensor([number], device=self.device), row, [number])

    def exported(self, name: str) -> Exported:
        """Copies of what a client has learned, as modules on the CPU."""
        part, number = self.table.one(name)
        return part.exported(number, self.table.network(name))

    def exported_all(self) -> dict[str, Exported]:
        return {name: self.exported(name) for name in self.names}

    def begin(self, name: str, parts: Mapping[str, Tensor], network: Tensor | None) -> None:
        """Start a client with these private parameters and statistics, and a network of its own."""
        part, number = self.table.one(name)
        row = {key: part.rows[key][number : number + 1].clone() for key in [OWN, *part.buffers]}
        named = part.own.views(row[OWN]) | {k.removeprefix(BUFFER): row[k] for k in part.buffers}
        for key, value in parts.items():
            if f"network.{key}" in named:
                named[f"network.{key}"].copy_(value)
        self._keep(name, row, None if network is None else network.to(self.device))

    def head_rows(self, names: Sequence[str]) -> Tensor:
        """The heads of some clients, which are of one shape, as rows.

        Linear heads of clients that never participated are drawn, which adds no row to the table.
        """
        new = [] if tuple(names) in self._groups else self.table.without_rows(names)
        drawn = self._heads.rows([self.clients[name] for name in new]) if new else None
        if drawn is None:
            groups = self._grouped(names)
            size = groups[0][0].part.heads.size
            found = self.network.vector.new_empty(len(names), size)
            for group, turns in groups:
                found[turns] = group.part.rows[OWN][group.index, :size]
            return found
        never = set(new)
        here = torch.tensor([name in never for name in names])
        found = self.network.vector.new_empty(len(names), drawn.shape[1])
        found[here] = drawn.to(found)
        if there := [name for name in names if name not in never]:
            found[~here] = self.head_rows(there)
        return found

    def set_head_rows(self, names: Sequence[str], heads: Tensor) -> None:
        for group, turns in self._grouped(names):
            group.part.rows[OWN][group.index, : heads.shape[1]] = heads.to(self.device)[turns]
            group.part.put(group.index, {}, group.rows.tolist())

    def mark(self, names: Sequence[str]) -> None:
        """Let a checkpoint hold the rows of these clients, as they are now."""
        for group in self.table.group(names):
            group.part.put(group.index, {}, group.rows.tolist())

    def _grouped(self, names: Sequence[str]) -> list[tuple[Block, Tensor]]:
        """Clients by part, and where they are among ``names``; kept, since groups stay the same."""
        key = tuple(names)
        if key not in self._groups:
            pairs = [(g, torch.from_numpy(g.turns).to(self.device)) for g in self.table.group(key)]
            self._groups[key] = pairs
        return self._groups[key]

    def only_linear_heads(self) -> bool:
        """Whether clients keep nothing else of what they have learned."""
        parts = self.table.parts
        plain = (p.linear and not p.reaches_in and NETWORK not in p.rows for p in parts)
        return not self.network.buffers() and all(plain)

    def client_state(self, name: str) -> Row:
        """A client's row, as copies; its own network only where it has one."""
        return self.table.state(name)

    def load_client(self, name: str, state: Mapping[str, Any]) -> None:
        self.table.load(name, state)

    @property
    def journal(self) -> ClientTable[ClientPart] | None:
        """The table, where a checkpoint writes only the rows that changed."""
        return self.table if self.many else None

    def state_dict(self) -> dict[str, Any]:
        """The rows of all clients that have participated so far, as copies."""
        return self.table.changed(everything=True)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the rows saved by :meth:`state_dict`; everybody else is as it began."""
        self.table.restore(state)


def _places(parts: Sequence[slice], device: torch.device) -> Tensor | slice:
    """Where some parts of a vector are; a slice, which needs no copy, if they are adjacent."""
    found = torch.cat([torch.arange(part.start, part.stop) for part in parts])
    first = int(found[0])
    if torch.equal(found, torch.arange(first, first + len(found))):
        return slice(first, first + len(found))
    return found.to(device)
