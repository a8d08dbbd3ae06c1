"""Client-level privacy under secure aggregation: clients add the noise, each a share of it.

No sum can be unmasked with fewer than t clients in it, and at most c of them tell the server their
own shares of the noise. So each client adds to its part, clipped to the length C, normal noise of
variance (sigma C)^2 / (t - c) before it masks. Every sum that the server can see then has noise of
variance (sigma C)^2 or more that nobody knows, whoever is lost. With n clients in the sum, none of
which colludes, it is n / (t - c) times that.

Each client flips its own coin, with chance q, whether it gives its update or nothing but noise. Who
did is known to nobody else, so the sampling hides it from the server as well.

Everything is rounded to a grid of about a billionth of the noise, the update and the noise each by
itself, and the clip is lowered by what that can add. All arithmetic after it is in whole numbers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedgradnorm._errors import ConfigError
from fedgradnorm._masking.ring import SPARE, Words, pack_vector, unpack_vector
from fedgradnorm._privacy.noise import GRID, Noise
from fedgradnorm._round.private.client_sums import clipped, plan_of_clients
from fedgradnorm._round.settings import Settings

TAIL = 9.0  # no normal number of ``Noise`` is so many deviations away


class NoiseShares:
    """What one client adds to a sum, and what the server makes of the sum."""

    def __init__(self, settings: Settings, rounds: int, clients: int) -> None:
        terms = settings.client_privacy
        assert terms is not None
        terms.check_delta(clients, "clients")
        self.terms, self.plan = terms, plan_of_clients(settings, rounds)
        self.noise = self.plan.noise(terms)
        self.deviation = self.noise * terms.clip
        self.bits = -math.floor(math.log2(self.deviation * GRID))
        largest = terms.clip + TAIL * self.deviation  # the share of a client that stands alone
        if clients * math.ldexp(largest, self.bits) >= 2.0**SPARE:
            raise ConfigError(f"{clients} clients are too many for sums of 64 bits with this noise")

    def part(self, update: Tensor, multiplier: float, least: int, noise: Noise) -> Words:
        """A client's part of a sum with at least ``least`` honest clients, with its noise.

        An update that is not finite counts as zero: nobody learns that a client failed.
        """
        fine = torch.isfinite(update).all() and math.isfinite(multiplier)
        own = torch.tensor([multiplier if fine else 0.0], dtype=torch.float64)
        row = clipped(update[None].cpu(), own, self.clip(len(update)))[0].numpy()
        given = noise.uniform(1)[0] <= self.plan.rate
        share = self.deviation / math.sqrt(least) * noise.normal(len(row))
        return pack_vector(row * float(given), self.bits) + pack_vector(share, self.bits)

    def clip(self, words: int) -> float:
        """The longest part such that it is no longer than agreed after it was rounded."""
        found = self.terms.clip - math.sqrt(words) * 2.0 ** -(self.bits + 1)
        if found <= 0:
            raise ConfigError(f"privacy: noise {self.noise:g} leaves nothing of an update")
        return found

    def direction(self, words: Words, clients: int) -> Tensor:
        """What the server steps along: the sum by the number of clients expected to be in it."""
        return torch.from_numpy(unpack_vector(words, self.bits)) / (self.plan.rate * clients)
