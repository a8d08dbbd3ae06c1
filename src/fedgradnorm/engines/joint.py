"""All clients in one pass: with one shared step, FedGradNorm costs what joint training costs.

At the start of a round all clients hold the same shared network, so one forward pass serves them
all. The last layer's gradient comes first in a backward pass: each client's gauge norm is measured
there, the weights are moved, each client's part of the signal is scaled by p_i / N, and ONE
backward pass gives the aggregate. Nobody's full gradient is ever formed, also where the weighting
needs all inner products of them: see products.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedgradnorm.engines.batched import BatchedEngine, Plan
from fedgradnorm.engines.gauge import GaugeTap
from fedgradnorm.engines.products import ProductReports, ProductTap
from fedgradnorm.errors import ConfigError
from fedgradnorm.models import FlatNetwork
from fedgradnorm.reports import Reports


@dataclass(frozen=True)
class JointReports(Reports):
    """Reports that hold one autograd graph instead of N gradients."""

    network: FlatNetwork
    output: Tensor
    signal: Tensor  # d (sum of losses) / d output
    owner: Tensor  # the client of each row

    def aggregate(self, coefficients: Tensor) -> Tensor:
        """sum_i c_i update_i, by one backward pass."""
        row = coefficients.to(self.signal.dtype)[self.owner]
        leaves = [p for p in self.network.module.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(
            self.output, leaves, self.signal * row[:, None], allow_unused=True
        )
        return self.network.flatten(gradients)

    def gradients(self) -> Tensor:
        """Refused: this engine has no single client's update."""
        raise ConfigError("engine 'joint' forms no single gradients; use engine='loop'")


class JointEngine(BatchedEngine):
    """One forward and one backward pass for everybody."""

    name = "joint"

    def __init__(
        self, *arguments: Any, gauge: Sequence[str], products: bool = False, **settings: Any
    ) -> None:
        super().__init__(*arguments, gauge=gauge, **settings)
        self.tap = GaugeTap(self.front.module, gauge)
        self.products = ProductTap(self.front.module) if products else None

    def work(self, shared: Tensor, rows: Tensor, plan: Plan) -> Reports:
        """One round of the clients in ``plan``."""
        self.front.use(shared)
        output = self.front.module(self.inputs[rows[0]])
        if not self.how.together:
            first = output.detach()
            later = self.frozen_features(rows, plan) if self.how.head_steps > 1 else None
            self.head_phase(lambda s: later(s) if later and s else first, rows, plan)
        losses, signal = self._signal(output.detach(), rows[0], plan)
        at_gauge = self.tap.signals(output, signal)
        loss, squared = torch.zeros_like(self._sizes), torch.zeros_like(self._sizes)
        for part, values in zip(plan.parts, losses, strict=True):
            loss[part.positions] = values.detach().double()
            measured = self.tap.squared(at_gauge, part.rows, part.group.batch)
            squared[part.positions] = measured.double()
        self.tap.seen.clear()  # the graph is the reports' to keep, not ours
        found: dict[str, Any] = {
            "active": plan.active,
            "size": self._sizes,
            "loss": loss,
            "loss_ratio": self.loss_ratio(loss, plan.active),
            "gauge_norm": squared.sqrt(),
            "failed": (),
            "network": self.front,
            "owner": plan.owner,
        }
        if self.products is None:
            return JointReports(**found, output=output, signal=signal)
        layers = self.products.taken(output, signal)
        self.products.seen.clear()
        return ProductReports(**found, layers=layers, wanted=self.products.layers)

    def _signal(self, z: Tensor, rows: Tensor, plan: Plan) -> tuple[list[Tensor], Tensor]:
        """Each part's losses, and d loss / d output; heads step along where all go together."""
        together = self.how.together
        if together:
            self._optimizer.zero_grad()
        losses, signals = [], []
        for part in plan.parts:
            targets = self.part_targets(part, rows)
            values, signal, gradients = part.group.signal(
                z[part.rows], targets, part.chosen, together
            )
            losses.append(values)
            signals.append(signal)
            if together:
                part.group.place_gradients(gradients, part.members)
        if together:
            self._optimizer.step()
        return losses, torch.cat(signals)
