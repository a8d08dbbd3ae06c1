"""The server's side of a sum: what it collects of one attempt, and the sum.

It trusts no client. What is malformed, not signed by its sender or not for this attempt is refused
with an Unsafe, and a share that does not fit names the client that lied. A client uses the same
class to see from signed messages that the sum it is told is the sum.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedgradnorm._errors import FedGradNormError
from fedgradnorm._masking import shamir
from fedgradnorm._masking.attempt_keys import SEED, check_public, fits, share_digests
from fedgradnorm._masking.masks import add_own, add_pair, mask_label
from fedgradnorm._masking.ring import Words
from fedgradnorm._masking.roster import (
    Attempt,
    Roster,
    Subject,
    Table,
    Unsafe,
    digest,
    from_text,
    least_shown,
    names_digest,
    threshold,
    to_text,
)

LETTER = 1024  # characters of a sealed letter, at most
WORD = 8  # bytes


class TooFew(FedGradNormError):
    """Too few clients are left for a sum; nothing of this attempt can be seen by anybody."""


class Gathering:
    """One attempt at the server, over a ``roster`` of which ``colluders`` may be dishonest."""

    def __init__(self, attempt: Attempt, roster: Roster, colluders: int) -> None:
        self.attempt, self.roster, self.colluders = attempt, roster, colluders
        self.keys: dict[str, Table] = {}
        self.public: dict[str, dict[str, str]] = {}
        self.letters: dict[str, Table] = {}
        self.said: dict[str, Table] = {}  # the same, signed
        self.inputs: dict[str, Table] = {}
        self.agreements: dict[str, Table] = {}
        self.reveals: dict[str, Table] = {}
        self.blamed: dict[str, str] = {}
        """Who sent something that only a liar sends, and what, as it is found out."""
        self.givers: list[str] = []
        self.total: Words = np.zeros(0, dtype=np.uint64)

    @property
    def least(self) -> int:
        """How many clients every later step needs."""
        return threshold(len(self.roster), self.colluders)

    @property
    def enough_keys(self) -> bool:
        """Whether so many clients showed keys that the others will continue."""
        return len(self.keys) >= least_shown(len(self.roster), self.colluders)

    def add_keys(self, sender: str, message: Any) -> None:
        """Step 1."""
        name, body = self.roster.said(self.attempt, "keys", message, sender)
        self.public[name] = check_public(body)
        self.keys[name] = message

    def shown_keys(self) -> list[Table]:
        """All keys, for everybody who showed some."""
        if not self.enough_keys:
            count = len(self.roster)
            least = least_shown(count, self.colluders)
            raise TooFew(f"{len(self.keys)} of {count} clients showed keys, {least} are needed")
        return [self.keys[name] for name in sorted(self.keys)]

    def add_letters(self, sender: str, message: Any) -> None:
        """Step 2: a client's letters, one to each other client, and what pins its shares down."""
        name, body = self.roster.said(self.attempt, "letters", message, sender)
        sealed, shares = body.get("sealed"), body.get("shares")
        others = set(self.keys) - {name}
        if name not in self.keys or _names(sealed) != others or _names(shares) != set(self.keys):
            raise Unsafe(f"the letters of {name!r} are not to those who showed keys")
        texts = all(isinstance(one, str) and len(one) <= LETTER for one in body["sealed"].values())
        if not texts or not all(map(_is_pinned, body["shares"].values())):
            raise Unsafe(f"the letters of {name!r} cannot be read")
        if body.get("own") != self.public[name]["own"]:
            raise Unsafe(f"the letters of {name!r} are for other keys than it showed")
        self.letters[name], self.said[name] = body, message

    def close_letters(self, among: Sequence[str] | None = None) -> list[str]:
        """Who may send an input: all who wrote letters, or those of them who are ``among``."""
        self.givers = sorted(set(self.letters) & set(self.letters if among is None else among))
        if len(self.givers) < self.least:
            raise TooFew(f"{len(self.givers)} clients wrote letters, {self.least} are needed")
        return self.givers

    def letters_to(self, name: str) -> dict[str, Any]:
        """The letters that one of them is to read, each with what pins its shares down."""
        found = {n: self.letters[n] for n in self.givers if n != name}
        return {n: [body["sealed"][name], body["shares"][name]] for n, body in found.items()}

    def add_input(
        self, sender: str, message: Any, subject: Subject, rest: Words | None, words: int
    ) -> None:
        """Step 3: a masked input of ``words`` words before the vector, added to the others."""
        front = self._input(sender, message, subject, words)
        vector = np.zeros(0, dtype=np.uint64) if rest is None else rest
        if hashlib.sha256(vector.tobytes()).hexdigest() != message["body"].get("rest"):
            raise Unsafe(f"the vector of {sender!r} is not the one it signed")
        whole = np.concatenate([front, vector])
        if self.inputs and len(whole) != len(self.total):
            raise Unsafe(f"{sender!r} sent {len(whole)} words instead of {len(self.total)}")
        self.total = self.total + whole if self.inputs else whole
        self.inputs[sender] = message

    def add_numbers(self, message: Any, subject: Subject, words: int) -> None:
        """An input as another client is told it: without the vector."""
        name = message["from"]
        front = self._input(name, message, subject, words)
        self.total = self.total + front if self.inputs else front
        self.inputs[name] = message

    def _input(self, sender: str, message: Any, subject: Subject, words: int) -> Words:
        """The words that an input begins with, where it is for this sum."""
        name, body = self.roster.said(self.attempt, "input", message, sender)
        if name not in self.givers or name in self.inputs:
            raise Unsafe(f"{name!r} was not asked for an input, or sent two")
        about = {
            "subject": subject.facts(),
            "keys": digest(self.public),
            "roster": self.roster.digest,
            "givers": names_digest(self.givers),
        }
        wrong = [key for key, value in about.items() if body.get(key) != value]
        if wrong:
            raise Unsafe(f"the input of {name!r} is for another sum: {', '.join(wrong)} differ")
        unreadable, others = body["unreadable"], set(self.givers) - {name}
        if not _are_texts(unreadable) or not set(unreadable) <= others:
            raise Unsafe(f"{name!r} complains about clients that wrote nothing")
        if len(set(unreadable)) < len(unreadable):  # one liar would count as several
            raise Unsafe(f"{name!r} complains about a client twice")
        try:
            data = from_text(body.get("numbers"))
        except ValueError as error:
            raise Unsafe(f"the numbers of {name!r} cannot be read") from error
        if len(data) != WORD * words:
            raise Unsafe(f"{name!r} sent {len(data)} bytes of numbers instead of {WORD * words}")
        return np.frombuffer(data, dtype="<u8").copy()

    def survivors(self) -> list[str]:
        """Whose inputs are in the sum."""
        if len(self.inputs) < self.least:
            raise TooFew(f"{len(self.inputs)} inputs came, {self.least} are needed")
        return sorted(self.inputs)

    def unreadable(self) -> list[str]:
        """Whose shares too few of those who are left could read: no sum with them is possible."""
        told = Counter(w for m in self.inputs.values() for w in m["body"]["unreadable"])
        return [name for name in self.givers if len(self.inputs) - told[name] < self.least]

    def complaints(self) -> dict[str, str]:
        """Who wrote letters that cannot be read, or falsely claims so.

        Of every complaint one side lies. With c liars, whoever is in more than c of them is one.
        """
        pairs = [(n, w) for n, m in self.inputs.items() for w in m["body"]["unreadable"]]
        by, of = Counter(n for n, _ in pairs), Counter(w for _, w in pairs)
        words = {n: f"complains about {k} clients" for n, k in by.items() if k > self.colluders}
        told = {n: f"{k} clients cannot read it" for n, k in of.items() if k > self.colluders}
        return {**words, **told}

    @property
    def complete(self) -> bool:
        """Whether nobody was lost, so that nobody need agree to the list."""
        return len(self.inputs) == len(self.givers)

    def add_agreement(self, sender: str, message: Any) -> None:
        """Step 4, where somebody was lost."""
        name, body = self.roster.said(self.attempt, "survivors", message, sender)
        if name not in self.inputs or body.get("survivors") != names_digest(self.inputs):
            raise Unsafe(f"{name!r} agrees to another list")
        self.agreements[name] = message

    def agreed(self) -> list[Table]:
        """The names under the list, for everybody who put one there."""
        if len(self.agreements) < self.least:
            raise TooFew(f"{len(self.agreements)} clients agreed, {self.least} are needed")
        return list(self.agreements.values())

    def add_reveal(self, sender: str, message: Any) -> None:
        """Step 5; a share that is not the one its writer pinned down names who showed it."""
        name, body = self.roster.said(self.attempt, "reveal", message, sender)
        if name not in self.inputs or body.get("survivors") != names_digest(self.inputs):
            raise Unsafe(f"{name!r} speaks of another list")
        for kind, wanted in (
            ("own", set(self.inputs)),
            ("masks", set(self.givers) - set(self.inputs)),
        ):
            missing = set(self.inputs[name]["body"]["unreadable"])
            found = _names(body[kind])
            if found is None or not wanted - missing <= found <= wanted:
                raise Unsafe(f"{name!r} does not show the shares that it was asked for")
            if not _are_texts(list(body[kind].values())):
                raise Unsafe(f"{name!r} shows shares that cannot be read")
            for writer in found if self.letters else ():
                pinned = self.letters[writer]["shares"][name][kind]
                if digest(body[kind][writer]) != pinned:
                    raise Unsafe(f"{name!r} shows another share of {writer!r} than it was given")
        self.reveals[name] = message

    def sum(self) -> Words:
        """The sum of the survivors' words, free of all masks."""
        if len(self.reveals) < self.least:
            raise TooFew(f"{len(self.reveals)} clients showed shares, {self.least} are needed")
        subject = next(iter(self.inputs.values()))["body"]["subject"]
        about = (digest(self.public), self.roster.digest, names_digest(self.givers), subject)
        label = mask_label(self.attempt, *about)
        total, owns, masks = self.total.copy(), dict[str, bytes](), dict[str, bytes]()
        for name in self.inputs:
            owns[name] = self._joined("own", name)
            self._check(name, digest(to_text(owns[name])) == self.public[name]["own"])
        for name in sorted(set(self.givers) - set(self.inputs)):
            masks[name] = self._joined("masks", name)
            self._check(name, fits(masks[name], self.public[name]["masks"]))
        if self.blamed:
            raise TooFew(f"shares do not fit together: {', '.join(sorted(self.blamed))} lied")
        for own in owns.values():
            add_own(total, own, label, -1)
        for name, private in masks.items():  # what they would have added cancels the others' masks
            for other in self.inputs:
                add_pair(total, private, self.public[other]["masks"], label, name, other)
        return total

    def _check(self, name: str, right: bool) -> None:
        """Shares as their writer pinned them down, which do not fit together, are its lie."""
        if not right:
            self.blamed[name] = "dealt shares that do not fit together"

    def _joined(self, kind: str, name: str) -> bytes:
        places = {one: i for i, one in enumerate(sorted(self.keys), start=1)}
        texts = {
            n: m["body"][kind][name] for n, m in self.reveals.items() if name in m["body"][kind]
        }
        if len(texts) < self.least:
            self.blamed[name] = "wrote letters that too few could read"
            return bytes(SEED)
        try:
            found = {places[n]: from_text(text) for n, text in list(texts.items())[: self.least]}
            return shamir.join(found, SEED)
        except (ValueError, OverflowError):
            self.blamed[name] = "dealt shares that cannot be read"
            return bytes(SEED)


def _names(table: Any) -> set[str] | None:
    return set(table) if isinstance(table, Mapping) else None


def _is_pinned(pinned: Any) -> bool:
    form = share_digests({"masks": "", "own": ""})
    return _names(pinned) == set(form) and _are_texts(list(pinned.values()))


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(one, str) for one in values)
