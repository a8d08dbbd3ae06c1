"""The server's side of a sum: what it collects of one attempt, and the sum.

It trusts no client: what is not signed by a client of the roster, for this attempt, is refused. A
client elsewhere can use it too, to see from the messages that the sum it is told is the sum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedgradnorm._errors import FedGradNormError
from fedgradnorm._masking import shamir
from fedgradnorm._masking.attempt_keys import SEED, agreed, derived, fits, mask_label
from fedgradnorm._masking.mask_stream import add_mask
from fedgradnorm._masking.ring import Words
from fedgradnorm._masking.roster import (
    FEWEST,
    Attempt,
    Roster,
    Table,
    Unsafe,
    digest,
    from_text,
    names_digest,
    threshold,
    to_text,
)


class TooFew(FedGradNormError):
    """Too few clients are left for a sum; nothing of this attempt can be seen by anybody."""


class Gathering:
    """One attempt at the server. Each step takes what comes, then says who goes on."""

    def __init__(self, attempt: Attempt, roster: Roster) -> None:
        self.attempt, self.roster = attempt, roster
        self.keys: dict[str, Table] = {}
        self.letters: dict[str, Mapping[str, Any]] = {}
        self.inputs: dict[str, Table] = {}
        self.agreements: dict[str, Table] = {}
        self.reveals: dict[str, Table] = {}
        self.givers: list[str] = []
        self.total: Words = np.zeros(0, dtype=np.uint64)

    @property
    def least(self) -> int:
        """How many clients every later step needs."""
        return max(FEWEST, threshold(len(self.keys)))

    def add_keys(self, message: Table) -> str:
        """Step 1."""
        name, _ = self.roster.said(self.attempt, "keys", message)
        self.keys[name] = message
        return name

    def shown_keys(self) -> list[Table]:
        """All keys, for everybody who showed some."""
        if len(self.keys) < FEWEST:
            raise TooFew(f"{len(self.keys)} clients showed keys, {FEWEST} are needed")
        return [self.keys[name] for name in sorted(self.keys)]

    def add_letters(self, name: str, letters: Mapping[str, Any]) -> None:
        """Step 2: a client's letters, one to each other client."""
        if name not in self.keys or set(letters) != set(self.keys) - {name}:
            raise Unsafe(f"the letters of {name!r} are not to those who showed keys")
        self.letters[name] = letters

    def close_letters(self, among: Sequence[str] | None = None) -> list[str]:
        """Who may send an input: all who wrote letters, or those of them who are ``among``."""
        self.givers = sorted(set(self.letters) & set(self.letters if among is None else among))
        if len(self.givers) < self.least:
            raise TooFew(f"{len(self.givers)} clients wrote letters, {self.least} are needed")
        return self.givers

    def letters_to(self, name: str) -> dict[str, Any]:
        """The letters that one of them is to read."""
        return {writer: self.letters[writer][name] for writer in self.givers if writer != name}

    def add_input(self, message: Table, about: str, rest: Words | None) -> str:
        """Step 3: a masked input, added to the others at once; ``rest`` None: its numbers alone."""
        name, body = self.roster.said(self.attempt, "input", message)
        if name not in self.givers or name in self.inputs:
            raise Unsafe(f"{name!r} was not asked for an input, or sent two")
        if body.get("about") != about or body.get("givers") != names_digest(self.givers):
            raise Unsafe(f"{name!r} was asked for something else")
        if rest is not None and hashlib.sha256(rest.tobytes()).hexdigest() != body.get("rest"):
            raise Unsafe(f"the vector of {name!r} is not the one it signed")
        try:
            front = np.frombuffer(from_text(body.get("numbers")), dtype="<u8")
        except ValueError as error:
            raise Unsafe(f"the numbers of {name!r} cannot be read") from error
        whole = front if rest is None else np.concatenate([front, rest])
        if self.inputs and len(whole) != len(self.total):
            raise Unsafe(f"{name!r} sent {len(whole)} words, others {len(self.total)}")
        self.total = self.total + whole if self.inputs else whole.copy()
        self.inputs[name] = message
        return name

    def survivors(self) -> list[str]:
        """Whose inputs are in the sum."""
        if len(self.inputs) < self.least:
            raise TooFew(f"{len(self.inputs)} inputs came, {self.least} are needed")
        return sorted(self.inputs)

    @property
    def complete(self) -> bool:
        """Whether nobody was lost, so that nobody need agree to the list."""
        return len(self.inputs) == len(self.givers)

    def add_agreement(self, message: Table) -> str:
        """Step 4, where somebody was lost."""
        name, body = self.roster.said(self.attempt, "survivors", message)
        if name not in self.inputs or body.get("survivors") != names_digest(self.inputs):
            raise Unsafe(f"{name!r} agrees to another list")
        self.agreements[name] = message
        return name

    def agreed(self) -> list[Table]:
        """The names under the list, for everybody who put one there."""
        if len(self.agreements) < self.least:
            raise TooFew(f"{len(self.agreements)} clients agreed, {self.least} are needed")
        return list(self.agreements.values())

    def add_reveal(self, message: Table) -> str:
        """Step 5."""
        name, body = self.roster.said(self.attempt, "reveal", message)
        lost = set(self.givers) - set(self.inputs)
        if _names(body.get("own")) != set(self.inputs) or _names(body.get("masks")) != lost:
            raise Unsafe(f"{name!r} does not show the shares that it was asked for")
        if name not in self.inputs or body.get("survivors") != names_digest(self.inputs):
            raise Unsafe(f"{name!r} speaks of another list")
        self.reveals[name] = message
        return name

    def sum(self) -> Words:
        """The sum of the survivors' words, free of all masks."""
        if len(self.reveals) < self.least:
            raise TooFew(f"{len(self.reveals)} clients showed shares, {self.least} are needed")
        public = {name: self.keys[name]["body"] for name in self.keys}
        about = next(iter(self.inputs.values()))["body"]["about"]
        shown = {name: {part: str(public[name][part]) for part in _PARTS} for name in public}
        label = mask_label(self.attempt, digest(shown), names_digest(self.givers), about)
        total = self.total.copy()
        for name in self.inputs:
            own = self._joined("own", name)
            if digest(to_text(own)) != public[name]["own"]:
                raise Unsafe(f"the shares of {name!r} do not fit together: somebody lies")
            add_mask(total, derived(own, "own", label), -1)
        for name in sorted(set(self.givers) - set(self.inputs)):
            masks = self._joined("masks", name)
            if not fits(masks, public[name]["masks"]):
                raise Unsafe(f"the shares of {name!r} do not fit together: somebody lies")
            for other in self.inputs:
                seed = agreed(masks, public[other]["masks"], "mask", label)
                add_mask(total, seed, -1 if other < name else +1)
        return total

    def _joined(self, kind: str, name: str) -> bytes:
        places = {one: i for i, one in enumerate(sorted(self.keys), start=1)}
        least = threshold(len(self.keys))
        try:
            shares = {
                places[holder]: from_text(message["body"][kind][name])
                for holder, message in list(self.reveals.items())[:least]
            }
            return shamir.join(shares, SEED)
        except ValueError as error:
            raise Unsafe(f"a share of {name!r} cannot be read") from error


def _names(table: Any) -> set[str] | None:
    return set(table) if isinstance(table, Mapping) else None


_PARTS = ("masks", "letters", "own")
