"""A client of a private federation that hides whole clients: its part of a sum has noise.

Nothing else is summed: its multiplier is made of numbers that stay with it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from fedgradnorm._flower.private.noise_shares import NoiseShares, Releases
from fedgradnorm._flower.private.silo import Silo, State, no_words, sent
from fedgradnorm._flower.wire.sum_messages import SumOrder
from fedgradnorm._masking.roster import Unsafe
from fedgradnorm._masking.session import Session
from fedgradnorm._masking.subject import Subject
from fedgradnorm._privacy.randomness import KEY_BYTES, Chance
from fedgradnorm._round.private.client_sums import ClientSums
from fedgradnorm._runs.history import History, read_history
from fedgradnorm._runs.layout import METRICS, RELEASES


class NoisySilo(Silo):
    """As ``Silo``, for a run with ``privacy``."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        settings = self.agreement.settings
        terms = settings.client_privacy
        assert terms is not None
        self.shares = NoiseShares(settings, self.agreement.rounds, len(self.terms.clients))
        self.releases = Releases(self.folder / RELEASES, self.shares.budget)
        self.sums = ClientSums(terms, [self.name], self.level.weighting, settings)
        self._first: State = {"rounds": 0, "sums": self.sums.state_dict()}

    @property
    def tells_epsilon(self) -> bool:
        """Whether its history says what was spent."""
        return True

    def _input(self, order: SumOrder, ask: Mapping[str, Any], session: Session) -> Any:
        """Its part of the noisy sum, masked; new noise for every attempt, and each is paid for."""
        if ask["part"] != "update" or not ask["ahead"]:
            raise Unsafe("the server asks for a sum without noise, and the run promises noise")
        least = session.fewest(ask["attempt"])
        levels = self._levels(order.run)
        self.sums.load_state_dict(levels.at(order.state_round, self._first)["sums"])
        trained = self._train_once(order)
        reported = trained["reported"]
        multiplier = float(self.sums.multipliers(self.level.signals(reported))[0])
        self.releases.charge()
        fresh = Chance(secrets.token_bytes(KEY_BYTES))
        vector = self.shares.part(trained["update"], multiplier, least, fresh)
        subject = Subject(trained["network"], ahead=True)
        after = {"rounds": order.state_round + 1, "sums": self.sums.state_dict()}
        levels.save(after, keep=order.state_round)
        told = {"weight": multiplier, "epsilon": self.releases.epsilon}
        self._note(order.run, {**reported, **told}, order.round)
        return sent(session.mask(ask["attempt"], ask["letters"], subject, no_words(0), vector))

    def _settled(self, order: SumOrder, ask: Mapping[str, Any], session: Session) -> State:  # noqa: ARG002
        """Nothing is left open by a round."""
        return {}

    def _own_history(self, run: str) -> History:
        path = self.folder / run / METRICS
        return read_history(path) if path.exists() else History([], private=True)
