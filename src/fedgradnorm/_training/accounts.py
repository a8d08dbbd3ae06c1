"""The privacy budgets of a run in one process: every round is charged before it begins."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError, RunFolderError
from fedgradnorm._federation.federation import Federation
from fedgradnorm._launched import asked_for
from fedgradnorm._privacy.plan import Plan
from fedgradnorm._privacy.terms import ClientPrivacy, Privacy
from fedgradnorm._round.private.client_sums import plan_of_clients
from fedgradnorm._round.private.private_plan import plan_of
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs.history import NOT_PRIVATE_EPSILON, SPENT
from fedgradnorm._runs.ledger import BudgetSpent, Ledger

log = logging.getLogger("fedgradnorm")

CLIENTS = "clients"
"""The name of the account of client-level privacy."""


class _Account(NamedTuple):
    """One promise: what a round of it releases, with how much noise, and the ledger it goes to."""

    terms: Privacy | ClientPrivacy
    plan: Plan
    noise: float
    ledger: Ledger


class Accounts:
    """The accounts of a run's private clients by name, or the one of client-level privacy.

    ``rounds`` counts how many rounds each was charged for in this run. Without a ledger file the
    account covers this run only.
    """

    def __init__(self, clients: Sequence[Client], settings: Settings, rounds: int) -> None:
        how, batch, self._seed = settings.local(), settings.batch_size, settings.seed
        plans: dict[str, tuple[Privacy | ClientPrivacy, Plan]] = {}
        for client in clients:
            if client.privacy is not None:
                plans[client.name] = client.privacy, plan_of(client, how, batch)
        if (of_clients := settings.client_privacy) is not None:
            if plans:
                raise ConfigError(
                    f"client {next(iter(plans))!r} has privacy, and server.privacy protects whole "
                    "clients: the two promises are accounted in different units; choose one"
                )
            plans[CLIENTS] = of_clients, plan_of_clients(settings, rounds)
        self.whole_clients = of_clients is not None
        self.accounts = {name: _opened(name, *given) for name, given in plans.items()}
        self.rounds = dict.fromkeys(self.accounts, 0)
        self._ended: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self.accounts)

    def govern(self, federation: Federation) -> None:
        """Set the noise of the run's sums and of its private clients."""
        for name, account in self.accounts.items():
            if self.whole_clients:
                assert federation.sums is not None
                federation.sums.noise = account.noise
            else:
                federation.engine.set_noise(name, account.noise)

    def announce(self) -> None:
        for name, (terms, plan, noise, ledger) in self.accounts.items():
            covers = f"all runs in {terms.ledger}" if terms.ledger else "this run only"
            if ledger.epsilon:
                covers += f", epsilon {ledger.epsilon:.3g} of it already spent"
            log.info(
                "privacy of %r: %s; %d rounds with noise %.3g x clip %g; epsilon covers %s",
                name, terms.words, plan.rounds, noise, terms.clip, covers,
            )  # fmt: skip

    def charge(self, round_number: int, names: Iterable[str]) -> list[str] | None:
        """Those of ``names`` whose round is paid for, or who need no budget.

        With client-level privacy None means that the budget is spent, and the run over.
        """
        if self.whole_clients:
            return list(names) if self._charge(CLIENTS, round_number) else None
        return [
            name for name in names if name not in self.accounts or self._charge(name, round_number)
        ]

    def _charge(self, name: str, round_number: int) -> bool:
        account = self.accounts[name]
        releases = account.plan.round(account.noise, first=not self.rounds[name])
        try:
            account.ledger.charge(releases, seed=self._seed, round=round_number)
        except BudgetSpent as error:
            account.ledger.check()
            if name not in self._ended:
                self._ended.add(name)
                log.info(
                    "round %d: %r no longer participates, its privacy budget (%s) is spent after "
                    "%d rounds of this run: %s",
                    round_number, name, account.terms.words, self.rounds[name], error,
                )  # fmt: skip
            return False
        self.rounds[name] += 1
        return True

    def columns(self, name: str) -> dict[str, float]:
        account = self.accounts.get(CLIENTS if self.whole_clients else name)
        if account is None:
            return {}
        column = NOT_PRIVATE_EPSILON if account.terms.seeded else SPENT
        return {column: account.ledger.epsilon}

    def names_of_columns(self) -> tuple[str, ...]:
        kinds = {account.terms.seeded for account in self.accounts.values()}
        return tuple(NOT_PRIVATE_EPSILON if seeded else SPENT for seeded in sorted(kinds))

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must know; what was spent is in the ledgers."""
        noise = {name: account.noise for name, account in self.accounts.items()}
        heads = {name: account.ledger.head for name, account in self.accounts.items()}
        return {"rounds": dict(self.rounds), "noise": noise, "ledgers": heads}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state saved by :meth:`state_dict`, with the ledgers as they are now.

        Rounds after the checkpoint may have been run, and are run again with fresh noise. Only a
        ledger knows of them, so fresh noise without one cannot be resumed.
        """
        for name, account in self.accounts.items():
            terms, plan, _, ledger = account
            if terms.ledger is None and not terms.seeded:
                raise ConfigError(
                    f"privacy of {name!r}: this run cannot be resumed, because nobody knows how "
                    "often rounds after its last checkpoint were run; start again, with "
                    "privacy.ledger = 'FOLDER' to be able to resume"
                )
            count, noise = state["rounds"][name], state["noise"][name]
            if not isinstance(count, int) or count < 0 or not 0 < float(noise) < math.inf:
                raise ValueError(f"accounts.{name} is {count!r:.40}, {noise!r:.40}")
            if terms.ledger is not None and not ledger.has_seen(state["ledgers"][name]):
                raise RunFolderError(
                    f"{terms.ledger} is older than the run's checkpoint, or belongs to other data, "
                    f"so the privacy budget of {name!r} counts as spent"
                )
            if terms.ledger is None and count:
                ledger.charge(plan.round(noise, first=True, rounds=count))
            self.accounts[name] = account._replace(noise=noise)
            self.rounds[name] = count


def _opened(name: str, terms: Privacy | ClientPrivacy, plan: Plan) -> _Account:
    if terms.ledger is not None and asked_for() > 1:
        raise ConfigError(
            f"privacy.ledger = {terms.ledger!r}: every one of {asked_for()} processes would charge "
            "it; leave it out, or run in one process"
        )
    ledger = Ledger(terms, name, terms.ledger_of(name))
    try:
        ledger.check()
        noise = plan.noise(terms, ledger.releases)
    except (BudgetSpent, ConfigError) as error:
        where = "" if name == CLIENTS else f"client {name!r}: "
        raise ConfigError(f"{where}{error}") from None
    return _Account(terms, plan, noise, ledger)
