"""``roster.toml``: the clients of a private federation, and what is agreed besides the run.

Every client has a copy and compares its fingerprint with the others', so the server can neither
invent clients nor swap their keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgradnorm._errors import ConfigError
from fedgradnorm._masking.ring import fraction_bits
from fedgradnorm._masking.roster import Roster, assemble_roster, digest, fingerprint
from fedgradnorm._options import check_options, options_of
from fedgradnorm._toml import read_toml, to_toml

LEAST_BITS = 24
"""Behind the point of masked vectors: rounding stays under that of float32."""


@dataclass(frozen=True)
class PrivateTerms:
    """The clients' public keys by name, and the bounds that each client keeps by itself.

    A client's part of the step (its coefficient times its update) is cut to the length ``longest``;
    a loss ratio over ``largest_ratio`` counts as that. ``colluders`` is how many clients may tell
    the server everything, and the others are still safe; -1 is a third of all, rounded down.
    """

    clients: Mapping[str, str]
    longest: float = 1e6
    largest_ratio: float = 3.0
    colluders: int = -1

    def __post_init__(self) -> None:
        if not isinstance(self.clients, Mapping):
            raise ConfigError("clients must be a table of names and public keys")
        if not (self.longest > 0 and self.largest_ratio >= 1):
            raise ConfigError("longest must be > 0 and largest_ratio >= 1")
        if not math.isfinite(self.longest) or self.bits < LEAST_BITS:
            raise ConfigError(
                f"longest = {self.longest:g} with {len(self.clients)} clients leaves fewer than "
                f"{LEAST_BITS} bits behind the point of sums of 64 bits; lower longest"
            )
        count = len(self.roster.keys)
        if self.colluders == -1:
            object.__setattr__(self, "colluders", count // 3)
        if not isinstance(self.colluders, int) or not 0 <= self.colluders <= count - 2:
            raise ConfigError(
                f"colluders = {self.colluders!r}: give a number from 0 to {count - 2}, two less "
                "than there are clients"
            )

    @property
    def roster(self) -> Roster:
        """The keys, checked."""
        return assemble_roster(self.clients)

    @property
    def bits(self) -> int:
        """Bits behind the point of masked vectors: as many as the sum of all clients leaves."""
        return fraction_bits(len(self.clients), self.longest)

    @property
    def digest(self) -> str:
        """A name for all of it."""
        return digest([dict(self.clients), *self._bounds.values()])

    @property
    def fingerprint(self) -> str:
        """For comparison out of band: it changes with any key, name or bound."""
        return fingerprint(self.digest.encode())

    @property
    def _bounds(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("longest", "largest_ratio", "colluders")}

    def write(self, path: Path) -> None:
        """As TOML."""
        path.write_text(to_toml({**self._bounds, "clients": dict(self.clients)}), encoding="utf-8")


def read_terms(path: Path) -> PrivateTerms:
    """The terms in a file; a ConfigError that says what is wrong with it."""
    try:
        table = read_toml(path)
        check_options("this file", table, options_of(PrivateTerms))
        return PrivateTerms(**table)
    except (ConfigError, TypeError) as error:
        raise ConfigError(f"{path}: {error}") from None
