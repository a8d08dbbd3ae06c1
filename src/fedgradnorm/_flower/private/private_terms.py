"""``roster.toml``: who takes part in a private federation, and what is agreed beside the run.

It is made at ``federation init`` and lies in every client's folder, so the server cannot invent
clients, nor swap their keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedgradnorm._errors import ConfigError
from fedgradnorm._masking.ring import fraction_bits
from fedgradnorm._masking.roster import FEWEST, Roster, assemble_roster, digest
from fedgradnorm._options import check_options, options_of
from fedgradnorm._round.participation import participants
from fedgradnorm._round.settings import Settings
from fedgradnorm.experiments._config.toml_text import read_toml, to_toml

LOOKED_AT = 100  # rounds, for the least number of clients that are drawn
LEAST_BITS = 24
"""Behind the point of masked vectors: rounding stays under that of float32."""


@dataclass(frozen=True)
class PrivateTerms:
    """The clients' public keys by name, and the bounds that each client keeps by itself.

    A client's part of the step (its coefficient times its update) is cut to the length ``longest``;
    a loss ratio over ``largest_ratio`` counts as that.
    """

    clients: Mapping[str, str]
    longest: float = 1e6
    largest_ratio: float = 3.0

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
        _ = self.roster

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
        return digest([dict(self.clients), self.longest, self.largest_ratio])

    def write(self, path: Path) -> None:
        """As TOML."""
        bounds = {"longest": self.longest, "largest_ratio": self.largest_ratio}
        path.write_text(to_toml({**bounds, "clients": dict(self.clients)}), encoding="utf-8")


def fewest_of(settings: Settings, rounds: int, names: Sequence[str]) -> int:
    """How many clients must show keys for a sum: more than half of those whom the run draws.

    The server names the clients of a round. If it could name few, it could name one client and
    some who tell it everything. Clients that add noise are all asked in every round.
    """
    if settings.privacy is not None:
        return max(FEWEST, len(names) // 2 + 1)
    drawn = (
        len(participants(settings.participation, settings.seed, list(names), number))
        for number in range(min(rounds, LOOKED_AT))
    )
    return max(FEWEST, min(drawn, default=0) // 2 + 1)


def read_terms(path: Path) -> PrivateTerms:
    """The terms in a file; a ConfigError that says what is wrong with it."""
    try:
        table = read_toml(path)
        check_options("this file", table, options_of(PrivateTerms))
        return PrivateTerms(**table)
    except (ConfigError, TypeError) as error:
        raise ConfigError(f"{path}: {error}") from None
