"""All clients in one pass: with one shared step, FedGradNorm costs what joint training costs.

At the start of a round all clients hold the same shared network, so one forward pass serves them
all. The last layer's gradient comes first in a backward pass: each client's gauge norm is measured
there, the weights are moved, each client's part of the signal is scaled by p_i / N, and ONE
backward pass gives the aggregate. Nobody's full gradient is ever formed, also where the weighting
needs all inner products of them: see products.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedgradnorm.engines.batched import BatchedEngine, Plan
from fedgradnorm.engines.passes import AutogradPass, Pass
from fedgradnorm.engines.products import ProductPass
from fedgradnorm.errors import ConfigError
from fedgradnorm.fusing import Fused
from fedgradnorm.reports import Reports


@dataclass(frozen=True)
class JointReports(Reports):
    """Reports that hold one forward pass instead of N gradients."""

    run: Pass
    owner: Tensor  # the client of each row

    def aggregate(self, coefficients: Tensor) -> Tensor:
        """sum_i c_i update_i, by one backward pass."""
        return self.run.backward(coefficients, self.owner)

    def gradients(self) -> Tensor:
        """Refused: this engine has no single client's update."""
        raise ConfigError("engine 'joint' forms no single gradients; use engine='loop'")

    def gram(self) -> Tensor:
        """update_i . update_j for all pairs of clients, where the engine was made for it."""
        if not isinstance(self.run, ProductPass):
            return super().gram()
        return self.run.gram(self.owner, len(self.active))


def in_order(
    losses: Sequence[Tensor], squared: Sequence[Tensor], positions: Tensor, clients: int
) -> tuple[Tensor, Tensor]:
    """Losses and gauge norms in the order of the clients, 0 where nothing was measured."""
    found = torch.stack([torch.cat(list(losses)), torch.cat(list(squared))]).double()
    loss, total = found.new_zeros(2, clients).index_copy_(1, positions, found).unbind()
    return loss, total.sqrt()


class JointEngine(BatchedEngine):
    """One forward and one backward pass for everybody."""

    name = "joint"

    def __init__(
        self, *arguments: Any, gauge: Sequence[str], products: bool = False, **settings: Any
    ) -> None:
        super().__init__(*arguments, gauge=gauge, **settings)
        self._in_order: Callable[..., tuple[Tensor, Tensor]] = in_order
        self._any: Pass = (ProductPass if products else AutogradPass)(self.front, gauge)
        if products:
            self._dense = None  # which has no inner products

    def fuse(self) -> None:
        """Let the compiler make few kernels of the many small ones."""
        for group in self.groups:
            group.fuse()
        if self._dense is not None:
            self._dense.fuse()
        self._in_order = Fused(in_order)

    def work(self, shared: Tensor, rows: Tensor, plan: Plan) -> Reports:
        """One round of the clients in ``plan``."""
        run = self._dense or self._any
        output = run.forward(shared, self.inputs[rows[0]])
        if not self.how.together:
            later = self.frozen_features(rows, plan) if self.how.head_steps > 1 else None
            self.head_phase(lambda s: later(s) if later and s else output, rows, plan)
        losses, signal = self._signal(output, rows[0], plan)
        squared = run.measure(signal, plan.stretches)
        loss, norm = self._in_order(losses, squared, plan.positions, len(self._sizes))
        return JointReports(
            active=plan.active,
            size=self._sizes,
            loss=loss,
            loss_ratio=self.loss_ratio(loss, plan.active),
            gauge_norm=norm,
            failed=(),
            run=run,
            owner=plan.owner,
        )

    def _signal(self, z: Tensor, rows: Tensor, plan: Plan) -> tuple[list[Tensor], Tensor]:
        """Each part's losses, and d loss / d output; heads step along where all go together."""
        together = self.how.together
        if together:
            self.clear_heads()
        losses, signals = [], []
        for part in self.side_by_side(plan.parts):
            targets = self.targets(part, rows[part.rows])
            values, signal, gradients = part.group.signal(
                z[part.rows], targets, part.chosen, together
            )
            losses.append(values)
            signals.append(signal)
            if together:
                part.group.place_gradients(gradients, part.members)
        if together:
            self.step_heads()
        return losses, torch.cat(signals)
