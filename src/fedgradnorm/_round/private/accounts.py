"""What private clients have spent so far, and who of them takes part no more."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedgradnorm._client import Client
from fedgradnorm._privacy.budget import Budget
from fedgradnorm._privacy.terms import SEED
from fedgradnorm._round.private.private_plan import budget_of
from fedgradnorm._round.settings import Settings

log = logging.getLogger("fedgradnorm")


class Accounts:
    """The budgets of a run's private clients, by name, and the rounds that each was asked in.

    A round counts when it is asked for, also where the client then fails: its answer may be known.
    """

    def __init__(self, clients: Sequence[Client], settings: Settings) -> None:
        how, batch = settings.local(), settings.batch_size
        self.terms = {c.name: c.privacy for c in clients if c.privacy is not None}
        self.budgets: dict[str, Budget] = {
            client.name: budget_of(client, how, batch) for client in clients if client.privacy
        }
        self.rounds = dict.fromkeys(self.budgets, 0)

    def __bool__(self) -> bool:
        return bool(self.budgets)

    def announce(self) -> None:
        """Say what each promises, and whether its noise is one that others could take away."""
        for name, budget in self.budgets.items():
            terms = self.terms[name]
            seeded = terms.secret in (None, SEED)
            log.info(
                "client %r: epsilon %g at delta %g holds %d rounds, noise %.3g x clip %g, from %s",
                name, budget.epsilon, budget.delta, budget.most, budget.noise, terms.clip,
                "the run's seed: whoever knows that can take it away" if seeded else "its secret",
            )  # fmt: skip

    def able(self, names: Iterable[str]) -> list[str]:
        """Who of these has anything left to spend, or need not ask."""
        return [n for n in names if n not in self.budgets or self.rounds[n] < self.budgets[n].most]

    def note(self, round_number: int, asked: Iterable[str]) -> None:
        """Count a round, and say whose budget is spent with it."""
        for name in asked:
            if name not in self.budgets:
                continue
            self.rounds[name] += 1
            budget = self.budgets[name]
            if self.rounds[name] == budget.most:
                log.info(
                    "round %d: client %r has spent epsilon %.3g of %g in %d rounds; it takes part "
                    "no more",
                    round_number, name, self.epsilon(name), budget.epsilon, budget.most,
                )  # fmt: skip

    def epsilon(self, name: str) -> float:
        """What a private client has spent."""
        return self.budgets[name].spent(self.rounds[name])

    def columns(self, name: str) -> dict[str, float]:
        """What the history says of it: nothing of a client that promised nothing."""
        return {"epsilon": self.epsilon(name)} if name in self.budgets else {}

    def state_dict(self) -> dict[str, int]:
        """What must survive a restart."""
        return dict(self.rounds)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""
        for name in self.rounds:
            if not isinstance(state[name], int) or state[name] < 0:
                raise ValueError(f"accounts.{name} is {state[name]!r:.40}")
            self.rounds[name] = state[name]
