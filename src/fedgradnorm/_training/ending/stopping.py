"""The end of a run: when it comes, which state is kept, and what is said of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedgradnorm._errors import listed
from fedgradnorm._federation.federation import Federation
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs.about import chosen_words
from fedgradnorm._runs.csv_table import Row
from fedgradnorm._training.ending.best import SPLIT, Best
from fedgradnorm._training.ending.own_best import Moment, OwnBests

log = logging.getLogger("fedgradnorm")


class Stopping:
    """The best states of a run's federations; none with ``keep="last"``.

    A federation whose clients have no validation rows trains to the end and keeps its last state.
    That can be only with ``share="none"``, where every client is a federation of its own.

    With ``keep="own_best"`` each client of a federation also has a best round of its own. Who looks
    for none, or finds that of the federation, has the federation's. Alone that is the same thing.
    """

    def __init__(self, federations: Sequence[Federation], settings: Settings) -> None:
        self.keep, self.share, self.count = settings.keep, settings.share, len(federations)
        self.best: dict[int, Best] = {}
        self.own: OwnBests | None = None
        self.moment: Moment | None = None
        if settings.keep == "own_best" and settings.share == "all":
            self.moment = Moment(federations[0])
            self.best = {0: Best(self.moment, settings.patience)}
            self.own = OwnBests(self.moment, settings.patience)
        elif settings.keeps_best:
            judged = {i: f for i, f in enumerate(federations) if _has_rows(f)}
            self.best = {i: Best(f, settings.patience) for i, f in judged.items()}

    @property
    def stopped(self) -> bool:
        """Whether no federation has anything left to do."""
        return len(self.best) == self.count and all(map(self.is_stopped, self.best))

    def is_stopped(self, place: int) -> bool:
        """Whether the federation at this place has ended, and all its clients have."""
        if place not in self.best or not self.best[place].stopped:
            return False
        return self.own is None or self.own.stopped

    def announce(self, names: Iterable[str]) -> None:
        """Name the clients whose losses do not count."""
        judged = {c.name for b in self.best.values() for c in b.federation.clients if c.validation}
        others = [name for name in names if name not in judged]
        if self.best and others:
            words = "keep = %r: no validation rows, so not counted: %s"
            log.info(words, self.keep, listed(others))

    def note(self, round_number: int, rows: Iterable[Row]) -> None:
        """Take the rows of an evaluation of all clients."""
        losses = {row["client"]: row["loss"] for row in rows if row["split"] == SPLIT}
        for best in self.best.values():
            names = best.federation.names
            best.note(round_number, {n: losses[n] for n in names if n in losses})
        if self.own is not None and self.moment is not None:
            self.own.note(round_number, losses)
            self.moment.pass_by()

    def restore(self) -> None:
        """Give every federation its best state back, and every client its own."""
        for best in self.best.values():
            best.restore()
        if self.own is not None:
            self.own.restore(but=self.best[0].round)

    def about(self) -> dict[str, Any]:
        """What is kept of the run, and of each client where that may be another round."""
        if self.share == "none":
            return {"clients": {b.federation.names[0]: b.about() for b in self.best.values()}}
        own = {} if self.own is None else {"clients": self.own.about()}
        return {**self.best[0].about(), **own}

    def state_dict(self) -> list[dict[str, Any]]:
        """What must survive a restart."""
        return [part.state_dict() for part in self._parts()]

    def load_state_dict(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Take over what ``state_dict`` returned."""
        for part, saved in zip(self._parts(), state, strict=True):
            part.load_state_dict(saved)

    def _parts(self) -> list[Best | OwnBests]:
        return [*self.best.values(), *(() if self.own is None else (self.own,))]


def log_personal(kept: Mapping[str, Mapping[str, Any]]) -> None:
    """Say how many clients are better off with what they tuned, and who could not tell."""
    if chosen_words(kept):  # which the run's last line in the log says
        if blind := [name for name, one in kept.items() if "after" not in one]:
            why = "no validation rows to choose by, so not what was trained alone"
            log.info("personalize: %s: %s", why, listed(blind))
        return
    judged = [one for one in kept.values() if "after" in one]
    if judged:
        moved = sum(one["step"] > 0 for one in judged)
        log.info("personalize: %d of %d clients keep what they tuned", moved, len(judged))
    if blind := [name for name, one in kept.items() if "after" not in one]:
        log.info("personalize: no validation rows, so the last step is taken: %s", listed(blind))


def _has_rows(federation: Federation) -> bool:
    return any(client.validation is not None for client in federation.clients)
