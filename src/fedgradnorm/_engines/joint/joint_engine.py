"""All clients in one pass: with one shared step, FedGradNorm costs what joint training costs.

At the start of a round all clients hold the same shared network, so one forward pass serves them
all. The last layer's gradient comes first in a backward pass: each client's gauge norm is measured
there, the weights are moved, each client's part of the signal is scaled by p_i / N, and ONE
backward pass gives the aggregate. Nobody's full gradient is ever formed, also where the weighting
needs all inner products of them: see ``passes.inner_products``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from fedgradnorm._engines.batched import BatchedEngine, Plan
from fedgradnorm._engines.captured_rounds import RoundsAtOnce
from fedgradnorm._engines.joint.joint_reports import JointReports
from fedgradnorm._engines.joint.one_pass import in_order, one_pass
from fedgradnorm._engines.passes.autograd import AutogradPass
from fedgradnorm._engines.passes.convolution_pass import ConvolutionPass, convolution_pass
from fedgradnorm._engines.passes.inner_products import ProductPass
from fedgradnorm._engines.passes.shared_pass import Pass
from fedgradnorm._fusing import Fused
from fedgradnorm._round.reports import Reports
from fedgradnorm._round.server import COLUMNS, ServerState, columns, server_round


class JointEngine(BatchedEngine):
    """One forward and one backward pass for everybody."""

    name = "joint"

    def __init__(
        self, *arguments: Any, gauge: Sequence[str], products: bool = False, **settings: Any
    ) -> None:
        super().__init__(*arguments, gauge=gauge, **settings)
        self._in_order: Callable[..., tuple[Tensor, Tensor]] = in_order
        self._measured = gauge
        rows = sum(self.loop.batches.batch.values())
        self._has_kernels = not products and ConvolutionPass.fits(
            self.front, gauge, self.data.inputs, rows
        )
        self._pass: Pass
        if products:
            self._pass = ProductPass(self.front, gauge)
        else:
            self._pass = self.dense or AutogradPass(self.front, gauge)
        self._at_once = RoundsAtOnce()

    @property
    def conflict_obstacle(self) -> str | None:
        """It never has a single client's update."""
        return "it forms no single updates"

    def fuse(self) -> None:
        """Let the compiler make few kernels of the many small ones."""
        for group in self.groups:
            group.fuse()
        self._pass = self._convolutions() or self._pass
        self._pass.fuse()
        self._in_order = Fused(in_order)

    def _convolutions(self) -> Pass | None:
        """Kernels of our own in place of autograd, where there are any for the network."""
        if not self._has_kernels:
            return None
        parts = self.planner.plan(list(self.clients)).stretches
        return convolution_pass(self.front, self._measured, self.data.tensor, parts, self.streams)

    def burst(self, server: ServerState) -> int:
        """Many on a GPU, unless something of a round is decided on the host."""
        return self._at_once.burst(self, [server])

    def rounds(
        self, server: ServerState, first: int, actives: Sequence[Sequence[str]]
    ) -> list[dict[str, list[float]]]:
        """From a captured graph, once a few ordinary rounds have gone well with everybody."""
        everybody = all(len(active) == len(self.clients) for active in actives)
        if not everybody or self.burst(server) == 1:
            return []

        def one_round(rows: Tensor, plan: Plan) -> dict[str, Tensor]:
            reports = self.work(server.shared.data, rows, plan)
            return columns(server, reports, server_round(server, reports))

        results = self._at_once.run(
            self, first, len(actives), list(self.clients), one_round, [server]
        )
        if results is None:
            return []
        return [dict(zip(COLUMNS, table.tolist(), strict=True)) for table in results]

    def run_together(
        self, shared: Tensor, round_number: int, active: Sequence[str]
    ) -> Reports | None:
        """A round that, with everybody in it, brings a captured graph nearer."""
        reports = super().run_together(shared, round_number, active)
        if reports is not None and len(active) == len(self.clients):
            self._at_once.went_well(list(self.clients))
        return reports

    def run_in_turn(self, shared: Tensor, round_number: int, active: Sequence[str]) -> Reports:
        """By the loop, which moves tensors that a graph is tied to."""
        self._at_once.forget()
        return super().run_in_turn(shared, round_number, active)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state; what was captured is of another."""
        self._at_once.forget()
        super().load_state_dict(state)

    def work(self, shared: Tensor, rows: Tensor, plan: Plan) -> Reports:
        """One round of the clients in ``plan``."""
        run = self._pass
        losses, squared = one_pass(self, run, self.front.module, shared, rows, plan)
        loss, norm = self._in_order(losses, squared, plan.positions, len(self.sizes))
        return JointReports(
            active=plan.active,
            size=self.sizes,
            loss=loss,
            loss_ratio=self.first_losses.ratio(loss, plan.active),
            gauge_norm=norm,
            failed=(),
            run=run,
            owner=plan.owner,
        )
