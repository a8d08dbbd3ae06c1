"""How far the server's optimizer can have moved the network since a client last saw it.

A server could craft a network that makes the updates of chosen examples stand out in the sum. So a
client rebuilds the first network from the seed, and refuses a later one that the agreed optimizer
cannot have reached. With Adam, by Cauchy and Schwarz, whatever the gradients were,

    |m_hat| / sqrt(v_hat) <= (1 - b1) / sqrt(1 - b2) sqrt((1 - rho^t) / (1 - rho))
                             sqrt(1 - b2^t) / (1 - b1^t),   rho = b1^2 / b2

in step t: 1 at first, and 7.3 in the limit for b1 = .9 and b2 = .999.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedgradnorm._errors import ConfigError
from fedgradnorm._masking.roster import Unsafe
from fedgradnorm._round.settings import Settings

ROUNDING = 1e-4  # of a step, relative: moments are kept in the network's own precision
FIRST = 1e-5  # between two machines' first networks, relative: their CPUs round differently


class NetworkBound:
    """The bound of the agreed server optimizer; a ConfigError where it has none."""

    def __init__(self, settings: Settings) -> None:
        server = settings.server()
        self.table, self.rates = server["optimizer"], server["rates"]
        name = self.table["name"]
        b1, b2 = self.table.get("betas", (0.9, 0.999))
        if name not in ("adam", "adamw") or self.table.get("amsgrad") or not b1**2 < b2 < 1:
            raise ConfigError(
                f"server optimizer {name!r} cannot be used in a private federation: clients check "
                "that the server moved no coordinate farther than its optimizer can, and only "
                "'adam' and 'adamw' (without amsgrad) have such a bound; choose one of them"
            )

    def options(self, round_number: int) -> Mapping[str, Any]:
        """The optimizer's options in a round."""
        return {**self.table, **(self.rates.at(round_number) if self.rates else {})}

    def reach(self, before: int, now: int) -> tuple[float, float]:
        """(a, b): coordinate x moves by at most a |x| + b from one round to another."""
        a = b = 0.0
        for round_number in range(before, now):
            how = self.options(round_number)
            step = how["lr"] * (1 + ROUNDING) * _factor(how.get("betas"), round_number + 1)
            default = 0.01 if how["name"] == "adamw" else 0.0
            decay = how["lr"] * how.get("weight_decay", default) if how["name"] == "adamw" else 0.0
            a, b = a + decay * (1 + a), b + decay * b + step
        return a, b

    def check(self, network: Tensor, known: Tensor, before: int, now: int) -> None:
        """Unsafe if the network of round ``now`` cannot have become of that of ``before``."""
        a, b = self.reach(before, now)
        about = torch.finfo(known.dtype).eps * 4 * max(1, now - before)
        rounding = FIRST if before == 0 else about
        size = known.double().abs()
        moved = (network.double() - known.double()).abs()
        allowed = (a + rounding) * size + b + rounding * (1e-2 + b)
        if not bool(torch.isfinite(network).all()) or bool((moved > allowed).any()):
            raise Unsafe(
                f"the network of round {now} is not one that the agreed server optimizer can have "
                f"made of that of round {before}"
                if now
                else "the first network is not the one that the agreed seed makes"
            )


def _factor(betas: Any, step: int) -> float:
    b1, b2 = betas or (0.9, 0.999)
    rho = b1 * b1 / b2
    drawn = math.sqrt((1 - rho**step) / (1 - rho) * (1 - b2**step))
    return (1 - b1) / math.sqrt(1 - b2) * drawn / (1 - b1**step)
