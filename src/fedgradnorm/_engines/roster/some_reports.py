"""Reports of a few clients, in the place of those of many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedgradnorm._errors import ConfigError
from fedgradnorm._round.reports import Reports


@dataclass(frozen=True)
class SomeReports(Reports):
    """Reports of a few clients among many."""

    some: Reports
    positions: Tensor

    def aggregate(self, coefficients: Tensor) -> Tensor:
        """sum_i c_i update_i over those who are there."""
        return self.some.aggregate(coefficients[self.positions])

    def gradients(self) -> Tensor:
        """Refused: a row for each registered client would be mostly zeros."""
        raise ConfigError("engine 'roster' keeps no gradients; use engine='loop'")


def spread(some: Reports, positions: Tensor, size: Tensor, failed: Sequence[str]) -> SomeReports:
    """What the clients at ``positions`` reported, among as many as ``size`` has numbers."""

    def among(values: Tensor) -> Tensor:
        return values.new_zeros(len(size)).index_copy_(0, positions, values)

    return SomeReports(
        active=among(some.active),
        size=size,
        loss=among(some.loss),
        loss_ratio=among(some.loss_ratio),
        gauge_norm=among(some.gauge_norm),
        failed=failed,
        some=some,
        positions=positions,
    )
