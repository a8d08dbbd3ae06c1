"""Clients and a server of one secure sum, in one place; any of them can be lost at any step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgradnorm._masking.gathering import Gathering
from fedgradnorm._masking.member import Member
from fedgradnorm._masking.ring import Words
from fedgradnorm._masking.roster import Attempt, Roster, Signer, to_text

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


class Crowd:
    """``count`` clients, each with numbers and a vector of words, and one server."""

    def __init__(self, count: int, size: int = 5, seed: int = 0) -> None:
        self.roster, self.signers = people(count)
        self.members = {n: Member(s, self.roster, "run") for n, s in self.signers.items()}
        rng = np.random.default_rng(seed)
        self.values: dict[str, Words] = {
            name: rng.integers(0, 2**64, size=size + 2, dtype=np.uint64) for name in self.members
        }
        self.names = list(self.members)

    def input(self, name: str, at: Gathering, about: str = "what", label: Any = (0, "a")) -> Any:
        words = self.values[name]
        letters = at.letters_to(name)
        given = (at.attempt.number, letters, label, about, words[:2], words[2:])
        return self.members[name].mask(*given)

    def prepared(self, number: int = 1, lost: dict[str, Collection[str]] = NOBODY) -> Gathering:
        """Keys and letters are exchanged; who is lost at a step says nothing from then on."""
        at, gone = Gathering(Attempt("run", number), self.roster), set(lost.get("keys", ()))
        for name in self.names:
            if name not in gone:
                at.add_keys(self.members[name].keys(number))
        shown = at.shown_keys()
        gone |= set(lost.get("letters", ()))
        for name in sorted(set(at.keys) - gone):
            at.add_letters(name, self.members[name].letters(number, shown))
        at.close_letters()
        return at

    def masked(self, number: int = 1, lost: dict[str, Collection[str]] = NOBODY) -> Gathering:
        at = self.prepared(number, lost)
        for name in at.givers:
            if name not in lost.get("input", ()):
                message, rest = self.input(name, at)
                at.add_input(message, "what", rest)
        return at

    def summed(self, number: int = 1, lost: dict[str, Collection[str]] = NOBODY) -> Words:
        """The sum that the server comes to."""
        at = self.masked(number, lost)
        left, here = at.survivors(), [n for n in at.inputs if n not in lost.get("reveal", ())]
        if not at.complete:
            for name in here:
                at.add_agreement(self.members[name].agree(number, left))
        names: Sequence[Any] = () if at.complete else at.agreed()
        for name in here:
            at.add_reveal(self.members[name].reveal(number, left, names))
        return at.sum()

    def plain(self, names: Collection[str]) -> Words:
        total = np.zeros_like(self.values[self.names[0]])
        for name in names:
            total = total + self.values[name]
        return total
