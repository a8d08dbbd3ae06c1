"""Troubles of clients, told when they begin and when they end, and counted in every round."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

log = logging.getLogger("fedgradnorm")

LONGEST = 1000
"""The longest wait between two lines of a client, in rounds; each wait is twice the one before."""


@dataclass
class Spell:
    """One client and one trouble: what was said last, and what has been since."""

    on: bool = False
    lines: int = 0
    total: int = 0  # rounds in trouble, of all rounds
    rounds: int = 0
    hits: int = 0  # rounds in trouble, of those from the last line on
    seen: int = 0

    def turns(self, trouble: bool) -> bool:
        """Count a round; whether a line is due, because the trouble has begun or ended."""
        self.total += trouble
        self.rounds += 1
        waited = not self.lines or self.seen >= _wait(self.lines)
        if trouble != self.on and waited:
            return True
        self.hits += trouble
        self.seen += 1
        return False

    def told(self, trouble: bool) -> None:
        """A line was written: count from this round on."""
        self.on, self.lines = trouble, self.lines + 1
        self.hits, self.seen = int(trouble), 1


def _wait(lines: int) -> int:
    """Rounds to wait after so many lines."""
    return min(LONGEST, 1 << min(lines - 1, LONGEST.bit_length()))


def _stored(name: str, state: Any) -> Spell:
    """A spell out of a checkpoint; a ValueError if it cannot be one."""
    on, *counts = state
    if type(on) is not bool or not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError(f"watch.{name} is {state!r:.40}")
    return Spell(on, *counts)


class Spells:
    """One kind of trouble, of all clients.

    ``begins`` is the line to write when it begins, with the client's ``{name}``, the ``{why}`` and
    the ``{times}`` so far; ``ends`` what a client does when it is over; ``was`` what is counted.
    """

    def __init__(self, names: Iterable[str], begins: str, ends: str, was: str) -> None:
        self.begins, self.ends, self.was = begins, ends, was
        self.clients = {name: Spell() for name in names}

    def note(self, round_number: int, well: Iterable[str], troubled: Mapping[str, str]) -> None:
        """Count a round for these clients, and log whose trouble begins or ends in it."""
        for name, why in troubled.items():
            spell = self.clients[name]
            if spell.turns(trouble=True):
                line = self.begins.format(name=name, why=why, times=spell.total)
                so_far = f"; {self._share(spell)}" if spell.hits else ""
                log.warning("round %d: %s%s", round_number, line, so_far)
                spell.told(trouble=True)
        for name in well:
            spell = self.clients[name]
            if spell.turns(trouble=False):
                share = self._share(spell)
                log.warning("round %d: client %r %s; %s", round_number, name, self.ends, share)
                spell.told(trouble=False)

    def _share(self, spell: Spell) -> str:
        return f"{self.was} in {spell.hits:,} of the last {spell.seen:,} rounds"

    def sum_up(self) -> None:
        """Log how often it was, for every client that had the trouble at all."""
        for name, spell in self.clients.items():
            if spell.total:
                counts = spell.total, spell.rounds
                log.warning("client %r was %s in %d of its %d rounds", name, self.was, *counts)

    @property
    def totals(self) -> dict[str, int]:
        """Rounds in trouble so far, by client."""
        return {name: spell.total for name, spell in self.clients.items()}

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart: whoever resumes a run reads on in the same log."""
        return {name: list(astuple(spell)) for name, spell in self.clients.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned; clients that it does not know begin anew."""
        for name in self.clients:
            self.clients[name] = _stored(name, state[name]) if name in state else Spell()
