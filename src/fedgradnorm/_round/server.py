"""The server's part of a round: weigh the clients, average their updates, step the network."""

from __future__ import annotations

import copy
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
from fedgradnorm._state.layout import Layout
from fedgradnorm.weighting import Signals, Weighting
from fedgradnorm.weighting._base import only

Aggregate = Literal["mean", "by_size"]
Order = Literal["new", "old"]


class ServerState:
    """What the server keeps between rounds: ``shared``, its optimiser, and the weighting.

    With ``bounds``, for clients that nobody vouches for, one client moves ``shared`` only so far;
    ``cuts`` says what was over its bound in the last round. That takes every client's update, so an
    engine that holds none refuses it. ``afterwards`` is what else a round ends with, given the
    reports and the new weights. It may be captured into a GPU graph, so it decides nothing on the
    host.
    """

    def __init__(
        self,
        shared: Tensor,
        weighting: Weighting,
        optimizer: Mapping[str, Any],
        *,
        aggregate: Aggregate = "mean",
        order: Order = "new",
        bounds: Bounds | None = None,
        rates: Rates | None = None,
    ) -> None:
        self.shared = shared.detach().clone()
        self.weighting = weighting
        layout = Layout({"shared": shared.shape})
        self.optimizer = optimizers.make(optimizer, layout)
        self.moments = {k: v[None].clone() for k, v in self.optimizer.start(self.shared).items()}
        self._options: Mapping[str, Any] | None = None
        self.aggregate, self.order = aggregate, order
        self.weigh = weigh
        self.bounds, self.cuts = bounds, list[Cut]()
        self.rates = Rates(None, optimizer) if rates is None else rates
        self.afterwards: Callable[[Reports, Tensor], None] | None = None

    def begin_round(self, round_number: int) -> None:
        """Step with the rate of this round from now on."""
        self._options = self.rates.at(round_number) if self.rates else None

    def step(self, direction: Tensor) -> None:
        """Move the shared network along a direction."""
        self.optimizer.step(self.shared[None], direction[None], self.moments, self._options)

    def fuse(self) -> None:
        """Let the compiler make few kernels of the many small ones."""
        self.weigh = Fused(weigh)

    def tensors(self) -> list[Tensor]:
        """Every tensor that a round changes in place."""
        return [self.shared, *self.moments.values(), *self.weighting.tensors()]

    def state_dict(self, weighting: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Everything needed to go on, as copies; ``weighting`` if its state is told otherwise."""
        return {
            "shared": self.shared.clone(),
            "optimizer": {key: value.clone() for key, value in self.moments.items()},
            "weighting": weighting or copy.deepcopy(self.weighting.state_dict()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state saved by :meth:`state_dict`."""
        if state["shared"].shape != self.shared.shape:
            raise ValueError(f"a shared network of shape {tuple(state['shared'].shape)}")
        found = {key: value.shape for key, value in state["optimizer"].items()}
        if found != {key: value.shape for key, value in self.moments.items()}:
            raise ValueError(f"an optimizer that keeps {sorted(found)}")
        self.shared.copy_(state["shared"])
        for key, value in state["optimizer"].items():
            self.moments[key].copy_(value)
        self.weighting.load_state_dict(state["weighting"])


def server_round(server: ServerState, reports: Reports) -> Tensor:
    """Algorithm 2, server part: new weights p, then one step on g = (1/N) sum_i p_i update_i.

    Returns the weights after the round, one per client.
    """
    weights, direction = weighed(server, reports)
    server.step(direction)
    if server.afterwards is not None:
        server.afterwards(reports, weights)
    return weights


def weighed(server: ServerState, reports: Reports) -> tuple[Tensor, Tensor]:
    """The weights after the round, one per client, and the direction g of the server's step.

    ``order="old"`` steps the network with the weights from before this round, as the centralised
    GradNorm does. A weighting that gives a direction of its own is followed; ``order`` and
    ``aggregate`` say nothing then.
    """
    signals = reports.signals(server.weighting.needs)
    if server.bounds is not None:
        signals, server.cuts = server.bounds.clipped(signals)
    weights, share = server.weigh(server.weighting, signals, server.order, server.aggregate)
    if server.bounds is not None:
        signals, share = _bounded(server, server.bounds, reports, signals, share)
    direction = None
    if type(server.weighting).direction is not Weighting.direction:
        direction = server.weighting.direction(signals.among(len(weights)))
    if direction is None:
        direction = reports.aggregate(share)
    return weights, direction


COLUMNS = ("loss", "loss_ratio", "gauge_norm", "weight", "held")


def columns(server: ServerState, reports: Reports, weights: Tensor) -> dict[str, Tensor]:
    """What is written down of a round, a number per client of the reports: see ``COLUMNS``."""
    held = server.weighting.held
    if reports.rows is not None:
        weights = weights[reports.rows]
        held = None if held is None else held[reports.rows]
    return {
        "loss": reports.loss,
        "loss_ratio": reports.loss_ratio,
        "gauge_norm": reports.gauge_norm,
        "weight": weights,
        "held": torch.zeros_like(weights) if held is None else held.to(weights.dtype),
    }


def _bounded(
    server: ServerState, bounds: Bounds, reports: Reports, signals: Signals, share: Tensor
) -> tuple[Signals, Tensor]:
    """What each update is multiplied with, within the bounds; so too the updates of ``signals``."""
    length = only(signals.active, reports.gradients().double().norm(dim=1))
    limited, cuts = bounds.limited(share, length, server.weighting.spread)
    server.cuts = server.cuts + cuts
    if cuts and signals.gradients is not None:  # a method with a direction of its own reads these
        factor = torch.where(share == 0, 0, limited / share)
        rows = signals.gradients * (factor / factor.max()).to(signals.gradients.dtype)[:, None]
        signals = replace(signals, gradients=rows)
    return signals, limited


def weigh(
    weighting: Weighting, signals: Signals, order: Order, aggregate: Aggregate
) -> tuple[Tensor, Tensor]:
    """The weights of all after the round, and what each update is multiplied with."""
    before = signals.of(weighting.weight).clone() if order == "old" else None
    weights = weighting.update(signals)
    now = signals.of(weights) if before is None else before
    return weights, coefficients(now, signals, aggregate)


def coefficients(weights: Tensor, signals: Signals, aggregate: Aggregate) -> Tensor:
    """What each update is multiplied with: p_i / N, or p_i n_i / sum_j n_j with ``by_size``."""
    weights = weights.to(signals.active.device)
    share = signals.size if aggregate == "by_size" else torch.ones_like(weights)
    share = only(signals.active, share)
    return only(signals.active, weights * share) / share.sum()
