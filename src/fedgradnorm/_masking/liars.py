"""Proof, from signed messages alone, that a client dealt shares that do not fit together.

A sum with such a client cannot be unmasked, although shares were shown for it. The others may show
them again without the liar: what that adds to the first sum is the liar's own part alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedgradnorm._masking import shamir
from fedgradnorm._masking.attempt_keys import SEED
from fedgradnorm._masking.roster import (
    Attempt,
    Roster,
    Unsafe,
    digest,
    from_text,
    threshold,
    to_text,
)


def proof(at: Any, liar: str) -> dict[str, Any]:
    """What a server shows of an attempt in which the shares of ``liar`` joined to nothing."""
    return {
        "attempt": at.attempt.name,
        "liar": liar,
        "letters": at.said[liar],
        "reveals": [m for m in at.reveals.values() if liar in m["body"]["own"]],
    }


def proved_liar(given: Any, attempt: Attempt, roster: Roster, colluders: int) -> str:
    """Who lied, in another attempt at the same sum; Unsafe where that does not follow."""
    try:
        liar, earlier = str(given["liar"]), replace(attempt, name=str(given["attempt"]))
        letters = roster.said(earlier, "letters", given["letters"], liar)[1]
        dealt, own = letters["shares"], letters["own"]
        places = {name: i for i, name in enumerate(sorted(dealt), start=1)}
        shares = dict[int, str]()
        for message in given["reveals"]:
            name, body = roster.said(earlier, "reveal", message)
            if digest(body["own"][liar]) == dealt[name]["own"]:
                shares[places[name]] = body["own"][liar]
        least = threshold(len(roster), colluders)
        joined = _joined(dict(sorted(shares.items())[:least])) if len(shares) >= least else None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unsafe("the proof that somebody lied cannot be read") from error
    if joined is None or joined == own:
        raise Unsafe(f"it is not proved that {liar!r} lied")
    return liar


def _joined(shares: Mapping[int, str]) -> str:
    """What an own mask's shares lead to, as its client pinned it down; "" where to nothing."""
    try:
        found = {place: from_text(share) for place, share in shares.items()}
        return digest(to_text(shamir.join(found, SEED)))
    except (ValueError, OverflowError):
        return ""
