"""The privacy budgets of a run: what clients have spent, and whose budget is exhausted."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedgradnorm._client import Client
from fedgradnorm._privacy.budget import Budget
from fedgradnorm._privacy.terms import SEED
from fedgradnorm._round.private.client_sums import ClientSums, account
from fedgradnorm._round.private.private_plan import budget_of
from fedgradnorm._round.settings import Settings

log = logging.getLogger("fedgradnorm")


class Accounts:
    """The budgets of a run's private clients, by name, and the rounds that each was asked in.

    A round counts as soon as it is asked for, even if the client then fails.
    """

    def __init__(self, clients: Sequence[Client], settings: Settings, rounds: int) -> None:
        how, batch = settings.local(), settings.batch_size
        self.terms = {c.name: c.privacy for c in clients if c.privacy is not None}
        self.budgets: dict[str, Budget] = {
            client.name: budget_of(client, how, batch) for client in clients if client.privacy
        }
        self.rounds = dict.fromkeys(self.budgets, 0)
        self.all = account(settings, rounds)  # of client-level privacy: the run's own
        self.taken = 0

    def __bool__(self) -> bool:
        return bool(self.budgets) or self.all is not None

    def govern(self, federation: object, rounds: int) -> int:
        """Set the noise of the run's sums; the number of rounds that the run's budget allows."""
        if self.all is None:
            return rounds
        sums = getattr(federation, "sums", None)
        assert isinstance(sums, ClientSums)
        sums.noise = self.all.noise
        return min(rounds, self.all.most)

    def announce(self) -> None:
        """Log each guarantee, and whether its noise comes from the seed or from a secret."""
        if self.all is not None:
            words = "clients: epsilon %g at delta %g holds %d rounds with noise %.3g"
            log.info(words, self.all.epsilon, self.all.delta, self.all.most, self.all.noise)
        for name, budget in self.budgets.items():
            terms = self.terms[name]
            seeded = terms.secret in (None, SEED)
            log.info(
                "client %r: epsilon %g at delta %g holds %d rounds, noise %.3g x clip %g, from %s",
                name, budget.epsilon, budget.delta, budget.most, budget.noise, terms.clip,
                "the run's seed: whoever knows that can take it away" if seeded else "its secret",
            )  # fmt: skip

    def able(self, names: Iterable[str]) -> list[str]:
        """Those of ``names`` that have budget left, or need none."""
        return [n for n in names if n not in self.budgets or self.rounds[n] < self.budgets[n].most]

    def note(self, round_number: int, asked: Iterable[str]) -> None:
        """Count a round, and log whose budget it exhausts."""
        self.taken += 1
        for name in asked:
            if name not in self.budgets:
                continue
            self.rounds[name] += 1
            budget = self.budgets[name]
            if self.rounds[name] == budget.most:
                log.info(
                    "round %d: client %r has spent epsilon %.3g of %g in %d rounds; it no "
                    "longer takes part",
                    round_number, name, self.epsilon(name), budget.epsilon, budget.most,
                )  # fmt: skip

    def epsilon(self, name: str) -> float:
        """The epsilon that a private client has spent."""
        return self.budgets[name].spent(self.rounds[name])

    def columns(self, name: str) -> dict[str, float]:
        """The client's columns in the history; none without privacy."""
        if name in self.budgets:
            return {"epsilon": self.epsilon(name)}
        return {} if self.all is None else {"epsilon": self.all.spent(self.taken)}

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart."""
        return {"rounds": dict(self.rounds), "taken": self.taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state saved by :meth:`state_dict`."""
        if not self:
            return
        counts = {name: state["rounds"][name] for name in self.rounds}
        for name, count in [*counts.items(), ("", state["taken"])]:
            if not isinstance(count, int) or count < 0:
                raise ValueError(f"accounts.{name} is {count!r:.40}")
        self.rounds, self.taken = counts, state["taken"]
