"""A round as one GPU graph: some hundred small kernels, launched by a single call.

The whole round is captured, clients and server: forward, heads, gauge norms, weights, backward,
optimiser. Data, batches and results stay on the device; results of many rounds are fetched at once.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedgradnorm._round.server import COLUMNS, ServerState, columns, server_round

if TYPE_CHECKING:
    from fedgradnorm._engines.joint.joint_engine import JointEngine


class CapturedRounds:
    """Rounds of all clients, replayed from a graph that was captured once.

    Make one only after a few ordinary rounds: optimiser moments and first losses must exist.
    """

    LONGEST = 512  # rounds whose results are kept on the device

    def __init__(self, engine: JointEngine, server: ServerState) -> None:
        self.engine, self.server = engine, server
        self._plan = engine.planner.plan(list(engine.clients))
        shape = (self.LONGEST, engine.how.steps, len(self._plan.owner))
        self._rows = torch.zeros(shape, dtype=torch.int64, device=engine.device)
        self._slot = torch.zeros(1, dtype=torch.int64, device=engine.device)
        results = (self.LONGEST, len(COLUMNS), len(engine.clients))
        self._log = torch.zeros(results, dtype=torch.float64, device=engine.device)
        self._graph = torch.cuda.CUDAGraph()
        live = [*server.tensors(), *_private(engine)]
        kinds = {tensor.dtype for tensor in live}  # a kernel copies many tensors, but of one type
        self._live = [[tensor for tensor in live if tensor.dtype == kind] for kind in kinds]
        self._before = [[tensor.clone() for tensor in some] for some in self._live]
        torch.cuda.synchronize(engine.device)
        with _no_collection(), torch.cuda.graph(self._graph):
            self._round()

    def _round(self) -> None:
        rows = self._rows.index_select(0, self._slot)[0]
        reports = self.engine.work(self.server.shared.data, rows, self._plan)
        weights = server_round(self.server, reports)
        found = columns(self.server, reports, weights)
        self._log.index_copy_(0, self._slot, torch.stack([found[key] for key in COLUMNS])[None])
        self._slot += 1

    def run(self, first: int, count: int) -> Tensor | None:
        """``count`` rounds from ``first`` on; results [round, column, client], on the host.

        None if anything was not finite: then everything is as it was before.
        """
        for kept, now in zip(self._before, self._live, strict=True):
            torch._foreach_copy_(kept, now)
        windows, done = self.engine.windows, 0
        while done < count:
            rows = windows.coming(first + done, count - done)
            self._rows[done : done + len(rows)].copy_(rows)
            for _ in range(len(rows)):
                self._graph.replay()
            done += len(rows)
        windows.coming(first + count, 1)  # asked for while the GPU works
        results = self._log[:count].cpu()
        self._slot.zero_()
        if torch.isfinite(results).all():
            return results
        for now, kept in zip(self._live, self._before, strict=True):
            torch._foreach_copy_(now, kept)
        return None


@contextmanager
def _no_collection() -> Iterator[None]:
    """Forgotten graphs are freed now: to free one while another is captured spoils the capture.

    An engine and its graph know each other, so only the garbage collector frees them.
    """
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _private(engine: JointEngine) -> list[Tensor]:
    """Every tensor of the clients that a round changes."""
    states = engine.loop.states.values()
    heads = [p.data for state in states for p in state.head.parameters()]
    moments = [v for s in states for one in s.optimizer.state.values() for v in one.values()]
    return heads + [moment for moment in moments if isinstance(moment, Tensor)]
