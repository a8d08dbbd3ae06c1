"""The best state so far: of clients that keep one round together, or of one client for itself."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, Protocol

from fedgradnorm._client import Client
from fedgradnorm._errors import TrainingError, listed

log = logging.getLogger("fedgradnorm")

SPLIT = "validation"


class Judged(Protocol):
    """Whose best state is kept: clients with validation rows, and a state to come back to."""

    names: list[str]
    clients: list[Client]

    def state_dict(self) -> dict[str, Any]:
        """The whole state, as copies."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state saved by :meth:`state_dict`."""


class Best:
    """The best state so far of clients that keep one round together.

    Evaluations are compared by the mean gain over the clients that have validation rows,

        gain = mean_i (first_i - loss_i) / max(|first_i|, |loss_i|),

    with first_i the loss of client i before training. It has no unit, so a loud client counts as
    much as a quiet one. A loss that grew without bound counts as -1, so one such client does not
    decide for all. Among equal gains the earlier one is kept. ``state`` is the whole state of the
    federation, so what is kept is what a run of so many rounds would have ended with.
    """

    def __init__(self, federation: Judged, patience: int | None) -> None:
        self.federation, self.patience = federation, patience
        self.first: dict[str, float] = {}
        self.round, self.gain = 0, -math.inf
        self.last_round, self.last_gain = 0, -math.inf
        self.waited = 0
        self.state: dict[str, Any] | None = None

    @property
    def stopped(self) -> bool:
        """Whether the gain has not grown for ``patience`` evaluations."""
        return self.patience is not None and self.waited >= self.patience

    @property
    def found(self) -> bool:
        """Whether there is an evaluation that could be used."""
        return math.isfinite(self.gain)

    def note(self, round_number: int, losses: Mapping[str, float]) -> None:
        """Take the validation losses of an evaluation; the first ones are before training."""
        if self.stopped:
            return
        if not self.first:
            self.first = _usable(losses)
        self.last_round, self.last_gain = round_number, gain(self.first, losses)
        if self.last_gain > self.gain:
            self.round, self.gain, self.waited = round_number, self.last_gain, 0
            self.state = self.federation.state_dict()
        else:
            self.waited += 1

    def restore(self) -> None:
        """Give the federation its best state back; it is not needed again."""
        if self.state is not None and self.round != self.last_round:
            self.federation.load_state_dict(self.state)
        self.state = None

    def about(self) -> dict[str, Any]:
        """What is kept, and what the last evaluation gave: for run.json."""
        last = self.last_gain if math.isfinite(self.last_gain) else None
        ends = {"last_round": self.last_round, "last_gain": last}
        return {"round": self.round, "gain": self.gain, **ends}

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart."""
        return {name: getattr(self, name) for name in _KEPT}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned; a state that does not fit is found out now.

        The federation is left with the best state, so its own is to be loaded after this.
        """
        if state["state"] is not None:
            self.federation.load_state_dict(state["state"])
        for name in _KEPT:
            setattr(self, name, state[name])


_KEPT = ("first", "round", "gain", "last_round", "last_gain", "waited", "state")


class OwnBest(Best):
    """The best state so far of one client for itself, here or on its own machine.

    With one client the best gain is the lowest loss. A loss that nothing can be compared with does
    not end the run: it is passed over, and a later one may be the first.
    """

    told = False

    def note(self, round_number: int, losses: Mapping[str, float]) -> None:
        """Take the client's validation loss of an evaluation."""
        try:
            super().note(round_number, losses)
        except TrainingError as error:
            self.waited += 1
            if not self.told:
                log.warning("round %d: %s; it is looked at again", round_number, error)
            self.told = True


def gain(first: Mapping[str, float], losses: Mapping[str, float]) -> float:
    """Mean of (first - loss) / max(|first|, |loss|); minus infinity if a loss is not finite.

    >>> gain({"a": 2.0, "b": 100.0}, {"a": 1.0, "b": 75.0})
    0.375
    """
    gains = [
        (start - losses[name]) / max(abs(start), abs(losses[name])) for name, start in first.items()
    ]
    mean = sum(gains) / len(gains)
    return mean if math.isfinite(mean) else -math.inf


def _usable(losses: Mapping[str, float]) -> dict[str, float]:
    """The first losses that others can be compared with; a TrainingError if there are none."""
    usable = {name: loss for name, loss in losses.items() if math.isfinite(loss) and loss != 0}
    if not usable:
        found = listed([f"{name} {loss:g}" for name, loss in losses.items()])
        raise TrainingError(
            "keep = 'best' compares validation losses with the first ones, and none of these is a "
            f"number other than 0 ({found}); look at the data, or use keep = 'last'"
        )
    for name in [name for name in losses if name not in usable]:
        log.warning(
            "client %r: its first validation loss is %g, so it does not count for keep = 'best'",
            name, losses[name],
        )  # fmt: skip
    return usable
