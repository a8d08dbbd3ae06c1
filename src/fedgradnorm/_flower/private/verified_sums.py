"""Sums as clients are told them, with the signed messages that show that they are right.

Clients weigh themselves by the sums they are told. A server that could make them up could turn the
weights until one client is all that is left of the sum. So nobody is told a number: everybody is
told the masked inputs and the shares, and adds up. Sums that no honest clients can have (a liar may
add anything to one) are not used: levels stay as they are for that round.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch import Tensor

from fedgradnorm._masking.gathering import Gathering, TooFew
from fedgradnorm._masking.ring import LIMBS, Words, unpack_numbers
from fedgradnorm._masking.roster import Attempt, Phase, Subject, Unsafe, digest
from fedgradnorm._masking.session import Session

RANGE = 2.0**50  # of one client's number
PRESENT, COUNT = "present", 0


@dataclass(frozen=True)
class Sums:
    """What was summed in which round and phase, over whom, and the sums."""

    round: int
    phase: Phase
    subject: Subject
    names: tuple[str, ...]
    numbers: tuple[float, ...]

    @property
    def digest(self) -> str:
        """A name for all of it."""
        facts = [self.round, str(self.phase), self.subject.facts()]
        return digest([*facts, list(self.names), list(self.numbers)])


def told(at: Gathering) -> dict[str, Any]:
    """What a client must see of an attempt to add its numbers up."""
    return {
        "attempt": at.attempt.name,
        "round": at.attempt.round,
        "phase": str(at.attempt.phase),
        "keys": list(at.keys.values()),
        "givers": list(at.givers),
        "inputs": list(at.inputs.values()),
        "reveals": list(at.reveals.values()),
    }


def verified(given: Any, session: Session, sizes: Mapping[Phase, Mapping[str, int]]) -> Sums:
    """The sums; Unsafe unless signed messages of enough clients lead to them.

    Every input was signed over all keys, the roster and who was asked, so nothing can be added.
    ``sizes`` are how many numbers each phase has, by kind.
    """
    try:
        phase, number = Phase(given["phase"]), int(given["round"])
        attempt = Attempt(session.agreement, session.run, number, phase, str(given["attempt"]))
        at = Gathering(attempt, session.roster, session.colluders)
        for message in given["keys"]:
            at.add_keys(message["from"], message)
        at.givers = sorted(map(str, given["givers"]))
        subject = Subject(**given["inputs"][0]["body"]["subject"])
        for message in given["inputs"]:
            at.add_numbers(message, subject, LIMBS * sum(sizes[phase].values()))
        for message in given["reveals"]:
            at.add_reveal(message["from"], message)
        if not at.enough_keys or len(at.inputs) < at.least:
            raise Unsafe("the sums that the server tells are over too few clients")
        return sums_of(at, at.sum())
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, TooFew) as error:
        raise Unsafe("the sums that the server tells cannot be read") from error


def sums_of(at: Gathering, front: Words) -> Sums:
    """The sums of an attempt, from the words of its numbers."""
    subject = Subject(**next(iter(at.inputs.values()))["body"]["subject"])
    names, numbers = tuple(sorted(at.inputs)), tuple(unpack_numbers(front))
    return Sums(at.attempt.round, at.attempt.phase, subject, names, numbers)


def usable(numbers: Sequence[float], sizes: Mapping[str, int], clients: int) -> dict[str, Any]:
    """The sums by kind; empty where no ``clients`` honest ones can have them.

    Each client adds 1 to ``present``. One that could not train adds nothing to all the others.
    """
    rest = iter(numbers)  # as many as ``sizes`` has: inputs of another length are refused
    parts: dict[str, Any] = {name: list(islice(rest, size)) for name, size in sizes.items()}
    good = all(math.isfinite(x) and abs(x) <= clients * RANGE for x in numbers)
    if not good or parts.pop(PRESENT) != [clients]:
        return {}
    active = parts["first"][COUNT]
    if not 1 <= active <= clients or active != int(active):
        return {}
    return parts if parts.get("coefficient", [1.0])[0] > 0 else {}


def network_digest(shared: Tensor) -> str:
    """A name for the network that clients train: all must have the same one."""
    return hashlib.sha256(shared.detach().cpu().contiguous().numpy().tobytes()).hexdigest()


def chained(start: str, more: Iterable[str]) -> str:
    """A name for all sums up to a round: whoever was told another one has another name."""
    for one in more:
        start = digest([start, one])
    return start
