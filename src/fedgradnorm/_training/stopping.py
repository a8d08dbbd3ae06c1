"""The end of a run: when it comes, which state is kept, and what is said of it."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from fedgradnorm._client import Client
from fedgradnorm._errors import TrainingError
from fedgradnorm._federation.federation import Federation
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs.about import chosen_words
from fedgradnorm._runs.csv_table import Row

log = logging.getLogger("fedgradnorm")

SPLIT = "validation"


class Judged(Protocol):
    """Whose best state is kept: clients with validation rows, and a state to come back to."""

    names: list[str]
    clients: list[Client]

    def state_dict(self) -> dict[str, Any]:
        """The whole state, as copies."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""


class Best:
    """The best state of one federation so far.

    Evaluations are compared by the mean gain over the clients that have validation rows,

        gain = mean_i (first_i - loss_i) / max(|first_i|, |loss_i|),

    with first_i the loss of client i before training. It has no unit, so a loud client counts as
    much as a quiet one. A loss that grew without bound counts as -1, so one such client does not
    decide for all. Of equal gains the earlier one is kept. ``state`` is the whole state of the
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


class Stopping:
    """The best states of a run's federations; none with ``keep="last"``.

    A federation whose clients have no validation rows trains to the end and keeps its last state.
    That can be only with ``share="none"``, where every client is a federation of its own.
    """

    def __init__(self, federations: Sequence[Federation], settings: Settings) -> None:
        self.share, self.count = settings.share, len(federations)
        self.best: dict[int, Best] = {}
        if settings.keep == "best":
            judged = {i: f for i, f in enumerate(federations) if _has_rows(f)}
            self.best = {i: Best(f, settings.patience) for i, f in judged.items()}

    @property
    def stopped(self) -> bool:
        """Whether no federation has anything left to do."""
        return len(self.best) == self.count and all(best.stopped for best in self.best.values())

    def is_stopped(self, place: int) -> bool:
        """Whether the federation at this place has ended before the others."""
        return place in self.best and self.best[place].stopped

    def announce(self, names: Iterable[str]) -> None:
        """Name the clients whose losses do not count."""
        judged = {c.name for b in self.best.values() for c in b.federation.clients if c.validation}
        others = [name for name in names if name not in judged]
        if self.best and others:
            log.info("keep = 'best': no validation rows, so not counted: %s", ", ".join(others))

    def note(self, round_number: int, rows: Iterable[Row]) -> None:
        """Take the rows of an evaluation of all clients."""
        losses = {row["client"]: row["loss"] for row in rows if row["split"] == SPLIT}
        for best in self.best.values():
            names = best.federation.names
            best.note(round_number, {n: losses[n] for n in names if n in losses})

    def restore(self) -> None:
        """Give every federation its best state back."""
        for best in self.best.values():
            best.restore()

    def about(self) -> dict[str, Any]:
        """What is kept of the run, or of each client where nothing is shared."""
        if self.share == "all":
            return next(iter(self.best.values())).about()
        return {"clients": {b.federation.names[0]: b.about() for b in self.best.values()}}

    def state_dict(self) -> list[dict[str, Any]]:
        """What must survive a restart."""
        return [best.state_dict() for best in self.best.values()]

    def load_state_dict(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Take over what ``state_dict`` returned."""
        for best, part in zip(self.best.values(), state, strict=True):
            best.load_state_dict(part)


def log_personal(kept: Mapping[str, Mapping[str, Any]]) -> None:
    """Say how many clients are better off with what they tuned, and who could not tell."""
    if chosen_words(kept):  # which the run's last line in the log says
        if blind := [name for name, one in kept.items() if "after" not in one]:
            why = "no validation rows to choose by, so not what was trained alone"
            log.info("personalize: %s: %s", why, ", ".join(blind))
        return
    judged = [one for one in kept.values() if "after" in one]
    if judged:
        moved = sum(one["step"] > 0 for one in judged)
        log.info("personalize: %d of %d clients keep what they tuned", moved, len(judged))
    if blind := [name for name, one in kept.items() if "after" not in one]:
        log.info("personalize: no validation rows, so the last step is taken: %s", ", ".join(blind))


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
    for name in [name for name in losses if name not in usable]:
        log.warning(
            "client %r: its first validation loss is %g, so it does not count for keep = 'best'",
            name, losses[name],
        )  # fmt: skip
    if not usable:
        found = ", ".join(f"{name} {loss:g}" for name, loss in losses.items())
        raise TrainingError(
            "keep = 'best' compares validation losses with the first ones, and none of these is a "
            f"number other than 0 ({found}); look at the data, or use keep = 'last'"
        )
    return usable


def _has_rows(federation: Federation) -> bool:
    return any(client.validation is not None for client in federation.clients)
