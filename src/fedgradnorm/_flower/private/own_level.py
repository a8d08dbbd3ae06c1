"""A client's own level: the run's weighting with one row, moved by sums that come to it.

A round's level is known when its second sums are, and these come with the next order. Until then
the state holds what the round is worked out from again (``pending``).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedgradnorm._flower.private.told_sums import parted
from fedgradnorm._flower.wire.messages import Refused
from fedgradnorm.weighting import Signals
from fedgradnorm.weighting._base import Summed

COLUMNS = ("size", "loss", "loss_ratio", "gauge_norm")


def sizes_of(weighting: Summed) -> dict[str, int]:
    """How many numbers an update's sums have, by kind; the weighting is left as it is."""
    trial = copy.deepcopy(weighting)
    ones = torch.ones(len(trial.clients), dtype=torch.float64)
    first = trial.first(Signals(ones > 0, ones, ones, ones, ones))
    second = trial.second(Signals(ones > 0, ones, ones, ones, ones), first.sum(dim=1))
    return {"coefficient": 1, "second": len(second), "first": len(first)}


class OwnLevel:
    """The weighting of one client."""

    def __init__(self, weighting: Summed, name: str, largest_ratio: float) -> None:
        weighting.bind([name])
        self.weighting, self.largest_ratio = weighting, largest_ratio
        self.sizes = sizes_of(weighting)
        self.initial: dict[str, Any] = {
            "rounds": 0,
            "weighting": weighting.state_dict(),
            "growth": 1.0,
            "loud": 0.0,
            "pending": None,
        }

    def first(self, state: Mapping[str, Any], reported: Mapping[str, float]) -> list[float]:
        """This client's part of the first sums."""
        self.weighting.load_state_dict(state["weighting"])
        numbers = self.weighting.first(self.signals(reported), state["loud"])[:, 0]
        if not torch.isfinite(numbers).all():
            raise Refused("it has no weight: the method's number for this client is not finite")
        return [float(number) for number in numbers]

    def second(
        self,
        state: Mapping[str, Any],
        reported: Mapping[str, float],
        used: Sequence[float],
        ahead: bool,
    ) -> tuple[float, list[float]]:
        """The coefficient of its update, and its part of an update's sums.

        What was in this round's first sums is not summed again, but for the count: who is lost
        between the sums would be their difference.
        """
        first = self.first(state, reported)
        second = self.weighting.second(self.signals(reported), _tensor(used))[:, 0]
        coefficient = float(self.weighting.coefficient(state["growth"])[0])
        if not 0 < coefficient < float("inf"):
            raise Refused(f"it has no weight: its coefficient would be {coefficient!r}")
        again = first if ahead else [first[0], *(0.0 for _ in first[1:])]
        return coefficient, [coefficient, *map(float, second), *again]

    def settled(
        self, state: Mapping[str, Any], numbers: Sequence[float]
    ) -> tuple[dict[str, Any], dict[str, float]]:
        """The state after the pending round, and the client's own numbers of it."""
        pending, sums = state["pending"], parted(numbers, self.sizes)
        ahead = pending["ahead"]
        coefficient, _ = self.second(state, pending["reported"], pending["used"], ahead)
        first, second = _tensor(sums["first"]), _tensor(sums["second"])
        self.weighting.settle(second, first if ahead else None)
        held = self.weighting.held
        row = {
            "weight": coefficient * sums["first"][0] / sums["coefficient"][0],
            "held": 0 if held is None else int(held[0]),
        }
        after = {
            "rounds": state["rounds"],
            "weighting": self.weighting.state_dict(),
            "growth": self.weighting.growth(second),
            "loud": (sums["first"] if ahead else pending["used"])[1],
            "pending": None,
        }
        return after, row

    def signals(self, reported: Mapping[str, float]) -> Signals:
        """What it reported, as the weighting reads it."""
        columns = {key: _tensor([reported[key]]) for key in COLUMNS}
        columns["loss_ratio"] = columns["loss_ratio"].clamp_max(self.largest_ratio)
        return Signals(torch.ones(1, dtype=torch.bool), **columns)


def _tensor(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.float64)
