"""A client of a private federation that hides whole clients: its part of a sum has noise.

Nothing else is summed: its multiplier is made of numbers that stay with it. Every input is charged
to the client's ledger before it is computed, also that of an attempt that then fails.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedgradnorm._errors import ConfigError
from fedgradnorm._flower.ledger import ClientLedger
from fedgradnorm._flower.private.noise_shares import NoiseShares
from fedgradnorm._flower.private.secure_sum_client import SecureSumClient, State, no_words, sent
from fedgradnorm._flower.wire.sum_messages import SumOrder
from fedgradnorm._masking.roster import Unsafe
from fedgradnorm._masking.session import Session
from fedgradnorm._masking.subject import Subject
from fedgradnorm._privacy.noise import Noise
from fedgradnorm._round.private.client_sums import ClientSums


class NoisySumClient(SecureSumClient):
    """As ``SecureSumClient``, for a run with ``privacy``."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        settings = self.agreement.settings
        terms = settings.client_privacy
        assert terms is not None
        if self.client.ledger is not None:
            raise ConfigError(
                f"client {self.name!r} has privacy, and the run protects whole clients: the two "
                "promises are accounted in different units; choose one"
            )
        self.shares = NoiseShares(settings, self.agreement.rounds, len(self.terms.clients))
        fixed = replace(terms, noise_multiplier=self.shares.noise)
        self.releases = ClientLedger(self.folder, self.name, fixed, lambda: self.shares.plan)
        self.sums = ClientSums(terms, [self.name], self.level.weighting, settings)
        self._first: State = {"rounds": 0, "sums": self.sums.state_dict()}

    def _input(self, order: SumOrder, ask: Mapping[str, Any], session: Session) -> Any:
        """Its part of the noisy sum, masked: fresh noise for every attempt, and each is charged."""
        if ask["part"] != "update" or not ask["ahead"]:
            raise Unsafe("the server asks for a sum without noise, and the run promises noise")
        least = session.fewest(ask["attempt"]) - session.colluders  # who know their own shares
        levels = self._levels(order.run)
        self.sums.load_state_dict(levels.at(order.state_round, self._first)["sums"])
        epsilon = self.releases.charge(order.run, order.round)
        trained = self._train_once(order)
        reported = trained["reported"]
        multiplier = float(self.sums.multipliers(self.level.signals(reported))[0])
        vector = self.shares.part(trained["update"], multiplier, least, Noise())
        subject = Subject(trained["network"], ahead=True)
        after = {"rounds": order.state_round + 1, "sums": self.sums.state_dict()}
        levels.save(after, keep=order.state_round)
        measured = dict.fromkeys(reported, math.nan) if trained["failed"] else reported
        measured = {**measured, "weight": multiplier, "epsilon": epsilon}
        self._note(order, order.round, order.state_round + 1, measured)
        return sent(session.mask(ask["attempt"], ask["letters"], subject, no_words(0), vector))

    def _settled(self, order: SumOrder, ask: Mapping[str, Any], session: Session) -> State:  # noqa: ARG002
        """Nothing is left open by a round."""
        return {}
