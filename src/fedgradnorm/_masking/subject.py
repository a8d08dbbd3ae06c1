"""What a sum is of: everything that an input depends on, signed and part of every mask.

Two clients that were told different things have different subjects. Their masks do not cancel, and
the server refuses the input whose subject is not the others'.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedgradnorm._masking.roster import Attempt, digest


@dataclass(frozen=True)
class Subject:
    """The digest of the network; that of the sums a client settled its weight by and moves by.

    ``ahead``: whether an update's sum carries the round's signals, too.
    """

    network: str
    sums: str = ""
    ahead: bool = False

    def facts(self) -> dict[str, Any]:
        """As it is signed."""
        return {"network": self.network, "sums": self.sums, "ahead": self.ahead}


def pair_label(label: bytes, one: str, other: str) -> bytes:
    """What the mask of two clients is made for.

    The names are part of it: one that shows another's public key as its own would have the same
    mask with everybody, and the two would cancel.
    """
    return label + b" " + digest(sorted((one, other))).encode()


def mask_label(attempt: Attempt, keys: str, roster: str, givers: str, subject: Any) -> bytes:
    """What masks are made for: attempt, all keys, roster, who masks, and the subject."""
    about = dict(subject) if isinstance(subject, Mapping) else subject
    return digest([attempt.facts, keys, roster, givers, about]).encode()
