"""A round as one GPU graph: some hundred small kernels, launched by a single call.

The whole round is captured, clients and server: forward, heads, gauge norms, weights, backward,
optimiser. Data, batches and results stay on the device; results of many rounds are fetched at once.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar
from weakref import WeakSet

import torch
from torch import Tensor

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._engines.batched.assembly import Assembly
from fedgradnorm._engines.batched.plan import Plan
from fedgradnorm._round.client_state import ClientState
from fedgradnorm._round.server import COLUMNS, ServerState

log = logging.getLogger("fedgradnorm")

WARM_ROUNDS = 3  # ordinary ones before a graph is captured: moments and first losses must exist
WARM_AGAIN = 32  # and before another one, for fewer clients: a capture takes as long as some rounds

OneRound = Callable[[Tensor, Plan], Mapping[str, Tensor]]
"""A plan's round on some rows, the server's part too; a number per client in each column."""


class CapturedRounds:
    """Rounds of the same clients, replayed from a graph that was captured once.

    ``changed`` is every tensor that ``one_round`` changes, ``learnt`` those that must be finite.
    """

    LONGEST = 512  # rounds whose results are kept on the device
    _all: ClassVar[WeakSet[CapturedRounds]] = WeakSet()

    def __init__(
        self,
        clients: Assembly,
        active: Sequence[str],
        one_round: OneRound,
        changed: Sequence[Tensor],
        learnt: Sequence[Tensor],
    ) -> None:
        self._windows, device = clients.windows, clients.device
        self._changed, self._learnt = list(changed), list(learnt)
        self._plan = clients.planner.plan(active)
        shape = (self.LONGEST, *self._windows.coming(0, 1).shape[1:])
        self._rows = torch.zeros(shape, dtype=torch.int64, device=device)
        self._slot = torch.zeros(1, dtype=torch.int64, device=device)
        results = (self.LONGEST, len(COLUMNS), len(active))
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
        if self._plan.columns is not None:
            rows = rows[:, self._plan.columns]
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
    """Many rounds of the same clients with one call, once a few ordinary ones have gone well."""

    def __init__(self) -> None:
        self._captured: CapturedRounds | None = None
        self._who: tuple[str, ...] = ()  # who took part in the last rounds that went well
        self._warm = 0  # how many of those were ordinary
        self._never = False

    def burst(self, clients: Assembly, servers: Sequence[ServerState]) -> int:
        """How many: one, if anything of a round is decided on the host.

        A weighting may do so, some optimisers do, and a schedule does: a graph has one rate.
        """
        if clients.device.type != "cuda" or clients.loop.rates or self._never:
            return 1
        heads = (state.optimizer for state in clients.loop.states.values())
        steps = [*(server.optimizer for server in servers), *heads]
        fixed = all(server.weighting.capturable and not server.rates for server in servers)
        return CapturedRounds.LONGEST if fixed and all(map(optimizers.capturable, steps)) else 1

    def went_well(self, active: Sequence[str]) -> None:
        """An ordinary round of these has brought a graph nearer."""
        if tuple(active) != self._who:
            self._who, self._captured, self._warm = tuple(active), None, min(self._warm, 0)
        self._warm += 1

    def forget(self) -> None:
        """A graph is tied to the very tensors that it was made with, and there may be others."""
        self._captured, self._warm = None, min(self._warm, 0)

    def run(
        self,
        clients: Assembly,
        first: int,
        count: int,
        active: Sequence[str],
        one_round: OneRound,
        servers: Sequence[ServerState],
    ) -> Tensor | None:
        """``count`` rounds: [round, column, client]. None, and nothing has happened, if not yet,
        or if something was not finite: ordinary rounds then find out who it was.
        """
        enough = WARM_ROUNDS if len(active) == len(clients.clients) else WARM_AGAIN
        if tuple(active) != self._who or self._warm < enough:
            return None
        clients.optimizers.link()  # who has loaded a state has other moments
        states = [clients.loop.states[name] for name in active]
        heads = [p.data for state in states for p in state.head.parameters()]
        learnt = [*(server.shared.data for server in servers), *heads]
        kept = [*(t for s in servers for t in s.tensors()), *heads, *_moments(states)]
        changed = [tensor for tensor in kept if tensor.device.type == clients.device.type]
        if self._captured is not None and not self._captured.changes(changed):
            self.forget()
            return None
        try:
            if self._captured is None:
                self._captured = CapturedRounds(clients, active, one_round, changed, learnt)
        except RuntimeError as error:  # something in a round asks the host
            log.info("rounds are not captured: %s", " ".join(str(error).split())[:120])
            self._never = True
            return None
        results = self._captured.run(first, count)
        if results is None:
            self._captured, self._warm = None, -count
            return None
        for state in states:
            state.rounds += count
        return results


def _moments(states: Sequence[ClientState]) -> list[Tensor]:
    """What the heads' optimisers keep."""
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
