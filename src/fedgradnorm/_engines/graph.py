"""Whole rounds as one CUDA graph: hundreds of small kernels, launched by a single call.

A round is captured once, clients and server: rows of the active clients are read by index, batches
by row numbers, and everything that differs between rounds is a line of one table on the device. So
a graph serves every round with the same number of active clients in each part.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedgradnorm._engines.engine import Engine
from fedgradnorm._engines.examples import Batch, Examples, Plan
from fedgradnorm._round.batches import stretches
from fedgradnorm._state.table import FIRST_LOSS

log = logging.getLogger("fedgradnorm")

DEVICES = {"cuda"}  # that have graphs
LONGEST = 512  # rounds whose results are kept on the device
WARM = 3  # ordinary rounds before one is captured: libraries choose their kernels in them

OneRound = Callable[[Engine, Plan, Sequence[Batch]], Mapping[str, Tensor]]
"""A round of a plan on some batches, the server's part too; one number per client and column."""


class Graph:
    """One captured round, and the table that says what each replay reads."""

    def __init__(
        self,
        engine: Engine,
        plan: Plan,
        one_round: OneRound,
        changed: Sequence[Tensor],
        capture: Callable[[Callable[[], None]], Callable[[], None]],
    ) -> None:
        self._engine, self._sizes = engine, [len(group.names) for group in plan.groups]
        self._form = _form(plan)
        self._reads = [
            n * engine.spec.steps * g.part.batch
            for n, g in zip(self._sizes, plan.groups, strict=True)
        ]
        clients, device = sum(self._sizes), engine.device
        # per round: index, order and places of clients, and the row numbers that they read
        width = 3 * clients + sum(self._reads)
        self._table = torch.zeros(LONGEST, width, dtype=torch.int64, device=device)
        self._slot = torch.zeros(1, dtype=torch.int64, device=device)
        self._columns: tuple[str, ...] = ()
        self._log = torch.empty(0)
        self.changed = list(changed)
        kinds = {tensor.dtype for tensor in changed}  # a kernel copies many tensors of one type
        self._live = [[tensor for tensor in changed if tensor.dtype == kind] for kind in kinds]
        self._before = [[tensor.clone() for tensor in some] for some in self._live]
        self._draws = DeviceBatches(engine.examples, plan) if plan.places is None else None
        self.fill(0, [plan], 0)
        first = self._round(plan, one_round)
        self._columns = tuple(first)
        self._log = torch.zeros(LONGEST, len(first), clients, dtype=torch.float64, device=device)
        self.restore()
        self._slot.zero_()
        self._replay = capture(lambda: self._keep(self._round(plan, one_round)))

    def fits(self, plan: Plan) -> bool:
        """Whether a round of this plan is one of the graph's."""
        return self._form == _form(plan)

    def fill(self, first: int, plans: Sequence[Plan], begin: int) -> None:
        """Write the lines of rounds ``first + begin`` and on into the table."""
        clients, end = sum(self._sizes), len(plans)
        if self._draws is not None:  # everybody, every time: rows are drawn where they are read
            if begin == 0:
                self._table[:, : 3 * clients] = _line(plans[0])
            rows = self._draws.draw(first + begin, end - begin)
            self._table[begin:end, 3 * clients :] = rows
            return
        lines = []
        for k, plan in enumerate(plans[begin:], start=first + begin):
            examples = self._engine.examples
            drawn = examples.batches.of_round(k, plan.active)
            blocks = [examples.block(group, drawn) for group in plan.groups]
            lines.append(torch.cat([_line(plan), *(block.rows.reshape(-1) for block in blocks)]))
        self._table[begin:end] = torch.stack(lines)

    def _round(self, plan: Plan, one_round: OneRound) -> Mapping[str, Tensor]:
        """The round whose line is at the slot."""
        engine, clients = self._engine, sum(self._sizes)
        line = self._table.index_select(0, self._slot)[0]
        index, order, places, rows = line.split([clients] * 3 + [sum(self._reads)])
        parts = zip(plan.groups, index.split(self._sizes), strict=True)
        given = replace(
            plan,
            groups=[replace(group, index=own) for group, own in parts],
            turns=list(order.split(self._sizes)),
            order=order,
            places=None if plan.places is None else places,
            size=engine.sizes[places],
        )
        batches = list[Batch]()
        for group, own in zip(given.groups, rows.split(self._reads), strict=True):
            shape = len(group.names), engine.spec.steps, group.part.batch
            batches.append(engine.examples.lookup(group, own.view(shape)))
        engine.capturing = True
        try:
            return one_round(engine, given, batches)
        finally:
            engine.capturing = False

    def _keep(self, found: Mapping[str, Tensor]) -> None:
        row = torch.stack([found[key] for key in self._columns])
        self._log.index_copy_(0, self._slot, row[None])
        self._slot += 1

    def restore(self) -> None:
        """Put everything back to how it was before the last rounds."""
        for now, kept in zip(self._live, self._before, strict=True):
            torch._foreach_copy_(now, kept)

    def run(self, first: int, plans: Sequence[Plan]) -> list[dict[str, list[float]]] | None:
        """Rounds of these plans; None, and nothing has happened, if a number was not finite."""
        for kept, now in zip(self._before, self._live, strict=True):
            torch._foreach_copy_(kept, now)
        self._slot.zero_()
        done = 0
        while done < len(plans):  # the next lines are drawn while the GPU works
            step = min(len(plans) - done, 64)
            self.fill(first, plans[: done + step], done)
            for k in range(done, done + step):
                self._engine.seed_round(first + k)
                self._replay()
            done += step
        floating = [t for some in self._live for t in some if t.is_floating_point()]
        # columns that hold NaN for clients that never participated
        firsts = {part.rows[FIRST_LOSS].data_ptr() for part in self._engine.table.parts}
        ends = torch._foreach_norm([t for t in floating if t.data_ptr() not in firsts])
        results, end = self._log[: len(plans)].cpu(), torch.stack([e.double() for e in ends]).cpu()
        if not (torch.isfinite(results).all() and torch.isfinite(end).all()):
            self.restore()
            return None
        return [dict(zip(self._columns, table.tolist(), strict=True)) for table in results]


def _form(plan: Plan) -> tuple[object, ...]:
    """What the plans of one graph share."""
    return plan.owners, *((id(group.part), len(group.names)) for group in plan.groups)


def _line(plan: Plan) -> Tensor:
    everybody = torch.arange(len(plan.order), device=plan.order.device)
    places = everybody if plan.places is None else plan.places
    return torch.cat([*(group.index for group in plan.groups), plan.order, places])


class Graphs:
    """Many rounds with one call, once a few ordinary ones have gone well.

    ``changed`` lists every tensor that a round changes, ``fixed`` says that nothing in the server's
    part is decided on the host.
    """

    def __init__(
        self,
        engine: Any,
        one_round: OneRound,
        changed: Callable[[Engine], list[Tensor]],
        why_not: Callable[[], str | None],
    ) -> None:
        self._engine, self._one_round = engine, one_round
        self._changed, self._server_why_not = changed, why_not
        self._graph: Graph | None = None
        self.warm = 0  # ordinary rounds that went well
        self._never = ""

    def why_not(self) -> str | None:
        """Why rounds have to be run one by one, or None if many can be run with one call."""
        engine = self._engine
        if self._never:
            return self._never
        if not isinstance(engine, Engine) or engine.device.type not in DEVICES:
            return "it is for a GPU"
        if engine.name == "loop" or engine.private or engine.many:
            return "clients run one by one, or are registered by the hundreds"
        if engine.spec.head_rates is not None:
            return "the heads' learning rate follows a schedule"
        return self._server_why_not()

    def forget(self) -> None:
        """A graph is tied to the tensors that it was made with, and there may be others."""
        self._graph, self.warm = None, 0

    def run(self, first: int, actives: Sequence[Sequence[str]]) -> list[dict[str, list[float]]]:
        """Rounds from ``first`` on, as many as fit one graph; columns of each.

        Empty, and nothing has happened, where they have to be run one by one.
        """
        engine = self._engine
        if self.warm < WARM or not all(actives) or self.why_not() is not None:
            return []
        plans = [engine.plan(active) for active in actives[:LONGEST]]
        tells = engine.spec.first_loss == "first_round"
        for group in (group for plan in plans for group in plan.groups):
            known = tells or group.part.known_rows.issuperset(group.rows.tolist())
            if not known or not engine.reads_at_once(group):
                return []
        graph = self._graph
        changed = self._changed(engine)
        if graph is not None and not (_same(graph.changed, changed) and graph.fits(plans[0])):
            graph = self._graph = None
        if graph is None:
            try:
                graph = Graph(engine, plans[0], self._one_round, changed, _captured)
            except RuntimeError as error:  # something in a round asks the host
                self._never = f"a round cannot be captured: {' '.join(str(error).split())[:120]}"
                log.info("%s", self._never)
                return []
            self._graph = graph
        fitting = next((k for k, plan in enumerate(plans) if not graph.fits(plan)), len(plans))
        results = graph.run(first, plans[:fitting])
        if results is None:
            self.forget()  # ordinary rounds find out who it was
            self.warm = -LONGEST
            return []
        for plan in plans[:fitting]:
            for group in plan.groups:
                group.part.put(group.index, {}, group.rows.tolist())
        return results


def _same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    pairs = zip(one, other, strict=False)
    return len(one) == len(other) and all(a.data_ptr() == b.data_ptr() for a, b in pairs)


def _captured(round_once: Callable[[], None]) -> Callable[[], None]:
    """Capture a call into a graph; the function that replays it."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    gc.collect()  # forgotten graphs are freed now, not while this one is captured
    was_on = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph):
            round_once()
    finally:
        if was_on:
            gc.enable()
    return graph.replay


class DeviceBatches:
    """Row numbers of all clients, group after group: those that :class:`Batches` draws.

    On a GPU with many clients, drawing on the host would keep the device waiting.
    """

    def __init__(self, examples: Examples, plan: Plan) -> None:
        batches, self._device = examples.batches, examples.device
        self._steps = batches.steps
        self._groups: list[tuple[int, int, list[tuple[int, Tensor, Tensor]]]] = []
        for group in plan.groups:
            by_size: dict[int, list[int]] = {}
            for k, name in enumerate(group.names):
                by_size.setdefault(batches.sizes[name], []).append(k)
            alike = []
            for size, members in by_size.items():
                bases = [batches.base[group.names[k]] for k in members]
                where = torch.tensor(members, device=self._device)
                alike.append((size, torch.tensor(bases, device=self._device), where))
            self._groups.append((len(group.names), group.part.batch, alike))

    def draw(self, first: int, rounds: int) -> Tensor:
        """Row numbers ``[rounds, numbers]`` from round ``first`` on."""
        found = []
        for clients, width, alike in self._groups:
            shape = rounds, clients, self._steps, width
            table = torch.zeros(shape, dtype=torch.int64, device=self._device)
            for size, bases, where in alike:
                batch = min(width, size)  # of fewer examples; the rest is padding
                reads = self._steps * batch
                drawn = stretches(bases, size, first * reads, (first + rounds) * reads)
                own = drawn.reshape(-1, rounds, self._steps, batch)
                table[:, where, :, :batch] = own.transpose(0, 1)
            found.append(table.flatten(1))
        return torch.cat(found, dim=1)
