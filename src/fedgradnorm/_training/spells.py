"""Troubles of clients, told when they begin and when they end, and counted in every round."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger("fedgradnorm")

LONGEST = 1000
"""The longest wait between two lines of a client, in rounds; each wait is twice the one before."""


@dataclass
class Spell:
    """One client and one trouble: what was said last, and what has been since."""

    on: bool = False
    lines: int = 0
    total: int = 0  # rounds in trouble, of all rounds
    hits: int = 0  # rounds in trouble, of those from the last line on
    seen: int = 0

    def turns(self, trouble: bool) -> bool:
        """Count a round; whether a line is due, because the trouble has begun or ended."""
        self.total += trouble
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


def packed_counts(counts: Mapping[str, int]) -> Tensor:
    """Counts of all clients as one tensor, in their order: a checkpoint has them as few bytes."""
    return torch.tensor(list(counts.values()), dtype=torch.int64)


def unpacked_counts(packed: Tensor, names: Sequence[str], what: str) -> dict[str, int]:
    """Counts by name; a ValueError if they cannot be such."""
    counts = packed.tolist()
    if len(counts) != len(names):
        raise ValueError(f"{what} has {len(counts)} counts for {len(names)} clients")
    found = dict(zip(names, counts, strict=True))
    for name, count in found.items():
        if type(count) is not int or count < 0:
            raise ValueError(f"{what}.{name} is {count!r:.40}")
    return found


class Spells:
    """One kind of trouble, of all clients; ``clients`` are those that have had it.

    Others have nothing but a count of their rounds, so many clients without trouble cost little.

    ``begins`` is the line to write when it begins, with the client's ``{name}``, the ``{why}`` and
    the ``{times}`` so far; ``ends`` what a client does when it is over; ``was`` what is counted.
    """

    def __init__(self, names: Iterable[str], begins: str, ends: str, was: str) -> None:
        self.begins, self.ends, self.was = begins, ends, was
        self.rounds = dict.fromkeys(names, 0)
        self.clients: dict[str, Spell] = {}

    def note(self, round_number: int, well: Iterable[str], troubled: Mapping[str, str]) -> None:
        """Count a round for these clients, and log whose trouble begins or ends in it."""
        for name, why in troubled.items():
            self.rounds[name] += 1
            spell = self.clients.setdefault(name, Spell())
            if spell.turns(trouble=True):
                line = self.begins.format(name=name, why=why, times=spell.total)
                so_far = f"; {self._share(spell)}" if spell.hits else ""
                log.warning("round %d: %s%s", round_number, line, so_far)
                spell.told(trouble=True)
        for name in well:
            self.rounds[name] += 1
            before = self.clients.get(name)
            if before is not None and before.turns(trouble=False):
                share = self._share(before)
                log.warning("round %d: client %r %s; %s", round_number, name, self.ends, share)
                before.told(trouble=False)

    def _share(self, spell: Spell) -> str:
        return f"{self.was} in {spell.hits:,} of the last {spell.seen:,} rounds"

    def sum_up(self) -> None:
        """Log how often it was, for every client that had the trouble at all."""
        for name, rounds in self.rounds.items():
            if total := self.total(name):
                counts = total, rounds
                log.warning("client %r was %s in %d of its %d rounds", name, self.was, *counts)

    @property
    def totals(self) -> dict[str, int]:
        """Rounds in trouble so far, by client."""
        return {name: self.total(name) for name in self.rounds}

    def total(self, name: str) -> int:
        """Rounds in trouble so far of one client."""
        return self.clients[name].total if name in self.clients else 0

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart: whoever resumes a run reads on in the same log."""
        told = {name: list(astuple(spell)) for name, spell in self.clients.items()}
        return {"rounds": packed_counts(self.rounds), "clients": told}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state saved by :meth:`state_dict`."""
        self.rounds = unpacked_counts(state["rounds"], list(self.rounds), "watch")
        told = state["clients"]
        self.clients = {name: _stored(name, told[name]) for name in self.rounds if name in told}
