"""The server's rounds where clients add noise to what they mask, and its account of them.

All clients are asked in every round: which of them give an update, they decide by chance, and only
they know. The server counts every sum that it asked inputs for, as each client does by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fedgradnorm._errors import TrainingError
from fedgradnorm._flower.private.noise_shares import NoiseShares
from fedgradnorm._flower.private.private_rounds import ALL, PrivateCoordinator
from fedgradnorm._flower.private.summing import Asks, Key, Wanted
from fedgradnorm._flower.private.verified_sums import network_digest
from fedgradnorm._flower.wire.sum_messages import SumAnswer
from fedgradnorm._masking.ring import Words
from fedgradnorm._masking.roster import Phase
from fedgradnorm._masking.subject import Subject
from fedgradnorm._privacy.accountant import epsilon_of, spent
from fedgradnorm._runs.csv_table import Row
from fedgradnorm._runs.history import SPENT, History
from fedgradnorm._training.callbacks import Progress

log = logging.getLogger("fedgradnorm")


class NoisyCoordinator(PrivateCoordinator):
    """As ``PrivateCoordinator``, for a run with ``privacy``."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        about = (self.agreement.settings, self.agreement.rounds, len(self.names))
        self.shares, self.taken = NoiseShares(*about), 0
        self.history = History([], [SPENT])
        words = "privacy of clients: %s; every sum has noise %.3g x clip %g, added by clients"
        log.info(words, self.shares.terms.words, self.shares.noise, self.shares.terms.clip)

    @property
    def spent(self) -> bool:
        """Whether the budget holds no further sum."""
        return self._cost(self.taken + 1) > self.shares.terms.epsilon

    def _cost(self, sums: int) -> float:
        """Epsilon of so many sums."""
        steps = self.shares.plan.round(self.shares.noise, rounds=sums)
        bound = spent(steps[-1], self.shares.terms.delta) if sums else 0.0
        if bound > self.shares.terms.epsilon:
            return epsilon_of(steps, self.shares.terms.delta)
        return bound

    @property
    def done(self) -> bool:
        """Whether all rounds are over, or the budget is spent."""
        return super().done or self.spent

    def advance(self) -> Progress:
        """One round; where the last sum of the budget came to nothing, the end."""
        try:
            return super().advance()
        except TrainingError:
            if not self.spent:
                raise
        words = "the privacy budget is spent after %d rounds of %d: sums that failed count, too"
        log.warning(words, self.round, self.agreement.rounds)
        return self._at_round()

    def _private_round(self, cohort: list[str], asked: list[str]) -> Progress:
        if self.spent:
            raise TrainingError("the privacy budget is spent")
        least = max(self._least(cohort, asked), self.threshold(len(asked)))
        subject = Subject(network_digest(self.server.shared.data), ahead=True)
        key, give = (self.round, Phase.UPDATE), {"part": Phase.UPDATE, "ahead": True}
        wanted = Wanted(key, asked, subject, lambda _: give, 0, least, self._upcoming())
        at, words = self.summing.sum(wanted)
        return self._noisy_step(asked, list(at.inputs), words)

    def _upcoming(self) -> tuple[Key, list[str]] | None:
        number = self.round + 1
        names = [n for n in self.names if self.attendance.takes_part(n, number)]
        return ((number, Phase.UPDATE), names) if number < self.agreement.rounds else None

    def _ask(self, asks: Asks) -> Mapping[str, SumAnswer]:
        self.taken += any("input" in one for one in asks.values())
        return super()._ask(asks)

    def _told_to(self, name: str) -> dict[str, Any]:  # noqa: ARG002
        return {"told": {}, "since": []}

    def _noisy_step(self, asked: list[str], good: list[str], words: Words) -> Progress:
        """One step along the noisy sum, divided by the number of clients expected in it."""
        shared = self.server.shared
        self.server.step(self.shares.direction(words, len(good)).to(shared))
        self._done(good)
        self.round += 1
        row: Row = {"round": self.round, "epoch": float(self.round), "client": ALL}
        row.update(split="batch", active=len(good), weight=1.0, epsilon=self.epsilon)
        row.update(bytes=sum(self.bytes[name] for name in asked))
        self.history.append([row])
        return self._at_round()

    @property
    def epsilon(self) -> float:
        """What is spent so far."""
        return self._cost(self.taken)

    def _at_round(self) -> Progress:
        counts = (self.round, self.agreement.rounds, float(self.round))
        return Progress(*counts, {ALL: self.epsilon}, {ALL: 1.0}, shown="epsilon spent")

    def state_dict(self, rows: bool = True) -> dict[str, Any]:
        """Everything needed to continue from here."""
        return {**super().state_dict(rows), "taken": self.taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""
        super().load_state_dict(state)
        self.taken = state["taken"]
