"""Who is asked in a round: not who is shut out, nor for a while who does not answer.

An order without a usable answer is a miss: nothing came in time, the client said that it failed,
or its answer was refused. After ``misses`` of them in a row the client is suspended: it counts as
absent for ``pause`` rounds and is then asked once, until an answer is usable. A client of which
``refusals`` answers were refused since its last usable one is shut out.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedgradnorm._runs.layout import FEDERATION

log = logging.getLogger("fedgradnorm")


@dataclass(frozen=True)
class Rules:
    """Misses until a suspension, refusals until the end, and the rounds of a suspension."""

    misses: int = 3
    refusals: int = 5
    pause: int = 8


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
        self.until = dict.fromkeys(names, 0)  # the round that asks it again; 0: not suspended
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

    def asked(self, drawn: Sequence[str], round: int, least: int) -> list[str]:
        """Who of those drawn is asked; suspended ones too where the others are too few."""
        found = [name for name in drawn if self.takes_part(name, round)]
        if len(found) >= max(1, least):
            return found
        return [name for name in drawn if not self.shut_out(name)]

    def good(self, name: str) -> None:
        if self.until[name]:
            log.warning("client %r participates again", name)
        for table in (self.misses, self.refusals, self.until):
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
            said, self.until[name] = self.until[name] > 0, round + 1 + self.rules.pause
            log.log(
                logging.INFO if said else logging.WARNING,
                "client %r is suspended: no usable answer to %d orders in a row; it is asked again "
                "in round %d",
                name, self.misses[name], self.until[name] + 1,
            )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        return {key: dict(getattr(self, key)) for key in _TABLES}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for key in _TABLES:
            mine = getattr(self, key)
            mine.update({name: state[key][name] for name in mine})


_TABLES = ("misses", "refusals", "until")
