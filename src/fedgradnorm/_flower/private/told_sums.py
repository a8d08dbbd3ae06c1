"""Sums as clients are told them, with the signed messages that show that they are right.

Clients weigh themselves by the sums they are told. A server that could make them up could turn the
weights until one client is all that is left of the sum. So nobody is told a number: everybody is
told the masked inputs and the shares, and adds up for himself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedgradnorm._masking.gathering import Gathering
from fedgradnorm._masking.ring import unpack_numbers
from fedgradnorm._masking.roster import Attempt, Roster, Unsafe, digest


@dataclass(frozen=True)
class Sums:
    """What was summed, over whom, and the sums."""

    about: str
    names: tuple[str, ...]
    numbers: tuple[float, ...]


def told(at: Gathering) -> dict[str, Any]:
    """What a client must see of an attempt to add its numbers up."""
    return {
        "attempt": at.attempt.number,
        "keys": list(at.keys.values()),
        "givers": list(at.givers),
        "inputs": list(at.inputs.values()),
        "reveals": list(at.reveals.values()),
    }


def seen(given: Any, roster: Roster, run: str) -> Sums:
    """The sums; Unsafe unless signed messages of enough clients lead to them."""
    try:
        at = Gathering(Attempt(run, int(given["attempt"])), roster)
        for message in given["keys"]:
            at.add_keys(message)
        at.givers = sorted(map(str, given["givers"]))
        about = str(given["inputs"][0]["body"]["about"])
        for message in given["inputs"]:
            at.add_input(message, about, None)
        for message in given["reveals"]:
            at.add_reveal(message)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise Unsafe("the sums that the server tells cannot be read") from error
    return Sums(about, tuple(at.inputs), tuple(unpack_numbers(at.sum())))


def network_digest(shared: Tensor) -> str:
    """A name for the network that clients train: all must have the same one."""
    return hashlib.sha256(shared.detach().cpu().contiguous().numpy().tobytes()).hexdigest()


def about_signals(agreed: str, run: str, round_number: int, network: str) -> str:
    """A name for a round's first sums."""
    return f"signals/{round_number}/{digest([agreed, run, round_number, network])}"


def about_update(
    agreed: str, run: str, round_number: int, network: str, used: Sequence[float]
) -> str:
    """A name for a round's second sums; ``used`` are the sums that clients moved by."""
    return f"update/{round_number}/{digest([agreed, run, round_number, network, list(used)])}"


def is_of(sums: Sums, kind: str, round_number: int) -> bool:
    """Whether these are that round's first sums ("signals"), or its second ones ("update")."""
    return sums.about.startswith(f"{kind}/{round_number}/")


def parted(numbers: Sequence[float], sizes: Mapping[str, int]) -> dict[str, list[float]]:
    """The sums of an update by kind: coefficient, second, first."""
    found, start = {}, 0
    for name, size in sizes.items():
        found[name] = list(numbers[start : start + size])
        start += size
    if start != len(numbers):
        raise Unsafe(f"{len(numbers)} sums instead of {start}")
    return found
