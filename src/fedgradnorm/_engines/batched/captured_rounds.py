"""A round as one GPU graph: some hundred small kernels, launched by a single call.

The whole round is captured, clients and server: forward, heads, gauge norms, weights, backward,
optimiser. Data, batches and results stay on the device; results of many rounds are fetched at once.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar
from weakref import WeakSet

import torch
from torch import Tensor

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._engines.batched.assembly import Assembly
from fedgradnorm._engines.batched.plan import Plan
from fedgradnorm._round.server import COLUMNS, ServerState

WARM_ROUNDS = 3  # ordinary ones before a graph is captured: moments and first losses must exist

OneRound = Callable[[Tensor, Plan], Mapping[str, Tensor]]
"""Everybody's round on some rows, the server's part too; a number per client in each column."""


class CapturedRounds:
    """Rounds of all clients, replayed from a graph that was captured once.

    ``changed`` is every tensor that ``one_round`` changes, ``learnt`` those that must be finite.
    """

    LONGEST = 512  # rounds whose results are kept on the device
    _all: ClassVar[WeakSet[CapturedRounds]] = WeakSet()

    def __init__(
        self,
        clients: Assembly,
        one_round: OneRound,
        changed: Sequence[Tensor],
        learnt: Sequence[Tensor],
    ) -> None:
        self._windows, device = clients.windows, clients.device
        self._changed, self._learnt = list(changed), list(learnt)
        self._plan = clients.planner.plan(list(clients.clients))
        shape = (self.LONGEST, clients.how.steps, len(self._plan.owner))
        self._rows = torch.zeros(shape, dtype=torch.int64, device=device)
        self._slot = torch.zeros(1, dtype=torch.int64, device=device)
        results = (self.LONGEST, len(COLUMNS), len(clients.clients))
        self._log = torch.zeros(results, dtype=torch.float64, device=device)
        self._graph = torch.cuda.CUDAGraph()
        kinds = {tensor.dtype for tensor in changed}  # a kernel copies many tensors of one type
        self._live = [[tensor for tensor in changed if tensor.dtype == kind] for kind in kinds]
        self._before = [[tensor.clone() for tensor in some] for some in self._live]
        torch.cuda.synchronize(device)
        if self._all:  # forgotten ones that only the collector frees
            gc.collect()
        with _no_collection(), torch.cuda.graph(self._graph):
            self._round(one_round)
        self._all.add(self)

    def changes(self, tensors: Sequence[Tensor]) -> bool:
        """Whether it changes these very tensors: others may have been put in their place."""
        same = zip(tensors, self._changed, strict=False)
        return len(tensors) == len(self._changed) and all(
            one.data_ptr() == other.data_ptr() for one, other in same
        )

    def _round(self, one_round: OneRound) -> None:
        rows = self._rows.index_select(0, self._slot)[0]
        found = one_round(rows, self._plan)
        self._log.index_copy_(0, self._slot, torch.stack([found[key] for key in COLUMNS])[None])
        self._slot += 1

    def run(self, first: int, count: int) -> Tensor | None:
        """``count`` rounds from ``first`` on; results [round, column, client], on the host.

        None if anything was not finite: then everything is as it was before.
        """
        for kept, now in zip(self._before, self._live, strict=True):
            torch._foreach_copy_(kept, now)
        done = 0
        while done < count:
            rows = self._windows.coming(first + done, count - done)
            self._rows[done : done + len(rows)].copy_(rows)
            for _ in range(len(rows)):
                self._graph.replay()
            done += len(rows)
        self._windows.coming(first + count, 1)  # asked for while the GPU works
        # What is not finite stays so in a network or a head: to look once, at the end, is enough.
        ends = torch.stack(torch._foreach_norm(self._learnt))
        results, end = self._log[:count].cpu(), ends.cpu()
        self._slot.zero_()
        if torch.isfinite(results).all() and torch.isfinite(end).all():
            return results
        for now, kept in zip(self._live, self._before, strict=True):
            torch._foreach_copy_(now, kept)
        return None


class RoundsAtOnce:
    """Many rounds of everybody with one call, once a few ordinary ones have gone well."""

    def __init__(self) -> None:
        self._captured: CapturedRounds | None = None
        self._warm = 0  # ordinary rounds in a row in which everybody took part and nobody failed

    def burst(self, clients: Assembly, servers: Sequence[ServerState]) -> int:
        """How many: one, if anything of a round is decided on the host.

        A weighting may do so, some optimisers do, and a schedule does: a graph has one rate.
        """
        if clients.device.type != "cuda" or clients.loop.rates:
            return 1
        heads = (state.optimizer for state in clients.loop.states.values())
        steps = [*(server.optimizer for server in servers), *heads]
        fixed = all(server.weighting.capturable and not server.rates for server in servers)
        return CapturedRounds.LONGEST if fixed and all(map(optimizers.capturable, steps)) else 1

    def went_well(self) -> None:
        """An ordinary round with everybody has brought a graph nearer."""
        self._warm += 1

    def forget(self) -> None:
        """A graph is tied to the very tensors that it was made with, and there may be others."""
        self._captured, self._warm = None, min(self._warm, 0)

    def run(
        self,
        clients: Assembly,
        first: int,
        count: int,
        one_round: OneRound,
        servers: Sequence[ServerState],
    ) -> Tensor | None:
        """``count`` rounds: [round, column, client]. None, and nothing has happened, if not yet,
        or if something was not finite: ordinary rounds then find out who it was.
        """
        if self._warm < WARM_ROUNDS:
            return None
        heads = [p.data for s in clients.loop.states.values() for p in s.head.parameters()]
        learnt = [*(server.shared.data for server in servers), *heads]
        kept = [*(t for s in servers for t in s.tensors()), *heads, *_moments(clients)]
        changed = [tensor for tensor in kept if tensor.device.type == clients.device.type]
        if self._captured is None:
            self._captured = CapturedRounds(clients, one_round, changed, learnt)
        elif not self._captured.changes(changed):
            self.forget()
            return None
        results = self._captured.run(first, count)
        if results is None:
            self._captured, self._warm = None, -count
            return None
        for state in clients.loop.states.values():
            state.rounds += count
        return results


def _moments(clients: Assembly) -> list[Tensor]:
    """What the heads' optimisers keep."""
    states = clients.loop.states.values()
    found = [v for s in states for one in s.optimizer.state.values() for v in one.values()]
    return [moment for moment in found if isinstance(moment, Tensor)]


@contextmanager
def _no_collection() -> Iterator[None]:
    """To free a forgotten graph while another one is captured spoils the capture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
