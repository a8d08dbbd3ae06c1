"""The end of a run: when it comes, which state is kept, and what is said of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedgradnorm._client import Client
from fedgradnorm._errors import listed
from fedgradnorm._federation.alone import Alone
from fedgradnorm._federation.federation import Federation
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs.about import chosen_words
from fedgradnorm._runs.csv_table import Row
from fedgradnorm._training.ending.best import SPLIT, Best
from fedgradnorm._training.ending.own_best import OwnBests

log = logging.getLogger("fedgradnorm")


class Stopping:
    """The best states of a run; none with ``keep="last"``.

    Clients that share a network keep one round together. With ``keep="own_best"`` each of them also
    has a best round of its own; a client that looks for none, or finds that of all, has that of
    all. Clients alone have only their own, and stop one by one. Of these, one without validation
    examples trains to the end and keeps its last state.
    """

    def __init__(self, federation: Federation | Alone, settings: Settings) -> None:
        self.keep, self.count = settings.keep, len(federation.names)
        self.best: Best | None = None
        self.own: OwnBests | None = None
        if not settings.keeps_best:
            return
        if isinstance(federation, Alone):
            self.own = OwnBests(federation, settings.patience, Best)
            return
        self.best = Best(federation, settings.patience)
        if settings.keep == "own_best":
            self.own = OwnBests(federation, settings.patience)

    @property
    def keeps(self) -> bool:
        """Whether there is anything to choose from."""
        return self.best is not None or self.own is not None

    @property
    def stopped(self) -> bool:
        """Whether nobody has anything left to do."""
        if self.best is None:
            return self.own is not None and len(self.own.best) == self.count and self.own.stopped
        return self.best.stopped and (self.own is None or self.own.stopped)

    def training(self, names: Sequence[str]) -> list[str]:
        """The clients of a round that have not stopped by themselves."""
        alone = self.best is None and self.own is not None
        return self.own.training(names) if alone and self.own is not None else list(names)

    def announce(self, clients: Iterable[Client]) -> None:
        """Name the clients whose losses do not count."""
        others = [client.name for client in clients if client.validation is None]
        if self.keeps and others:
            words = "keep = %r: no validation examples, so not counted: %s"
            log.info(words, self.keep, listed(others))

    def note(self, round_number: int, rows: Iterable[Row]) -> None:
        """Take the rows of an evaluation of all clients."""
        losses = {row["client"]: row["loss"] for row in rows if row["split"] == SPLIT}
        if self.best is not None:
            self.best.note(round_number, losses)
        if self.own is not None:
            self.own.note(round_number, losses)

    def restore(self) -> None:
        """Give the run its best state back, and every client its own."""
        if self.best is not None:
            self.best.restore()
        if self.own is not None:
            self.own.restore(None if self.best is None else self.best.round)

    def about(self) -> dict[str, Any]:
        """What is kept of the run, and of each client where that may be another round."""
        shared = {} if self.best is None else self.best.about()
        return shared if self.own is None else {**shared, "clients": self.own.about()}

    def state_dict(self) -> list[dict[str, Any]]:
        """What must survive a restart."""
        return [part.state_dict() for part in self._parts()]

    def load_state_dict(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Restore the state saved by :meth:`state_dict`."""
        for part, saved in zip(self._parts(), state, strict=True):
            part.load_state_dict(saved)

    def _parts(self) -> list[Best | OwnBests]:
        return [part for part in (self.best, self.own) if part is not None]


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
