"""A private federation in one process, with the real messages between server and clients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import toys
from engines.flower.direct import Together
from fedgradnorm import Client
from fedgradnorm._flower.agreement import Agreement
from fedgradnorm._flower.private.private_rounds import PrivateCoordinator
from fedgradnorm._flower.private.private_terms import PrivateTerms
from fedgradnorm._flower.private.secure_sum_client import SecureSumClient
from fedgradnorm._masking.roster import to_text
from masking.crowd import people

Before = Callable[[str, Any], str | None]


def five() -> Sequence[Client]:
    """Two more than the toys: enough to lose one and continue."""
    sizes = {"corner": 48, "side": 30, "place": 24}
    more = [toys.client("corner2", 40, "corner"), toys.client("side2", 36, "side")]
    return [*(toys.client(name, size) for name, size in sizes.items()), *more]


class Secret(Together):
    """As ``Together``, private. ``before`` may lose a client before an order reaches it."""

    def __init__(
        self, *given: Any, colluders: int = -1, digest: str = "agreed", **named: Any
    ) -> None:
        self.colluders, self.digest = colluders, digest
        super().__init__(*given, **{"clients": five, **named})
        self.before: Before = lambda *_: None
        plain = self.exchange.ask

        def ask(orders: Any, seconds: float) -> Any:
            lost = {n: self.before(n, order) for n, order in orders.items()}
            kept = {n: order for n, order in orders.items() if not lost[n]}
            return {**{n: word for n, word in lost.items() if word}, **plain(kept, seconds)}

        self.exchange.ask = ask

    def agreed(self, scalars: tuple[str, ...]) -> Agreement:
        roster, named = people(len(self.names))
        keys, signers = list(roster.keys.values()), list(named.values())
        self.signers = {
            name: type(one)(name, one.key) for name, one in zip(self.names, signers, strict=True)
        }
        texts = {n: to_text(k) for n, k in zip(self.names, keys, strict=True)}
        terms = PrivateTerms(texts, colluders=self.colluders)
        agreed = super().agreed(scalars)
        return Agreement(agreed.settings, agreed.rounds, scalars, self.digest, terms)

    def coordinator(self, given: tuple[Any, ...]) -> PrivateCoordinator:
        return PrivateCoordinator(*given)

    def participant(self, name: str) -> SecureSumClient:
        own = copy.deepcopy(self.weighting)
        about = (self.make(), self.clients[name], self.agreement, self.folder / name)
        return SecureSumClient(*about, self.signers[name], own)
