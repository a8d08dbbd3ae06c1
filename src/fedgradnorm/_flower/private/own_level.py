"""A client's own level: the run's weighting with one row, updated from secure sums.

A round's level is known once its second sums are, and these arrive with the next order. Until then
the state holds what the round is recomputed from (``pending``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedgradnorm._flower.private.told_sums import parted
from fedgradnorm._flower.wire.messages import Refused
from fedgradnorm._round.reports import SENT
from fedgradnorm.weighting import Signals, Weighting
from fedgradnorm.weighting._secure_sums import SecureSums, secure_sums


def sizes_of(sums: SecureSums) -> dict[str, int]:
    """How many numbers are summed with an update, by kind."""
    first, second = sums.sizes
    return {"coefficient": 1, "second": second, "first": first}


class OwnLevel:
    """The weighting of one client."""

    def __init__(self, weighting: Weighting, name: str, largest_ratio: float) -> None:
        weighting.bind([name])
        self.weighting, self.sums = weighting, secure_sums(weighting)
        self.sizes, self.largest_ratio = sizes_of(self.sums), largest_ratio
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
        numbers = self.sums.first(self.signals(reported), state["loud"])
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
        """The coefficient of its update, and this client's part of an update's sums.

        What was in this round's first sums is not summed again, except the count: the difference
        would reveal a client that drops out between the two sums.
        """
        first = self.first(state, reported)
        second = self.sums.second(_tensor(used))
        coefficient = float(self.sums.coefficient(state["growth"])[0])
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
        self.sums.finish(second, first if ahead else None)
        frozen = self.weighting.frozen
        row = {
            "weight": coefficient * sums["first"][0] / sums["coefficient"][0],
            "weight_frozen": 0 if frozen is None else int(frozen[0]),
        }
        after = {
            "rounds": state["rounds"],
            "weighting": self.weighting.state_dict(),
            "growth": self.sums.growth(second),
            "loud": (sums["first"] if ahead else pending["used"])[1],
            "pending": None,
        }
        return after, row

    def signals(self, reported: Mapping[str, float]) -> Signals:
        """What the client reported, as the weighting reads it."""
        columns = {key: _tensor([reported[key]]) for key in ("size", *SENT)}
        columns["loss_ratio"] = columns["loss_ratio"].clamp_max(self.largest_ratio)
        return Signals(torch.ones(1, dtype=torch.bool), **columns)


def _tensor(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.float64)
