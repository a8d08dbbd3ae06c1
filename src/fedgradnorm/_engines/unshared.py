"""Clients that share nothing, in one pass: each has a network of its own, a row of one matrix.

No number of a client depends on another client, so what is not finite is one client's alone: its
round is undone, and whoever asked has the loop repeat it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm._engines.batched import Assembly, Plan
from fedgradnorm._engines.batched.snapshot import Snapshot
from fedgradnorm._engines.captured_rounds import RoundsAtOnce
from fedgradnorm._engines.passes.convolution_stack import network_stack
from fedgradnorm._engines.protocol import Engine
from fedgradnorm._engines.scores import Scores
from fedgradnorm._round.client_round import clip_factors
from fedgradnorm._round.evaluation import NUMBERS_READ, ROWS_AT_ONCE, answers
from fedgradnorm._round.reports import StackedReports

log = logging.getLogger("fedgradnorm")

LINE = 16  # numbers: 64 bytes of the shortest kind
MEASURES = 1  # the branch for what is only written down


class Unshared(Assembly):
    """Runs rounds of clients whose networks are the rows of ``vectors`` [clients, P].

    It is no engine, since there is no network that its clients share. Each client has an engine of
    its own (:meth:`engine_of`), the reference, with the same state and data.
    """

    def __init__(
        self,
        network: nn.Module,
        clients: Sequence[Client],
        heads: Mapping[str, nn.Module],
        **settings: Any,
    ) -> None:
        super().__init__(network, clients, heads, **settings)
        # Client after client as in the joint batch: the networks of a stretch of it are a slice.
        self.order = [name for group in self.groups for name in group.names]
        self._place = {name: row for row, name in enumerate(self.order)}
        self.vectors = _rows_like(self.front.vector, len(self.order))
        self._rooms: dict[str, Tensor] = {}
        self._last: tuple[Plan | None, Tensor] = None, torch.empty(0)
        rows = self.data.tensor, self.planner.plan(self.order).stretches, self.streams
        dense = self.dense is not None
        self._stack = network_stack(self.front, self.vectors, *rows, dense=dense)
        self.evaluates_together = self.device.type == "cuda"
        self._measured = _as_slice(self.gauge)
        for group in self.groups:
            group.use_kernels()
        self.at_once = RoundsAtOnce()

    def engine_of(self, name: str) -> Engine:
        """The engine of one client alone."""
        return self.loop.only(name)

    def vector_of(self, name: str) -> Tensor:
        """A client's network, as a view."""
        return self.vectors[self._place[name]]

    def run(self, round_number: int, active: Sequence[str]) -> tuple[list[str], StackedReports]:
        """A round of everybody in ``active``: names in the order of the reports' rows, and these.

        Who failed has done nothing this round. The updates are written over by the next one.
        """
        self.optimizers.link()  # a client's own engine may have loaded other moments
        self.optimizers.begin_round(self.loop.rates, round_number)
        plan = self.planner.plan(active)
        names = plan.names
        states = [self.loop.states[name] for name in names]
        before = Snapshot(states)
        for name, state in zip(names, states, strict=True):
            if state.first_loss is None:
                self.first_losses.find(self.vector_of(name), [name])
        reports = self.work(self.rows_of(round_number, plan), plan)
        heads = torch.cat([part.group.sums(part.chosen) for part in plan.parts])
        finite = torch.isfinite(reports.loss_ratio + reports.updates.sum(dim=1) + heads)
        failed = list[str]()
        for place, fine in enumerate(finite.tolist()):
            if fine:
                states[place].rounds += 1
            else:
                before.restore_one(place)
                failed.append(names[place])
        if failed:
            self.at_once.forget()  # the loop will put other tensors in the place of theirs
        else:
            self.at_once.went_well(active)
        return names, replace(reports, active=finite, failed=failed)

    def work(self, rows: Tensor, plan: Plan) -> StackedReports:
        """One round of the clients in ``plan``, a row of the reports for each part's in turn."""
        start = self._starts(plan)
        updates = self._room("updates", len(start))
        loss, ratio = self._descend(start, updates, rows, plan)
        if self.how.clip is not None:
            updates *= clip_factors(updates.norm(dim=1), self.how.clip)[:, None]
        return StackedReports(
            active=plan.active[plan.positions],
            size=self.sizes[plan.positions],
            loss=loss,
            loss_ratio=ratio,
            gauge_norm=updates[:, self._measured].norm(dim=1).double(),
            failed=(),
            updates=updates,
        )

    @torch.no_grad()
    def evaluate(self, split: str, names: Sequence[str]) -> dict[str, dict[str, float]]:
        """Loss and metrics of those who can be evaluated together, which is for a GPU.

        On a CPU one network already fills the cores, and clients are evaluated as by the loop.
        """
        scores, data = Scores(split, self.loop.host_targets), dict[str, tuple[Tensor, Tensor]]()
        for name in names if self.evaluates_together else ():
            x, y = self.loop.data[name].get(split, (None, None))
            if isinstance(x, Tensor) and isinstance(y, Tensor) and self._passes(name, x):
                data[name] = x, y
        some = sorted(data, key=lambda name: len(data[name][0]))
        for portion in _portions({name: data[name][0] for name in some}):
            try:
                z = self._features(portion, [data[name][0] for name in portion])
            except Exception as error:  # too little memory, a kernel that cannot be built
                log.info("one by one: %s", " ".join(str(error).split())[:120])
                self.evaluates_together = False
                return {}
            for name, features in zip(portion, z, strict=True):
                output = answers(self.loop.states[name].head, [features])
                scores.add(self.clients[name], output, data[name][1])
        return scores.in_order(some)

    def _passes(self, name: str, x: Tensor) -> bool:
        """Whether a client's rows pass at once, through its row of ``vectors``."""
        few = 0 < len(x) <= min(self._stack.most_rows, ROWS_AT_ONCE)
        return few and x.numel() <= NUMBERS_READ and self.loop.states[name].own is None

    def _features(self, names: Sequence[str], inputs: Sequence[Tensor]) -> list[Tensor]:
        """What each client's own network makes of its rows."""
        sizes, start, stretches = [len(x) for x in inputs], 0, list[tuple[slice, int]]()
        for size, alike in groupby(sizes):
            stop = start + size * len(list(alike))
            stretches.append((slice(start, stop), size))
            start = stop
        here = torch.tensor([self._place[name] for name in names], device=self.device)
        self.front.module.eval()
        try:
            z = self._stack.features(self.vectors[here], torch.cat(list(inputs)), stretches)
        finally:
            self.front.module.train()
        return list(z.split(sizes))

    def fuse(self) -> None:
        """Let the compiler make few kernels of the heads' many small ones."""
        for group in self.groups:
            group.fuse()

    def _room(self, kind: str, count: int) -> Tensor:
        """Rows to write to, kept: fresh memory of this size costs more than the sums in it."""
        if kind not in self._rooms:
            self._rooms[kind] = _rows_like(self.front.vector, len(self.order))
        return self._rooms[kind][:count]

    def _starts(self, plan: Plan) -> Tensor:
        """The networks of those who take part."""
        if plan.columns is None:
            return self.vectors
        if plan is not self._last[0]:  # kept: a captured round may not copy to a GPU
            rows = [self._place[name] for name in plan.names]
            self._last = plan, torch.tensor(rows, device=self.device)
        here = self._last[1]
        return self._room("starts", len(here)).copy_(self.vectors.index_select(0, here))

    def _descend(
        self, start: Tensor, mean: Tensor, rows: Tensor, plan: Plan
    ) -> tuple[Tensor, Tensor]:
        """Head steps, then local SGD from ``start``; ``mean`` gets the mean gradients.

        Step s leads to ``start`` - lr (g_1 + ... + g_s). Returns the mean losses and their ratios.
        """
        assert self.how.local_optimizer is not None
        lr, steps = self.how.local_optimizer["lr"], self.how.shared_steps
        stack, inputs, stretches = self._stack, self.data.tensor, plan.stretches
        z = stack.forward(start, inputs[rows[0]], stretches)
        if not self.how.together:
            first = z
            self.head_phase(
                lambda s: stack.features(start, inputs[rows[s]], stretches) if s else first,
                rows,
                plan,
            )
        seen = list[Tensor]()
        for number in range(steps):
            if number:
                at = torch.add(start, mean, alpha=-lr * steps, out=self._room("moved", len(start)))
                z = stack.forward(at, inputs[rows[number]], stretches)
            losses, signal = self.signal(z, rows[number], plan)
            seen += losses
            if number + 1 == steps:
                with self.streams.branch(MEASURES):  # beside the way back
                    told = self._told(seen, plan)
            stack.gradient(signal, mean, 1 / steps, add=number > 0)
        self.streams.join()
        return told

    def _told(self, losses: Sequence[Tensor], plan: Plan) -> tuple[Tensor, Tensor]:
        """The mean over all steps of each client's loss, and how far it has come."""
        loss = torch.cat(list(losses)).double().view(self.how.shared_steps, -1).mean(dim=0)
        whole = torch.zeros_like(self.sizes).index_copy_(0, plan.positions, loss)
        return loss, self.first_losses.ratio(whole, plan.active)[plan.positions]


def _portions(inputs: Mapping[str, Tensor]) -> Iterator[list[str]]:
    """Clients whose rows pass together."""
    some, rows, numbers = list[str](), 0, 0
    for name, x in inputs.items():
        rows, numbers = rows + len(x), numbers + x.numel()
        if some and (rows > ROWS_AT_ONCE or numbers > NUMBERS_READ):
            yield some
            some, rows, numbers = [], len(x), x.numel()
        some.append(name)
    if some:
        yield some


def _as_slice(places: Tensor) -> Tensor | slice:
    """Places one after another as a slice, which needs no copy."""
    first, count = int(places[0]), len(places)
    together = torch.equal(places, first + torch.arange(count, device=places.device))
    return slice(first, first + count) if together else places


def _rows_like(vector: Tensor, count: int) -> Tensor:
    """``count`` copies of a vector as rows, each at the start of a line of memory.

    So a row's products do not depend on which row it is: their last digits follow the memory.
    """
    width = -(-len(vector) // LINE) * LINE
    return vector.new_zeros(count, width)[:, : len(vector)].copy_(vector)
