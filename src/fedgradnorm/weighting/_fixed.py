"""Weights that do not learn: equal, by data size, or given."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from numbers import Real

import torch
from torch import Tensor

from fedgradnorm._errors import ConfigError, listed
from fedgradnorm.weighting._base import Needs, Signals, Weighting

log = logging.getLogger("fedgradnorm")


class Equal(Weighting):
    """p_i = 1: FedRep's and FedPer's plain mean over clients."""

    beyond_sums = ""

    def weigh(self, signals: Signals) -> Tensor:
        return torch.ones_like(signals.active, dtype=torch.float64)


class BySize(Weighting):
    """p_i proportional to the client's number of training examples, as in FedAvg."""

    needs = Needs.SIZE
    beyond_sums = ""

    def weigh(self, signals: Signals) -> Tensor:
        return signals.size


class Static(Weighting):
    """Given weights, a positive number per client name, scaled to sum to the number of clients.

    Args:
        weights: table of a weight above 0 per client, by name (by task with weight_per="task").

    >>> weighting = Static({"landmark": 0.1, "gender": 1.0})
    """

    beyond_sums = ""

    def __init__(self, weights: Mapping[str, float]) -> None:
        super().__init__()
        if not isinstance(weights, Mapping):
            raise ConfigError(f"static weights are a number per client name, not {weights!r}")
        for name, value in weights.items():
            if not _is_number(value) or not 0 < value < float("inf"):
                raise ConfigError(
                    f"static weight of client {name!r} must be a number > 0, not {value!r}"
                )
        self.weights = dict(weights)
        self._given = torch.empty(0)

    def bind(self, clients: Sequence[str]) -> None:
        """Give each client a row; every client must have a weight."""
        missing = [name for name in clients if name not in self.weights]
        if missing:
            raise ConfigError(
                f"no static weight for client {missing[0]!r}; weights are given for: "
                f"{', '.join(self.weights) or 'nobody'}"
            )
        strangers = [name for name in self.weights if name not in clients]
        if strangers and len(clients) > 1:  # clients on their own are bound one by one
            log.warning(
                "static weights for %s are not used: the clients are %s",
                listed(list(map(repr, strangers))),
                listed(list(clients)),
            )
        super().bind(clients)
        self._given = torch.tensor([self.weights[name] for name in clients], dtype=torch.float64)

    def weigh(self, signals: Signals) -> Tensor:
        self._given = self._given.to(signals.active.device)
        return self._given


def _is_number(value: object) -> bool:
    """Whether a config, or NumPy, gave a number here."""
    return isinstance(value, Real) and not isinstance(value, bool)
