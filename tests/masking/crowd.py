"""Clients and a server of one secure sum, in one place; any of them can be lost at any step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgradnorm._masking.gathering import Gathering
from fedgradnorm._masking.ring import Words
from fedgradnorm._masking.roster import Attempt, Phase, Roster, Signer, Subject, to_text
from fedgradnorm._masking.session import Session

STEPS = ("keys", "letters", "input", "reveal")
NOBODY: dict[str, Collection[str]] = {}


def people(count: int) -> tuple[Roster, dict[str, Signer]]:
    names = [f"c{i:02d}" for i in range(count)]
    keys = {name: Ed25519PrivateKey.generate() for name in names}
    raw = (form.Encoding.Raw, form.PublicFormat.Raw)
    roster = Roster({n: key.public_key().public_bytes(*raw) for n, key in keys.items()})
    return roster, {name: Signer(name, key) for name, key in keys.items()}


def public_keys(names: str) -> dict[str, str]:
    """A real public key for each letter."""
    roster, _ = people(len(names))
    return {n: to_text(key) for n, key in zip(names, roster.keys.values(), strict=True)}


SUBJECT = Subject("network")
UPDATE = Phase.UPDATE


class Crowd:
    """``count`` clients, each with numbers and a vector of words, and one server."""

    def __init__(
        self, count: int, size: int = 5, seed: int = 0, colluders: int | None = None
    ) -> None:
        self.roster, self.signers = people(count)
        self.names = list(self.signers)
        self.colluders = count // 3 if colluders is None else colluders
        self.members = {n: self.session(n) for n in self.names}
        rng = np.random.default_rng(seed)
        self.values: dict[str, Words] = {
            name: rng.integers(0, 2**64, size=size + 2, dtype=np.uint64) for name in self.members
        }

    def session(self, name: str, **given: Any) -> Session:
        about = {"colluders": self.colluders, **given}
        return Session(self.signers[name], self.roster, "agreed", "run", **about)

    def attempt(self, name: str = "1", number: int = 0, phase: Phase = UPDATE) -> Attempt:
        return Attempt("agreed", "run", number, phase, name)

    def gathering(self, name: str = "1", number: int = 0, phase: Phase = UPDATE) -> Gathering:
        attempt = self.attempt(name, number, phase)
        return Gathering(attempt, self.roster, self.colluders)

    def input(self, name: str, at: Gathering, subject: Subject = SUBJECT) -> Any:
        words = self.values[name]
        letters = at.letters_to(name)
        given = (at.attempt.name, letters, subject, words[:2], words[2:])
        return self.members[name].mask(*given)

    def shown(self, name: str = "1", number: int = 0) -> list[Any]:
        """Everybody's keys, signed."""
        return [self.members[n].keys(name, number, UPDATE) for n in self.names]

    def prepared(
        self, name: str = "1", lost: dict[str, Collection[str]] = NOBODY, number: int = 0
    ) -> Gathering:
        """Keys and letters are exchanged; who is lost at a step says nothing from then on."""
        at, gone = self.gathering(name, number), set(lost.get("keys", ()))
        for one in self.names:
            if one not in gone:
                at.add_keys(one, self.members[one].keys(name, number, UPDATE))
        shown = at.shown_keys()
        gone |= set(lost.get("letters", ()))
        for one in sorted(set(at.keys) - gone):
            at.add_letters(one, self.members[one].letters(name, shown))
        at.close_letters()
        return at

    def masked(
        self,
        name: str = "1",
        lost: dict[str, Collection[str]] = NOBODY,
        number: int = 0,
        subject: Subject = SUBJECT,
    ) -> Gathering:
        at = self.prepared(name, lost, number)
        for one in at.givers:
            if one not in lost.get("input", ()):
                message, rest = self.input(one, at, subject)
                at.add_input(one, message, subject, rest, 2)
        return at

    def revealed(self, at: Gathering, lost: Collection[str] = ()) -> Words:
        left, here = at.survivors(), [n for n in at.inputs if n not in lost]
        if not at.complete:
            for name in here:
                at.add_agreement(name, self.members[name].agree(at.attempt.name, left))
        names: Sequence[Any] = () if at.complete else at.agreed()
        for name in here:
            at.add_reveal(name, self.members[name].reveal(at.attempt.name, left, names))
        return at.sum()

    def summed(self, name: str = "1", lost: dict[str, Collection[str]] = NOBODY) -> Words:
        """The sum that the server comes to."""
        return self.revealed(self.masked(name, lost), lost.get("reveal", ()))

    def plain(self, names: Collection[str]) -> Words:
        total = np.zeros_like(self.values[self.names[0]])
        for name in names:
            total = total + self.values[name]
        return total
