"""The server's part of a round: weigh the clients, average their updates, step the network.

:func:`server_step` ends every round: in one process, over ranks and over a network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from fedgradnorm import _optimizers as optimizers
from fedgradnorm._fusing import Fused
from fedgradnorm._round.bounds import Bounds, Cut
from fedgradnorm._round.lr_schedules import Rates
from fedgradnorm._round.reports import Reports
from fedgradnorm._state.table import Layout
from fedgradnorm.weighting import Signals, Weighting
from fedgradnorm.weighting._base import only

Aggregate = Literal["mean", "by_size"]
StepWith = Literal["new", "previous"]


class ServerState:
    """What the server keeps between rounds: ``shared``, its optimizer, and the weighting.

    ``bounds`` limit how far a single untrusted client can move ``shared``; ``cuts`` lists what was
    over a bound in the last round. They need every client's update, so an executor that holds none
    rejects them. ``afterwards`` is called at the end of a round with the reports and the new
    weights. It may be captured into a GPU graph, so it must not decide anything on the host.
    """

    def __init__(
        self,
        shared: Tensor,
        weighting: Weighting,
        optimizer: Mapping[str, Any],
        *,
        aggregate: Aggregate = "mean",
        step_with: StepWith = "new",
        bounds: Bounds | None = None,
        rates: Rates | None = None,
    ) -> None:
        self.shared, self.weighting = shared.detach().clone(), weighting
        self.optimizer = optimizers.make(optimizer, Layout({"shared": shared.shape}))
        self.moments = {k: v[None].clone() for k, v in self.optimizer.start(self.shared).items()}
        self.options: Mapping[str, Any] | None = None  # of the optimizer in this round
        self.aggregate, self.step_with = aggregate, step_with
        self.bounds, self.cuts = bounds, list[Cut]()
        self.rates, self.weigh = rates, weigh
        self.afterwards: Callable[[Reports, Tensor], None] | None = None

    def begin_round(self, round_number: int) -> None:
        self.options = None if self.rates is None else self.rates.at(round_number)

    def step(self, direction: Tensor) -> None:
        """Move the shared network along a direction."""
        self.optimizer.step(self.shared[None], direction[None], self.moments, self.options)

    def fuse(self) -> None:
        """Compile the weighting's many small kernels into a few."""
        self.weigh = Fused(weigh)

    def tensors(self) -> list[Tensor]:
        """Every tensor that a round changes in place."""
        return [self.shared, *self.moments.values(), *self.weighting.tensors()]

    def state_dict(self) -> dict[str, Any]:
        return {
            "shared": self.shared.clone(),
            "optimizer": {key: value.clone() for key, value in self.moments.items()},
            "weighting": self.weighting.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["shared"].shape != self.shared.shape:
            raise ValueError(f"a shared network of shape {tuple(state['shared'].shape)}")
        found = {key: value.shape for key, value in state["optimizer"].items()}
        if found != {key: value.shape for key, value in self.moments.items()}:
            raise ValueError(f"an optimizer that keeps {sorted(found)}")
        self.shared.copy_(state["shared"])
        for key, value in state["optimizer"].items():
            self.moments[key].copy_(value)
        self.weighting.load_state_dict(state["weighting"])


def server_step(server: ServerState, reports: Reports) -> Tensor:
    """Algorithm 2, server part: new weights p, then one step on g = (1/N) sum_i p_i update_i.

    Returns the weights after the round, one per client. ``step_with="previous"`` steps the
    network with the weights from before this round, as the centralised GradNorm does. A weighting
    that computes its own direction is followed instead; ``step_with`` and ``aggregate`` have no
    effect then.
    """
    weighting, bounds = server.weighting, server.bounds
    signals = reports.signals(weighting.needs)
    if bounds is not None:
        signals, server.cuts = bounds.clipped(signals)
    weights, share = server.weigh(weighting, signals, server.step_with, server.aggregate)
    if bounds is not None:
        length = only(signals.active, reports.gradients().double().norm(dim=1))
        limited, cuts = bounds.limited(share, length, weighting.spread)
        server.cuts = server.cuts + cuts
        if cuts and signals.gradients is not None:  # a direction is computed from these
            factor = torch.where(share == 0, 0, limited / share)
            rows = signals.gradients * (factor / factor.max()).to(signals.gradients.dtype)[:, None]
            signals = replace(signals, gradients=rows)
        share = limited
    direction = None
    if type(weighting).direction is not Weighting.direction:
        direction = weighting.direction(signals.among(len(weights)))
    server.step(reports.aggregate(share) if direction is None else direction)
    if server.afterwards is not None:
        server.afterwards(reports, weights)
    return weights


def weigh(
    weighting: Weighting, signals: Signals, step_with: StepWith, aggregate: Aggregate
) -> tuple[Tensor, Tensor]:
    """All weights after the round, and the coefficient of each update."""
    before = signals.of(weighting.weight).clone() if step_with == "previous" else None
    weights = weighting.update(signals)
    now = signals.of(weights) if before is None else before
    return weights, coefficients(now, signals, aggregate)


def coefficients(weights: Tensor, signals: Signals, aggregate: Aggregate) -> Tensor:
    """The coefficient of each update: p_i / N, or p_i n_i / sum_j n_j with ``by_size``."""
    weights = weights.to(signals.active.device)
    share = signals.size if aggregate == "by_size" else torch.ones_like(weights)
    share = only(signals.active, share)
    return only(signals.active, weights * share) / share.sum()
