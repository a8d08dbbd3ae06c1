"""One secure sum over the network: two exchanges where nobody is lost, three where somebody is.

Keys and letters of the next sum travel with the messages of this one. Where they are missing (at
the start, after a loss, for clients that were not expected) two exchanges more make them.

Whatever a client sends, it harms nobody but itself: it is named, counted and left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedgradnorm._flower.wire.sum_messages import SumAnswer
from fedgradnorm._masking.gathering import Gathering, TooFew
from fedgradnorm._masking.liars import proof
from fedgradnorm._masking.ring import Words
from fedgradnorm._masking.roster import Phase, Subject, Unsafe

log = logging.getLogger("fedgradnorm")

Asks = Mapping[str, Mapping[str, Any]]
Ask = Callable[[Asks], Mapping[str, SumAnswer]]
"""One exchange: what each client is asked for, and the answers that came."""
Key = tuple[int, Phase]
"""The round, and which sum of it."""


@dataclass(frozen=True)
class Wanted:
    """What is to be summed: over whom, of what, and of how many at least.

    ``give`` says what a client is asked for besides its letters, ``front`` how many words its
    numbers have, ``then`` which sum is likely to be next, over whom.
    """

    key: Key
    names: Sequence[str]
    subject: Subject
    give: Callable[[str], Mapping[str, Any]]
    front: int
    least: int
    then: tuple[Key, Collection[str]] | None = None


class Summing:
    """The attempts of one run, one after the other; ``new`` makes an empty one."""

    def __init__(
        self, ask: Ask, new: Callable[[Key], Gathering], refuse: Callable[[str, str], None]
    ) -> None:
        self.ask, self.new, self.refuse = ask, new, refuse
        self.exchanges = 0
        self.proofs: list[Any] = []  # of lies in this sum, for those who gave shares for it
        self.left: list[str] = []  # whom they gave them for: they give none for another list
        self.summed: Key | None = None
        self._next: Gathering | None = None

    def sum(self, wanted: Wanted) -> tuple[Gathering, Words]:
        """The attempt and the sum; TooFew if too many are lost."""
        if wanted.key != self.summed:
            self.proofs, self.left, self.summed = [], [], wanted.key
        if self.left:
            wanted = replace(wanted, names=[n for n in wanted.names if n in self.left])
        at = self._prepared(wanted)
        after = None if wanted.then is None else self.new(wanted.then[0])
        asks: dict[str, dict[str, Any]] = {
            name: {"input": {**wanted.give(name), **_about(at), "letters": at.letters_to(name)}}
            for name in at.givers
        }
        if after is not None and wanted.then is not None:
            for name in wanted.then[1]:
                asks.setdefault(name, {})["keys"] = _named(after)
        for name, answer in self._exchange(asks).items():
            given = answer.gives
            if "keys" in given and after is not None:
                self._take(name, after.add_keys, given["keys"])
            if "input" in given:
                words = (wanted.subject, answer.masked, wanted.front)
                self._take(name, at.add_input, given["input"], *words)
        left = at.survivors()
        if len(left) < wanted.least:
            raise TooFew(f"{len(left)} inputs came, {wanted.least} are needed")
        self._check_letters(at)
        self._reveal(at, left, after if after and after.enough_keys else None)
        try:
            return at, at.sum()
        except TooFew:
            for name, why in at.blamed.items():
                self.refuse(name, why)
                if name in at.inputs:
                    self.proofs.append(proof(at, name))
            raise

    def _check_letters(self, at: Gathering) -> None:
        """Name those who wrote letters that cannot be read; TooFew where that forbids a sum."""
        for name, why in at.complaints().items():
            self.refuse(name, why)
        if lost := at.unreadable():
            raise TooFew(f"too few could read the letters of {', '.join(lost)}")

    def _reveal(self, at: Gathering, left: list[str], after: Gathering | None) -> None:
        """The shares of the masks; with them the letters of the next attempt."""
        reveal = {**_about(at), "survivors": left, "proofs": self.proofs}
        if not at.complete:
            lost = sorted(set(at.givers) - set(left))
            log.warning("lost on the way: %s; the others agree to continue", ", ".join(lost))
            for name, answer in self._exchange({n: {"agree": reveal} for n in left}).items():
                self._take(name, at.add_agreement, answer.gives["agree"])
            reveal = {**reveal, "agreements": at.agreed()}
        asks: dict[str, dict[str, Any]] = {name: {"reveal": reveal} for name in left}
        shown = after.shown_keys() if after else []
        for name in after.keys if after else ():
            asks.setdefault(name, {})["letters"] = {**_about(after), "keys": shown}
        self.left = left
        for name, answer in self._exchange(asks).items():
            given = answer.gives
            if "reveal" in given:
                self._take(name, at.add_reveal, given["reveal"])
            if "letters" in given and after is not None:
                self._take(name, after.add_letters, given["letters"])
        self._next = after

    def _prepared(self, wanted: Wanted) -> Gathering:
        """An attempt whose letters are written: the one that was prepared, or a new one."""
        ready, self._next = self._next, None
        about = None if ready is None else (ready.attempt.round, ready.attempt.phase)
        if ready is not None and about == wanted.key and set(wanted.names) <= set(ready.letters):
            try:
                ready.close_letters(wanted.names)
            except TooFew:
                pass
            else:
                return ready
        at = self.new(wanted.key)
        asks = {name: {"keys": _named(at)} for name in wanted.names}
        for name, answer in self._exchange(asks).items():
            self._take(name, at.add_keys, answer.gives["keys"])
        letters = {"letters": {**_about(at), "keys": at.shown_keys()}}
        for name, answer in self._exchange(dict.fromkeys(at.keys, letters)).items():
            self._take(name, at.add_letters, answer.gives["letters"])
        at.close_letters()
        return at

    def _exchange(self, asks: Asks) -> Mapping[str, SumAnswer]:
        self.exchanges += 1
        return self.ask(asks)

    def _take(self, name: str, add: Callable[..., object], *given: Any) -> None:
        try:
            add(name, *given)
        except Unsafe as error:
            self.refuse(name, str(error))
        except Exception as error:  # a client may send anything that JSON can hold
            self.refuse(name, f"it cannot be read ({type(error).__name__})")


def _about(at: Gathering | None) -> dict[str, Any]:
    return {} if at is None else {"attempt": at.attempt.name}


def _named(at: Gathering) -> dict[str, Any]:
    return {**_about(at), "round": at.attempt.round, "phase": str(at.attempt.phase)}
