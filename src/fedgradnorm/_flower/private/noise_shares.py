"""Client-level privacy under secure aggregation: clients add the noise, each a share of it.

No sum can be unmasked with fewer than t clients in it, t = max(3, floor(2n/3) + 1) of the n whose
keys were shown. Each of them adds to its part, clipped to the length C, normal noise of variance
(sigma C)^2 / t by itself, before it masks. So every sum that the server can see has noise of
variance (sigma C)^2 or more, whoever is lost. With nobody lost it is n / t times that.

Each client flips its own coin, with chance q, whether it gives its update or nothing but noise. Who
did is known to nobody else, so the sampling hides it from the server as well.

Everything is rounded to a grid of about a billionth of the noise, the update and the noise each by
itself, and the clip is lowered by what that can add. All arithmetic after it is in whole numbers.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from fedgradnorm._errors import ConfigError, RunFolderError
from fedgradnorm._flower.ledger import SPENT
from fedgradnorm._flower.wire.messages import Refused
from fedgradnorm._masking.ring import SPARE, Unfit, Words, pack_vector, unpack_vector
from fedgradnorm._masking.roster import FEWEST
from fedgradnorm._privacy.accountant import Steps, epsilon_of
from fedgradnorm._privacy.budget import Budget
from fedgradnorm._privacy.randomness import GRID, Chance
from fedgradnorm._round.private.client_sums import account, along, clipped
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs import checkpoint

TAIL = 9.0  # no normal number of ``Chance`` is so many deviations away


class NoiseShares:
    """What one client adds to a sum, and what the server makes of the sum."""

    def __init__(self, settings: Settings, rounds: int, clients: int) -> None:
        terms, budget = settings.client_privacy, account(settings, rounds)
        assert terms is not None
        assert budget is not None
        self.terms, self.budget = terms, budget
        self.deviation = budget.noise * terms.clip
        self.bits = -math.floor(math.log2(self.deviation * GRID))
        largest = terms.clip + TAIL * self.deviation / math.sqrt(FEWEST)
        if clients * math.ldexp(largest, self.bits) >= 2.0**SPARE:
            raise ConfigError(f"{clients} clients are too many for sums of 64 bits with this noise")

    def words(self, shared: int) -> int:
        """How many numbers are summed for a shared vector of this length."""
        return shared + bool(self.terms.total)

    def part(self, update: Tensor, multiplier: float, least: int, chance: Chance) -> Words:
        """A client's part of a sum that at least ``least`` clients will be in, with its noise."""
        if not torch.isfinite(update).all():
            raise Unfit("the update holds numbers that are not finite")
        own = torch.tensor([multiplier], dtype=torch.float64)
        clip = self.clip(self.words(len(update)))
        row = clipped(update[None].cpu(), own, clip, self.terms.total)[0].numpy()
        given = chance.uniform(1, "whether")[0] <= self.budget.rate
        share = self.deviation / math.sqrt(least) * chance.normal(len(row), "noise")
        return pack_vector(row * float(given), self.bits) + pack_vector(share, self.bits)

    def clip(self, words: int) -> float:
        """The longest part such that it is no longer than agreed after it was rounded."""
        found = self.terms.clip - math.sqrt(words) * 2.0 ** -(self.bits + 1)
        if found <= 0:
            raise ConfigError(f"privacy: noise {self.budget.noise:g} leaves nothing of an update")
        return found

    def direction(self, words: Words, clients: int) -> Tensor:
        """What the server steps along: the sum by the number of clients expected to be in it."""
        noised = torch.from_numpy(unpack_vector(words, self.bits))
        return along(noised, self.deviation, self.budget.rate * clients, self.terms.total)


class Releases:
    """What a client has given in all runs of its state folder, on disk before it is given.

    Every input counts, also that of an attempt that came to nothing: the client cannot know.
    """

    def __init__(self, path: Path, budget: Budget) -> None:
        self._path, self._kind = path, (budget.noise, budget.rate)
        taken = self._read()
        self._others = tuple(s for s in taken if (s.noise, s.rate) != self._kind)
        self.count = sum(s.times for s in taken if (s.noise, s.rate) == self._kind)
        self._budget, self.most = budget, budget.most
        if self._others:
            try:
                self._budget = replace(budget, given=budget.noise, before=self._others)
                self.most = self._budget.most
            except ConfigError:  # not a single one more
                self.most = 0

    @property
    def epsilon(self) -> float:
        """What is spent."""
        if not self.most:
            return epsilon_of(self._others, self._budget.delta)
        return self._budget.spent(self.count)

    def charge(self) -> None:
        """Count one more; Refused where that would cost too much."""
        if self.count >= self.most:
            raise Refused(SPENT)
        self.count += 1
        taken = [*self._others, Steps(*self._kind, self.count)]
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        text = json.dumps({"format": 1, "sums": taken}, indent=1)
        checkpoint.write_atomically(self._path, text.encode())

    def _read(self) -> list[Steps]:
        if not self._path.exists():
            return []
        try:
            table = json.loads(self._path.read_text("utf-8"))["sums"]
            return [Steps(float(noise), float(rate), int(times)) for noise, rate, times in table]
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise RunFolderError(
                f"{self._path} is damaged ({error}): nobody knows what was spent; put a copy back"
            ) from error
