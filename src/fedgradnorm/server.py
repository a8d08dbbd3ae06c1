"""The server's part of a round: weigh the clients, average their updates, step the network."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedgradnorm import optimizers
from fedgradnorm.fusing import Fused
from fedgradnorm.reports import Reports
from fedgradnorm.weighting import Signals, Weighting
from fedgradnorm.weighting.base import only

Aggregate = Literal["mean", "by_size"]
Order = Literal["new", "old"]


class ServerState:
    """What the server keeps between rounds: ``shared``, its optimiser, and the weighting."""

    def __init__(
        self,
        shared: Tensor,
        weighting: Weighting,
        optimizer: Mapping[str, Any],
        *,
        aggregate: Aggregate = "mean",
        order: Order = "new",
    ) -> None:
        self.shared = nn.Parameter(shared.clone())
        self.weighting = weighting
        self.optimizer = optimizers.build([self.shared], optimizer)
        self.aggregate, self.order = aggregate, order
        self.weigh = weigh

    def fuse(self) -> None:
        """Let the compiler make few kernels of the many small ones."""
        self.weigh = Fused(weigh)
        optimizers.fuse(self.optimizer)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on, as copies."""
        return copy.deepcopy(
            {
                "shared": self.shared.data,
                "optimizer": self.optimizer.state_dict(),
                "weighting": self.weighting.state_dict(),
            }
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""
        if state["shared"].shape != self.shared.shape:
            raise ValueError(f"a shared network of shape {tuple(state['shared'].shape)}")
        self.shared.data.copy_(state["shared"])
        optimizers.restore(self.optimizer, state["optimizer"])
        self.weighting.load_state_dict(state["weighting"])


def server_round(server: ServerState, reports: Reports) -> Tensor:
    """Algorithm 2, server part: new weights p, then one step on g = (1/N) sum_i p_i update_i.

    ``order="old"`` steps the network with the weights from before this round, as the centralised
    GradNorm does. A weighting that gives a direction of its own is followed; ``order`` and
    ``aggregate`` say nothing then. Returns the weights after the round, one per client.
    """
    signals = reports.signals(server.weighting.needs)
    weights, share = server.weigh(server.weighting, signals, server.order, server.aggregate)
    direction = server.weighting.direction(signals)
    if direction is None:
        direction = reports.aggregate(share)
    server.shared.grad = direction
    server.optimizer.step()
    return weights


def weigh(
    weighting: Weighting, signals: Signals, order: Order, aggregate: Aggregate
) -> tuple[Tensor, Tensor]:
    """The weights after the round, and what each update is multiplied with."""
    before = weighting.weight.clone() if order == "old" else None
    weights = weighting.update(signals)
    return weights, coefficients(weights if before is None else before, signals, aggregate)


def coefficients(weights: Tensor, signals: Signals, aggregate: Aggregate) -> Tensor:
    """What each update is multiplied with: p_i / N, or p_i n_i / sum_j n_j with ``by_size``."""
    weights = weights.to(signals.active.device)
    share = signals.size if aggregate == "by_size" else torch.ones_like(weights)
    share = only(signals.active, share)
    return only(signals.active, weights * share) / share.sum()
