"""A client's side of a sum: keys, letters, the masked input, the list of survivors, its shares.

Each is given once an attempt, and in this order. ``state`` is to be kept before anything is sent,
so that a client that was killed says nothing twice. A client lets only one sum of a
round be seen: two sums over different clients would show their difference.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from fedgradnorm._masking import shamir
from fedgradnorm._masking.attempt_keys import AttemptKeys, agreed, derived, mask_label
from fedgradnorm._masking.mask_stream import add_mask
from fedgradnorm._masking.ring import Words
from fedgradnorm._masking.roster import (
    FEWEST,
    Attempt,
    Roster,
    Signer,
    Table,
    Unsafe,
    digest,
    from_text,
    names_digest,
    threshold,
    to_text,
)

KEPT = 4  # attempts whose secrets are kept at most: one goes on while the next is prepared
Label = tuple[int, str]
"""What is summed: the round, and which sum of it."""


class Member:
    """One client in one run; ``state`` is what was kept of it before."""

    def __init__(
        self,
        signer: Signer,
        roster: Roster,
        run: str,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        if len(roster.keys) < FEWEST:
            raise Unsafe(f"a roster of {len(roster.keys)}: a sum of so few shows the others' parts")
        if signer.name not in roster.keys:
            raise Unsafe(f"{signer.name!r} is not on its own roster")
        self.signer, self.roster, self.run = signer, roster, run
        new: dict[str, Any] = {"last": 0, "attempts": {}, "seen": {}, "round": 0}
        self.state = copy.deepcopy(dict(state)) if state else new

    def keys(self, number: int) -> dict[str, Any]:
        """Step 1: public keys for a new attempt."""
        if number <= self.state["last"]:
            raise Unsafe(f"attempt {number} is not new: {self.state['last']} was asked for already")
        keys = AttemptKeys.new()
        message = self.signer.sign(Attempt(self.run, number), "keys", keys.public())
        secret = {name: to_text(value) for name, value in asdict(keys).items()}
        self.state["last"] = number
        self.state["attempts"][str(number)] = {"step": "keys", "secret": secret, "said": message}
        for old in sorted(self.state["attempts"], key=int)[:-KEPT]:
            del self.state["attempts"][old]
        return message

    def letters(self, number: int, keys: Sequence[Table]) -> dict[str, str]:
        """Step 2: its two secrets in shares, one letter for each of the others."""
        one = self._at(number, "keys")
        public = self._public(number, keys, one["said"])
        names, least = sorted(public), threshold(len(public))
        secret, dealt = self._secret(one), dict[str, str]()
        parts = [shamir.split(part, least, len(names)) for part in (secret.masks, secret.own)]
        mine: dict[str, dict[str, str]] = {}
        for name, masks, own in zip(names, *parts, strict=True):
            shares = {"masks": to_text(masks), "own": to_text(own)}
            if name == self.signer.name:
                mine[name] = shares
            else:
                about = self._about(number, self.signer.name, name, public)
                dealt[name] = secret.seal(public[name], about, shares)
        one.update(step="letters", public=public, shares=mine)
        return dealt

    def fewest(self, number: int) -> int:
        """How many clients any sum of this attempt has at least; before its input is given."""
        return max(FEWEST, threshold(len(self._at(number, "letters")["public"])))

    def mask(
        self,
        number: int,
        letters: Mapping[str, Any],
        label: Label,
        about: str,
        numbers: Words,
        vector: Words,
    ) -> tuple[dict[str, Any], Words]:
        """Step 3: numbers and vector, masked; ``letters`` are the others', to this client.

        ``about`` names all that must be the same for everybody: masks are made for it.
        """
        one = self._at(number, "letters")
        public, me, secret = one["public"], self.signer.name, self._secret(one)
        givers = sorted({*letters, me})
        if not set(givers) <= set(public) or me in letters:
            raise Unsafe("letters from clients whose keys were not shown")
        if len(givers) < max(FEWEST, threshold(len(public))):
            raise Unsafe(f"{len(givers)} of {len(public)} clients are too few to hide among")
        for name, letter in letters.items():
            words = self._about(number, name, me, public)
            one["shares"][name] = secret.unseal(public[name], words, letter)
        attempt = Attempt(self.run, number)
        label_ = mask_label(attempt, digest(public), names_digest(givers), about)
        masked = np.concatenate([numbers, vector])
        add_mask(masked, derived(secret.own, "own", label_), +1)
        for name in givers:
            if name != me:
                seed = agreed(secret.masks, public[name]["masks"], "mask", label_)
                add_mask(masked, seed, +1 if me < name else -1)
        front, rest = masked[: len(numbers)], masked[len(numbers) :]
        body = {
            "numbers": to_text(front.tobytes()),
            "rest": hashlib.sha256(rest.tobytes()).hexdigest(),
            "givers": names_digest(givers),
            "about": about,
        }
        one.update(step="input", givers=givers, label=list(label), about=about)
        return self.signer.sign(attempt, "input", body), rest

    def agree(self, number: int, survivors: Sequence[str]) -> dict[str, Any]:
        """Step 4, only where somebody is lost: its name under the list of survivors."""
        one = self._at(number, "input")
        self._check_survivors(one, survivors)
        one["agreed"] = sorted(survivors)
        return self.signer.sign(Attempt(self.run, number), "survivors", _list(survivors, one))

    def reveal(
        self, number: int, survivors: Sequence[str], agreements: Iterable[Table] = ()
    ) -> dict[str, Any]:
        """Step 5: a share of each survivor's own mask, and of each lost client's key.

        A list with somebody missing needs the names of ``threshold`` clients under it. Everybody's
        own masks alone show nothing but the sum, so the whole list needs none.
        """
        one = self._at(number, "input")
        self._check_survivors(one, survivors)
        lost = set(one["givers"]) - set(survivors)
        if lost:
            self._check_agreed(number, one, survivors, agreements)
        body = {
            **_list(survivors, one),
            "own": {name: one["shares"][name]["own"] for name in sorted(survivors)},
            "masks": {name: one["shares"][name]["masks"] for name in sorted(lost)},
        }
        round_number, part = one["label"]
        self.state["round"] = round_number
        key = f"{round_number}/{part}"
        kept = {k: v for k, v in self.state["seen"].items() if int(k.split("/")[0]) >= round_number}
        self.state["seen"] = {**kept, key: _seen(survivors, one)}
        self.state["attempts"][str(number)] = {"step": "over"}  # its secrets are gone
        return self.signer.sign(Attempt(self.run, number), "reveal", body)

    def _at(self, number: int, step: str) -> dict[str, Any]:
        one: dict[str, Any] | None = self.state["attempts"].get(str(number))
        if one is None:
            raise Unsafe(f"attempt {number} is not known here")
        if one["step"] != step:
            raise Unsafe(f"attempt {number}: asked again, or out of turn, after {one['step']!r}")
        return one

    def _secret(self, one: Mapping[str, Any]) -> AttemptKeys:
        return AttemptKeys(**{name: from_text(text) for name, text in one["secret"].items()})

    def _public(self, number: int, keys: Sequence[Table], own: Table) -> dict[str, dict[str, str]]:
        """The keys by name; each signed by its owner, this client's own among them."""
        found: dict[str, dict[str, str]] = {}
        for message in keys:
            name, body = self.roster.said(Attempt(self.run, number), "keys", message)
            if name in found:
                raise Unsafe(f"two keys of {name!r}")
            found[name] = {part: str(body[part]) for part in ("masks", "letters", "own")}
        if found.get(self.signer.name) != own["body"]:
            raise Unsafe("its own keys are not among them as they were")
        if len(found) < FEWEST:
            raise Unsafe(f"{len(found)} clients: a sum of so few shows the others' parts")
        return found

    def _about(self, number: int, writer: str, reader: str, public: Table) -> dict[str, str]:
        ends = {"writer": writer, "reader": reader, "keys": digest(public)}
        return {"run": self.run, "attempt": str(number), **ends}

    def _check_survivors(self, one: Mapping[str, Any], survivors: Sequence[str]) -> None:
        """A list that this client may speak for, and has not spoken against."""
        names, least = set(survivors), max(FEWEST, threshold(len(one["public"])))
        if len(names) != len(survivors) or not names <= set(one["givers"]):
            raise Unsafe("the list of survivors names clients that sent nothing, or one twice")
        if self.signer.name not in names:
            raise Unsafe("the list of survivors is without this client, which is here")
        if len(names) < least:
            raise Unsafe(f"{len(names)} survivors: {least} are needed to hide among")
        if one.get("agreed", sorted(names)) != sorted(names):
            raise Unsafe("another list of survivors than this client put its name under")
        round_number, part = one["label"]
        if round_number < self.state["round"]:
            raise Unsafe(f"round {round_number} is over: {self.state['round']} was summed already")
        before = self.state["seen"].get(f"{round_number}/{part}")
        if before is not None and before != _seen(survivors, one):
            raise Unsafe(
                "this round was summed before, over other clients or of something else: the "
                "difference of the sums would show single clients"
            )

    def _check_agreed(
        self, number: int, one: Table, survivors: Sequence[str], agreements: Iterable[Table]
    ) -> None:
        if one.get("agreed") is None:
            raise Unsafe("somebody is missing from the list, and nobody was asked to agree to it")
        wanted, found = _list(survivors, one), set()
        for message in agreements:
            name, body = self.roster.said(Attempt(self.run, number), "survivors", message)
            if dict(body) == wanted and name in one["givers"]:
                found.add(name)
        least = threshold(len(one["public"]))
        if len(found) < least:
            raise Unsafe(f"{len(found)} clients agree to this list of survivors, {least} must")


def _list(survivors: Sequence[str], one: Table) -> dict[str, str]:
    return {"survivors": names_digest(survivors), "about": one["about"]}


def _seen(survivors: Sequence[str], one: Table) -> str:
    return digest([sorted(survivors), one["about"]])
