"""A client's own level: the run's weighting with one row, updated from secure sums.

A round's level is known once its second sums are, and these arrive with the next order. Until then
the state holds what the round is recomputed from (``pending``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedgradnorm._errors import FedGradNormError
from fedgradnorm._flower.private.verified_sums import PRESENT, RANGE, Sums, chained, usable
from fedgradnorm._masking.roster import Phase
from fedgradnorm._round.reports import SENT
from fedgradnorm.weighting import Signals, Weighting
from fedgradnorm.weighting._secure_sums import SecureSums, secure_sums

Sizes = dict[Phase, dict[str, int]]


class NoPart(FedGradNormError):
    """This client has nothing to add to a sum; the text stays in its own log."""


def sizes_of(sums: SecureSums) -> Sizes:
    """How many numbers are summed in each phase, by kind."""
    first, second = sums.sizes
    signals = {PRESENT: 1, "first": first}
    return {
        Phase.SIGNALS: signals,
        Phase.UPDATE: {PRESENT: 1, "coefficient": 1, "second": second, "first": first},
    }


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
            "pending": None,
            "chain": "",  # all sums of the run so far, as this client knows them
            "known": 0,  # rounds that are in it
        }

    def nothing(self, phase: Phase) -> list[float]:
        """What a client adds that could not train: that it is there."""
        return [1.0, *(0.0 for _ in range(sum(self.sizes[phase].values()) - 1))]

    def first(self, state: Mapping[str, Any], reported: Mapping[str, float]) -> list[float]:
        """This client's part of the first sums."""
        return [1.0, *self._first(state, reported)]

    def _first(self, state: Mapping[str, Any], reported: Mapping[str, float]) -> list[float]:
        self.weighting.load_state_dict(state["weighting"])
        numbers = self.sums.first(self.signals(reported)).tolist()
        if not all(math.isfinite(x) and abs(x) < RANGE for x in numbers):
            raise NoPart("it has no weight: the method's number for this client is not finite")
        return [float(number) for number in numbers]

    def second(
        self,
        state: Mapping[str, Any],
        reported: Mapping[str, float],
        used: Sequence[float],
        ahead: bool,
    ) -> tuple[float, list[float], bool]:
        """The coefficient of its update, this client's part of an update's sums, and if it moved.

        What was in this round's first sums is not summed again, except the count: the difference
        would reveal a client that drops out between the two sums. With sums that lead nowhere
        (``used`` is empty, or a liar added to them) the level stays as it is.
        """
        first = self._first(state, reported)
        coefficient, second, moved = math.nan, list[float](), False
        if used:
            second = self.sums.second(_tensor(used)).tolist()
            coefficient = float(self.sums.coefficient(state["growth"])[0])
            moved = all(0 <= x < RANGE for x in second) and 0 < coefficient < RANGE
        if not moved:
            self.weighting.load_state_dict(state["weighting"])
            coefficient = float(self.weighting.weight[0]) * state["growth"]
            second = [0.0] * self.sums.sizes[1]
        if not 0 < coefficient < RANGE:
            raise NoPart(f"it has no weight: its coefficient would be {coefficient!r}")
        again = first if ahead else [first[0], *(0.0 for _ in first[1:])]
        return coefficient, [1.0, coefficient, *second, *again], moved

    def settled(
        self, state: Mapping[str, Any], sums: Sums
    ) -> tuple[dict[str, Any], dict[str, float]]:
        """The state after the pending round, and the client's own numbers of it."""
        pending = state["pending"]
        chain = chained(pending["chain"], [sums.digest])
        after = {**state, "pending": None, "chain": chain, "known": pending["round"] + 1}
        parts = usable(sums.numbers, self.sizes[Phase.UPDATE], len(sums.names))
        if pending["failed"]:
            return after, {}
        ahead, used = pending["ahead"], pending["used"]
        coefficient, _, moved = self.second(state, pending["reported"], used, ahead)
        row = {"weight": coefficient, "weight_frozen": 0}
        if parts:
            row["weight"] *= parts["first"][0] / parts["coefficient"][0]
        if not parts or not moved:
            return after, row
        first, second = _tensor(parts["first"]), _tensor(parts["second"])
        self.sums.finish(second, first if ahead else None)
        if not 0 < float(self.weighting.weight[0]) < RANGE:
            return after, row
        frozen = self.weighting.frozen
        row["weight_frozen"] = 0 if frozen is None else int(frozen[0])
        more = {"weighting": self.weighting.state_dict(), "growth": self.sums.growth(second)}
        return {**after, **more}, row

    def signals(self, reported: Mapping[str, float]) -> Signals:
        """What the client reported, as the weighting reads it."""
        columns = {key: _tensor([reported[key]]) for key in ("size", *SENT)}
        columns["loss_ratio"] = columns["loss_ratio"].clamp_max(self.largest_ratio)
        return Signals(torch.ones(1, dtype=torch.bool), **columns)


def _tensor(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.float64)
