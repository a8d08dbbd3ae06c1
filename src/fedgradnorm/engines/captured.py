"""A round as one GPU graph: some hundred small kernels, launched by a single call.

The whole round is captured, clients and server: forward, heads, gauge norms, weights, backward,
optimiser. Data, batches and results stay on the device; results of many rounds are fetched at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedgradnorm.engines.joint import JointEngine
from fedgradnorm.server import ServerState, server_round
from fedgradnorm.weighting import ByTask

FIELDS = ("loss", "loss_ratio", "gauge_norm", "weight", "held")


class CapturedRounds:
    """Rounds of the same clients, replayed from a graph that was captured once.

    Make one only after a few ordinary rounds: optimiser moments and first losses must exist.
    """

    LONGEST = 512  # rounds whose results are kept on the device

    def __init__(self, engine: JointEngine, server: ServerState, active: Sequence[str]) -> None:
        self.engine, self.server, self.active = engine, server, list(active)
        self._plan = engine.plan(self.active)
        shape = (self.LONGEST, engine.how.steps, len(self._plan.owner))
        self._rows = torch.zeros(shape, dtype=torch.int64, device=engine.device)
        self._slot = torch.zeros(1, dtype=torch.int64, device=engine.device)
        results = (self.LONGEST, len(FIELDS), len(engine.clients))
        self._log = torch.zeros(results, dtype=torch.float64, device=engine.device)
        self._graph = torch.cuda.CUDAGraph()
        live = _state(engine, server)
        kinds = {tensor.dtype for tensor in live}  # a kernel copies many tensors, but of one type
        self._live = [[tensor for tensor in live if tensor.dtype == kind] for kind in kinds]
        self._before = [[tensor.clone() for tensor in some] for some in self._live]
        torch.cuda.synchronize(engine.device)
        with torch.cuda.graph(self._graph):
            self._round()

    def _round(self) -> None:
        rows = self._rows.index_select(0, self._slot)[0]
        reports = self.engine.work(self.server.shared.data, rows, self._plan)
        weight = server_round(self.server, reports)
        held = self.server.weighting.held
        fields = [reports.loss, reports.loss_ratio, reports.gauge_norm, weight]
        fields.append(torch.zeros_like(weight) if held is None else held.to(weight.dtype))
        self._log.index_copy_(0, self._slot, torch.stack(fields)[None])
        self._slot += 1

    def run(self, first: int, count: int) -> Tensor | None:
        """``count`` rounds from ``first`` on; results [round, field, client], on the host.

        None if anything was not finite: then everything is as it was before.
        """
        for kept, now in zip(self._before, self._live, strict=True):
            torch._foreach_copy_(kept, now)
        done = 0
        while done < count:
            rows = self.engine.coming_rows(first + done, count - done)
            self._rows[done : done + len(rows)].copy_(rows)
            for _ in range(len(rows)):
                self._graph.replay()
            done += len(rows)
        self.engine.coming_rows(first + count, 1)  # asked for while the GPU works
        results = self._log[:count].cpu()
        self._slot.zero_()
        if torch.isfinite(results).all():
            return results
        for now, kept in zip(self._live, self._before, strict=True):
            torch._foreach_copy_(now, kept)
        return None


def _state(engine: JointEngine, server: ServerState) -> list[Tensor]:
    """Every tensor that a round changes."""
    kept = [server.optimizer.state, *(s.optimizer.state for s in engine.states.values())]
    moments = [v for state in kept for one in state.values() for v in one.values()]
    heads = [p.data for state in engine.states.values() for p in state.head.parameters()]
    weighting = server.weighting
    rows = [*weighting.rows.values()]
    if isinstance(weighting, ByTask):
        rows += weighting.inner.rows.values()
    tensors = [server.shared.data, *heads, *moments, *rows]
    return [tensor for tensor in tensors if isinstance(tensor, Tensor)]
