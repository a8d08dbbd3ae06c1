"""A client's side of secure sums: one state machine for each attempt, and what it refuses.

An attempt goes through its steps in one order, each once. Its secrets are made for one agreement,
run, round and phase. Every round is over all clients of the roster, of whom enough must be left.
``state`` must be on disk before anything is sent; then a killed client says nothing twice.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Any

import numpy as np

from fedgradnorm._masking import shamir
from fedgradnorm._masking.attempt_keys import AttemptKeys, check_public, share_digests
from fedgradnorm._masking.liars import proved_liar
from fedgradnorm._masking.masks import add_own, add_pair, mask_label
from fedgradnorm._masking.revealed import Revealed
from fedgradnorm._masking.ring import Words
from fedgradnorm._masking.roster import (
    FEWEST,
    Attempt,
    Phase,
    Roster,
    Signer,
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

KEPT = 2  # attempts whose secrets are kept: one that is summed, and one that is prepared


class Step(StrEnum):
    """How far an attempt is."""

    KEYS = "keys"
    LETTERS = "letters"
    INPUT = "input"
    AGREED = "agreed"
    REVEALED = "revealed"


NEXT: dict[Step, frozenset[Step]] = {
    Step.KEYS: frozenset({Step.LETTERS}),
    Step.LETTERS: frozenset({Step.INPUT}),
    Step.INPUT: frozenset({Step.AGREED, Step.REVEALED}),
    Step.AGREED: frozenset({Step.REVEALED}),
    Step.REVEALED: frozenset(),
}
"""The only transitions there are."""


class Session:
    """One client in one run of one agreement.

    ``state`` is what was kept of it before, ``revealed`` what the client has let be seen in all
    runs, ``start`` a name for the network that its run starts with. At most one attempt has an
    input that could still be unmasked.
    """

    def __init__(
        self,
        signer: Signer,
        roster: Roster,
        agreement: str,
        run: str,
        *,
        colluders: int,
        state: Mapping[str, Any] | None = None,
        revealed: Revealed | None = None,
        start: str = "",
    ) -> None:
        if len(roster) < FEWEST:
            raise Unsafe(f"a roster of {len(roster)}: a sum of so few shows the others' parts")
        if signer.name not in roster.keys:
            raise Unsafe(f"{signer.name!r} is not on its own roster")
        self.signer, self.roster, self.agreement, self.run = signer, roster, agreement, run
        self.colluders, self.least = colluders, threshold(len(roster), colluders)
        self.revealed = Revealed() if revealed is None else revealed
        self.start = start or agreement
        new: dict[str, Any] = {"round": 0, "network": None, "revealed": 0, "attempts": {}}
        self.state = copy.deepcopy(dict(state)) if state else new
        if self.state["network"] is not None:
            self.revealed.check_kept(agreement, run, self.state["revealed"])

    def keys(self, name: str, round_number: int, phase: Phase) -> dict[str, Any]:
        """Step 1: public keys for a new attempt at one sum."""
        self.revealed.check_run(self.agreement, self.run, self.start)
        if name in self.state["attempts"]:
            raise Unsafe(f"attempt {name[:40]!r} is not new")
        if round_number < self.state["round"]:
            raise Unsafe(f"round {round_number} is over: round {self.state['round']} was begun")
        attempt, keys = self._attempt(name, round_number, phase), AttemptKeys.new()
        message = self.signer.sign(attempt, "keys", keys.public())
        self._forget(KEPT - 1)
        self.state["attempts"][name] = {
            "step": Step.KEYS,
            "run": self.run,
            "round": round_number,
            "phase": str(phase),
            "secret": {part: to_text(value) for part, value in asdict(keys).items()},
            "said": message,
        }
        return message

    def letters(self, name: str, keys: Sequence[Table]) -> dict[str, Any]:
        """Step 2: its two secrets in shares, a sealed letter for each of the others."""
        one, attempt = self._at(name, Step.LETTERS)
        public = self._public(attempt, keys, one["said"])
        names, least = sorted(public), self.least
        secret, sealed, pinned = _secret(one), dict[str, str](), dict[str, Any]()
        parts = [shamir.split(part, least, len(names)) for part in (secret.masks, secret.own)]
        mine: dict[str, dict[str, str]] = {}
        for reader, masks, own in zip(names, *parts, strict=True):
            shares = {"masks": to_text(masks), "own": to_text(own)}
            pinned[reader] = share_digests(shares)
            if reader == self.signer.name:
                mine[reader] = shares
            else:
                about = _ends(attempt, self.signer.name, reader, public)
                sealed[reader] = secret.seal(public[reader], about, shares)
        one.update(step=Step.LETTERS, public=public, shares=mine)
        body = {"sealed": sealed, "shares": pinned, "own": public[self.signer.name]["own"]}
        return self.signer.sign(attempt, "letters", body)

    def check_attempt(self, name: str, round_number: int, phase: Phase) -> None:
        """Unsafe unless the attempt is at this sum of this round, and may be given an input.

        What was trained for one sum would otherwise be seen in another one's attempt, too.
        """
        attempt = self._at(name, Step.INPUT)[1]
        if (attempt.round, attempt.phase) != (round_number, phase):
            raise Unsafe(f"attempt {name[:40]!r} is for another sum than this input")

    def mask(
        self,
        name: str,
        letters: Mapping[str, Any],
        subject: Subject,
        numbers: Words,
        vector: Words,
    ) -> tuple[dict[str, Any], Words]:
        """Step 3: numbers and vector, masked; ``letters`` are the others', to this client.

        A letter that cannot be opened costs one share of its writer, and is reported by name.
        """
        one, attempt = self._at(name, Step.INPUT)
        if not isinstance(letters, Mapping):
            raise Unsafe("letters: not a table")
        public, me, secret = one["public"], self.signer.name, _secret(one)
        givers = sorted({*letters, me})
        if not set(givers) <= set(public) or me in letters:
            raise Unsafe("letters from clients whose keys were not shown")
        if len(givers) < self.least:
            raise Unsafe(f"{len(givers)} of {len(public)} clients are too few to hide among")
        self._begin(attempt, subject)
        unreadable = [n for n in givers if n != me and not self._open(attempt, one, n, letters[n])]
        keys, names = digest(public), names_digest(givers)
        label = mask_label(attempt, keys, self.roster.digest, names, subject.facts())
        masked = np.concatenate([numbers, vector])
        add_own(masked, secret.own, label)
        for other in givers:
            if other != me:
                add_pair(masked, secret.masks, public[other]["masks"], label, me, other)
        front, rest = masked[: len(numbers)], masked[len(numbers) :]
        body = {
            "numbers": to_text(front.tobytes()),
            "rest": hashlib.sha256(rest.tobytes()).hexdigest(),
            "keys": keys,
            "roster": self.roster.digest,
            "givers": names,
            "subject": subject.facts(),
            "unreadable": unreadable,
        }
        one.update(step=Step.INPUT, givers=givers, subject=subject.facts())
        self.state["attempts"] = {  # no other input can be unmasked any more
            n: o for n, o in self.state["attempts"].items() if n == name or _early(o)
        }
        return self.signer.sign(attempt, "input", body), rest

    def agree(
        self, name: str, survivors: Sequence[str], proofs: Iterable[Any] = ()
    ) -> dict[str, Any]:
        """Step 4, only where somebody is lost: its name under the list of survivors."""
        one, attempt = self._at(name, Step.AGREED)
        self._check_survivors(attempt, one, survivors, proofs)
        one.update(step=Step.AGREED, agreed=sorted(survivors))
        return self.signer.sign(attempt, "survivors", _list(survivors))

    def reveal(
        self,
        name: str,
        survivors: Sequence[str],
        agreements: Iterable[Table] = (),
        proofs: Iterable[Any] = (),
    ) -> dict[str, Any]:
        """Step 5: a share of each survivor's own mask, and of each lost client's key.

        A list with somebody missing needs the names of a threshold of clients under it. Everybody's
        own masks alone show nothing but the sum, so the whole list needs none. A sum that was seen
        before may be repeated without clients that are proved to have lied in it.
        """
        one, attempt = self._at(name, Step.REVEALED)
        before = self._check_survivors(attempt, one, survivors, proofs)
        lost = set(one["givers"]) - set(survivors)
        if lost:
            self._check_agreed(attempt, one, survivors, agreements)
        shares, subject = one["shares"], one["subject"]
        body = {
            **_list(survivors),
            "own": {n: shares[n]["own"] for n in sorted(survivors) if n in shares},
            "masks": {n: shares[n]["masks"] for n in sorted(lost) if n in shares},
        }
        about = (subject["network"], attempt.phase, subject["ahead"])
        self.revealed.add(*about, _summed(attempt, subject, survivors), *before)
        self.state["revealed"] = len(self.revealed.facts)
        self.state["attempts"][name] = {  # its secrets are gone
            "step": Step.REVEALED, "run": self.run,
            "round": attempt.round, "phase": str(attempt.phase),
        }  # fmt: skip
        return self.signer.sign(attempt, "reveal", body)

    def _at(self, name: str, then: Step) -> tuple[dict[str, Any], Attempt]:
        """An attempt that may go to the step ``then``."""
        one: dict[str, Any] | None = self.state["attempts"].get(name)
        if one is None or one["run"] != self.run:
            raise Unsafe(f"attempt {name[:40]!r} is not known here, or was given up")
        if then not in NEXT[Step(one["step"])]:
            raise Unsafe(f"attempt {name[:40]!r}: {then} cannot follow {one['step']}")
        return one, self._attempt(name, one["round"], Phase(one["phase"]))

    def _attempt(self, name: str, round_number: int, phase: Phase) -> Attempt:
        return Attempt(self.agreement, self.run, round_number, phase, name)

    def _begin(self, attempt: Attempt, subject: Subject) -> None:
        """The round, and its network, from now on: a round has one network, and they go up."""
        state, network = self.state, subject.network
        if attempt.phase == Phase.SIGNALS and subject.ahead:
            raise Unsafe("only an update's sum can carry the signals")
        if attempt.round < state["round"]:
            raise Unsafe(f"round {attempt.round} is over: round {state['round']} was begun")
        if state["network"] is not None:
            if attempt.round == state["round"] and network != state["network"]:
                raise Unsafe(f"round {attempt.round} was begun with another network")
            if attempt.round > state["round"] and network == state["network"]:
                raise Unsafe(
                    f"round {attempt.round} has the network of round {state['round']}: sums of "
                    "both would be of the same updates"
                )
        self.revealed.check(network, attempt.phase, subject.ahead)
        self.revealed.bind(self.agreement, self.run, self.start)
        state.update(round=attempt.round, network=network, revealed=len(self.revealed.facts))

    def _forget(self, most: int) -> None:
        """Give up the oldest attempts; those that were revealed go first."""
        found = self.state["attempts"]
        open_ones = [name for name, one in found.items() if one["step"] != Step.REVEALED]
        kept = open_ones[len(open_ones) - min(most, len(open_ones)) :]
        self.state["attempts"] = {name: found[name] for name in kept}

    def _public(self, attempt: Attempt, keys: Sequence[Table], own: Table) -> dict[str, Any]:
        """The keys by name; each signed by its owner, of enough of all clients."""
        count, found = len(self.roster), dict[str, dict[str, str]]()
        if not isinstance(keys, list):
            raise Unsafe("keys: not a list")
        for message in keys:
            name, body = self.roster.said(attempt, "keys", message)
            if name in found:
                raise Unsafe(f"two keys of {name!r}")
            found[name] = check_public(body)
        if found.get(self.signer.name) != own["body"]:
            raise Unsafe("its own keys are not among them as they were")
        least = least_shown(count, self.colluders)
        if len(found) < least:
            raise Unsafe(
                f"{len(found)} clients of {count} showed keys in round {attempt.round}: "
                f"{least} must, so that {self.colluders} colluders are too few"
            )
        return found

    def _open(self, attempt: Attempt, one: dict[str, Any], writer: str, letter: Any) -> bool:
        """Keep the shares in a letter; whether it could be opened and holds what was pinned."""
        about = _ends(attempt, writer, self.signer.name, one["public"])
        try:
            text, pinned = letter
            shares = _secret(one).unseal(one["public"][writer], about, text)
            if share_digests(shares) != pinned:
                return False
        except (Unsafe, ValueError, TypeError):
            return False
        one["shares"][writer] = shares
        return True

    def _check_survivors(
        self, attempt: Attempt, one: Table, survivors: Sequence[str], proofs: Iterable[Any]
    ) -> list[str]:
        """A list that this client may speak for, and has not spoken against.

        The names of the sums with those who lied in them, which may have been seen before.
        """
        if not isinstance(survivors, (list, tuple)) or not all(
            isinstance(name, str) for name in survivors
        ):
            raise Unsafe("the list of survivors is no list of names")
        names, least = set(survivors), self.least
        if len(names) != len(survivors) or not names <= set(one["givers"]):
            raise Unsafe("the list of survivors names clients that sent nothing, or one twice")
        if self.signer.name not in names:
            raise Unsafe("the list of survivors is without this client, which is here")
        if len(names) < least:
            raise Unsafe(f"{len(names)} survivors: {least} are needed to hide among")
        if one.get("agreed", sorted(names)) != sorted(names):
            raise Unsafe("another list of survivors than this client put its name under")
        subject = one["subject"]
        about = (subject["network"], attempt.phase, subject["ahead"])
        liars = [proved_liar(proof, attempt, self.roster, self.colluders) for proof in proofs]
        found = [_summed(attempt, subject, [*names.union(liars[k:])]) for k in range(len(liars))]
        self.revealed.check(*about, _summed(attempt, subject, survivors), *found)
        return found

    def _check_agreed(
        self, attempt: Attempt, one: Table, survivors: Sequence[str], agreements: Iterable[Table]
    ) -> None:
        if one.get("agreed") is None:
            raise Unsafe("somebody is missing from the list, and nobody was asked to agree to it")
        wanted, found = _list(survivors), set()
        for message in agreements:
            name, body = self.roster.said(attempt, "survivors", message)
            if dict(body) == wanted and name in survivors:
                found.add(name)
        if len(found) < self.least:
            raise Unsafe(f"{len(found)} clients agree to this list of survivors, {self.least} must")


def _secret(one: Table) -> AttemptKeys:
    return AttemptKeys(**{part: from_text(text) for part, text in one["secret"].items()})


def _ends(attempt: Attempt, writer: str, reader: str, public: Table) -> dict[str, str]:
    about = {"attempt": digest(attempt.facts), "keys": digest(public)}
    return {"writer": writer, "reader": reader, **about}


def _early(one: Table) -> bool:
    return one["step"] in (Step.KEYS, Step.LETTERS)


def _list(survivors: Sequence[str]) -> dict[str, str]:
    return {"survivors": names_digest(survivors)}


def _summed(attempt: Attempt, subject: Table, survivors: Sequence[str]) -> str:
    """A name for a sum: it is the same in every attempt at it."""
    return digest([attempt.facts[:-1], dict(subject), sorted(survivors)])
