"""One secure sum over the network: two exchanges where nobody is lost, three where somebody is.

Keys and letters of the next sum travel with the messages of this one. Where they are missing (at
the start, after a loss, for clients that were not expected) two exchanges more make them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedgradnorm._flower.wire.sum_messages import SumAnswer
from fedgradnorm._masking.gathering import Gathering, TooFew
from fedgradnorm._masking.ring import Words
from fedgradnorm._masking.roster import FEWEST, Attempt, Roster, Unsafe

log = logging.getLogger("fedgradnorm")

Asks = Mapping[str, Mapping[str, Any]]
Ask = Callable[[Asks], Mapping[str, SumAnswer]]
"""One exchange: what each client is asked for, and the answers that came."""


@dataclass(frozen=True)
class Wanted:
    """What is to be summed: over whom, of what, and of how many at least.

    ``give`` says what a client is asked for beside its letters, ``then`` whom the next sum is of.
    """

    names: Sequence[str]
    about: str
    give: Callable[[str], Mapping[str, Any]]
    least: int
    then: Collection[str] = ()


class Summing:
    """The attempts of one run, one after the other."""

    def __init__(self, ask: Ask, roster: Roster, refuse: Callable[[str, str], None]) -> None:
        self.ask, self.roster, self.refuse = ask, roster, refuse
        self.number, self.exchanges = 0, 0
        self._next: Gathering | None = None

    def sum(self, run: str, wanted: Wanted) -> tuple[Gathering, Words]:
        """The attempt and the sum; TooFew if too many are lost, and then nothing was seen."""
        at = self._prepared(run, wanted.names)
        after = Gathering(self._new(run), self.roster) if len(wanted.then) >= FEWEST else None
        asks: dict[str, dict[str, Any]] = {
            name: {"input": {**wanted.give(name), **_about(at), "letters": at.letters_to(name)}}
            for name in at.givers
        }
        for name in wanted.then if after else ():
            asks.setdefault(name, {})["keys"] = after.attempt.number if after else 0
        for name, answer in self._exchange(asks).items():
            given = answer.gives
            if "keys" in given and after is not None:
                self._take(name, after.add_keys, given["keys"])
            if "input" in given:
                self._take(name, at.add_input, given["input"], wanted.about, answer.masked)
        left = at.survivors()
        if len(left) < wanted.least:
            raise TooFew(f"{len(left)} inputs came, {wanted.least} are needed")
        self._reveal(at, left, after)
        return at, at.sum()

    def _reveal(self, at: Gathering, left: list[str], after: Gathering | None) -> None:
        """The shares of the masks; with them the letters of the next attempt."""
        reveal = {**_about(at), "survivors": left}
        if not at.complete:
            lost = sorted(set(at.givers) - set(left))
            log.warning("lost on the way: %s; the others agree to go on", ", ".join(lost))
            for name, answer in self._exchange({n: {"agree": reveal} for n in left}).items():
                self._take(name, at.add_agreement, answer.gives["agree"])
            reveal = {**reveal, "agreements": at.agreed()}
        asks: dict[str, dict[str, Any]] = {name: {"reveal": reveal} for name in left}
        shown = [] if after is None or len(after.keys) < FEWEST else after.shown_keys()
        for name in after.keys if after and shown else ():
            asks.setdefault(name, {})["letters"] = {**_about(after), "keys": shown}
        for name, answer in self._exchange(asks).items():
            given = answer.gives
            if "reveal" in given:
                self._take(name, at.add_reveal, given["reveal"])
            if "letters" in given and after is not None:
                self._take(name, after.add_letters, name, given["letters"])
        self._next = after if shown else None

    def _prepared(self, run: str, names: Sequence[str]) -> Gathering:
        """An attempt whose letters are written: the one that was prepared, or a new one."""
        ready, self._next = self._next, None
        if ready is not None and set(names) <= set(ready.letters):
            try:
                ready.close_letters(names)
            except TooFew:
                pass
            else:
                return ready
        at = Gathering(self._new(run), self.roster)
        for name, answer in self._exchange({n: {"keys": at.attempt.number} for n in names}).items():
            self._take(name, at.add_keys, answer.gives["keys"])
        letters = {"letters": {**_about(at), "keys": at.shown_keys()}}
        for name, answer in self._exchange(dict.fromkeys(at.keys, letters)).items():
            self._take(name, at.add_letters, name, answer.gives["letters"])
        at.close_letters()
        return at

    def _exchange(self, asks: Asks) -> Mapping[str, SumAnswer]:
        self.exchanges += 1
        return self.ask(asks)

    def _take(self, name: str, add: Callable[..., object], *given: Any) -> None:
        try:
            add(*given)
        except Unsafe as error:
            self.refuse(name, str(error))

    def _new(self, run: str) -> Attempt:
        """A number that no client has seen, also after a server was put back to a checkpoint."""
        self.number = max(self.number + 1, int(time.time() * 1000))
        return Attempt(run, self.number)


def _about(at: Gathering | None) -> dict[str, Any]:
    return {} if at is None else {"attempt": at.attempt.number}
