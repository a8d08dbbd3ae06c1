"""Who is asked in a round: not who is shut out, nor for a while who does not answer.

An order without a usable answer is a miss: nothing came in time, the client said that it failed,
or its answer was refused. After ``misses`` of them in a row the client is suspended. It counts as
absent for 1, 2, 4, ... rounds, at most ``pause``; after each such pause it is asked once.
It is asked earlier when it had been disconnected and is connected again. A usable answer ends all
of it. A client of which ``refusals`` answers were refused since its last usable one is shut out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedgradnorm._runs.layout import FEDERATION

log = logging.getLogger("fedgradnorm")

NOW = -1  # a suspended client that is asked in the next round, whichever that is


@dataclass(frozen=True)
class Rules:
    """Misses until a suspension, refusals until the end, and the longest pause in rounds."""

    misses: int = 3
    refusals: int = 5
    pause: int = 32


@dataclass(frozen=True)
class Patience:
    """How long a round waits, for how many answers, how often, and how long an update may be."""

    deadline: float = 600.0
    minimum: int = 0
    attempts: int = 3
    longest: float = 1e6
    rules: Rules = field(default_factory=Rules)


class Attendance:
    """What is known of each client's answers; rounds are counted as completed ones."""

    def __init__(self, names: Sequence[str], rules: Rules) -> None:
        self.rules = rules
        self.misses = dict.fromkeys(names, 0)  # in a row
        self.refusals = dict.fromkeys(names, 0)  # since its last usable answer
        self.pauses = dict.fromkeys(names, 0)  # in a row
        self.until = dict.fromkeys(names, 0)  # the round that asks it again; 0: not suspended
        self.away = dict.fromkeys(names, 0)  # 1: seen disconnected since it was suspended
        self.revoked: frozenset[str] = frozenset()  # whose keys are not registered any more

    def shut_out(self, name: str) -> bool:
        return name in self.revoked or 0 < self.rules.refusals <= self.refusals[name]

    def state_of(self, name: str, round: int) -> str:
        if name in self.revoked:
            return "revoked"
        if self.shut_out(name):
            return "shut out"
        return "" if self.takes_part(name, round) else f"suspended to round {self.until[name] + 1}"

    def takes_part(self, name: str, round: int) -> bool:
        return not self.shut_out(name) and self.until[name] <= round

    def asked(
        self, drawn: Sequence[str], round: int, least: int, online: Callable[[], Sequence[str]]
    ) -> list[str]:
        """Who of those drawn is asked; suspended ones too where the others are too few."""
        self._see(drawn, round, online)
        found = [name for name in drawn if self.takes_part(name, round)]
        if len(found) >= max(1, least):
            return found
        return [name for name in drawn if not self.shut_out(name)]

    def good(self, name: str) -> None:
        if self.until[name]:
            log.warning("client %r participates again", name)
        for table in (self.misses, self.refusals, self.pauses, self.until, self.away):
            table[name] = 0

    def missed(self, name: str, round: int, refused: bool) -> None:
        """Its answer was not used: refused, or not there at all."""
        self.misses[name] += 1
        self.refusals[name] += refused  # silence in between does not start the count again
        if self.shut_out(name):
            log.warning(
                "client %r is shut out of this run: %d answers were refused, and none was usable "
                "(refusals = %d in %s)",
                name, self.refusals[name], self.rules.refusals, FEDERATION,
            )  # fmt: skip
        elif 0 < self.rules.misses <= self.misses[name]:
            self._suspend(name, round)

    def _suspend(self, name: str, round: int) -> None:
        rounds = min(2 ** min(self.pauses[name], 30), max(1, self.rules.pause))
        said = self.until[name] > 0
        self.pauses[name] += 1
        self.until[name], self.away[name] = round + 1 + rounds, 0
        log.log(
            logging.INFO if said else logging.WARNING,
            "client %r is suspended: no usable answer to %d orders in a row; it is asked again "
            "in round %d, or when it connects again",
            name, self.misses[name], self.until[name] + 1,
        )  # fmt: skip

    def _see(self, drawn: Sequence[str], round: int, online: Callable[[], Sequence[str]]) -> None:
        """A suspended client that was gone and is back is asked now."""
        paused = [name for name in drawn if self.until[name] > round]
        here = online() if paused else ()
        for name in paused:
            if name not in here:
                self.away[name] = 1
            elif self.away[name]:
                self.until[name], self.away[name] = NOW, 0

    def state_dict(self) -> dict[str, Any]:
        return {key: dict(getattr(self, key)) for key in _TABLES}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for key in _TABLES:
            mine = getattr(self, key)
            mine.update({name: state[key][name] for name in mine})


_TABLES = ("misses", "refusals", "pauses", "until", "away")
