"""The privacy ledger of a deployed client: one for all runs of its state folder."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError
from fedgradnorm._flower.audit import Audit
from fedgradnorm._flower.wire.messages import Refused
from fedgradnorm._privacy.plan import Plan
from fedgradnorm._privacy.terms import Privacy
from fedgradnorm._round.private.private_plan import with_rounds
from fedgradnorm._runs.csv_table import Row
from fedgradnorm._runs.layout import (
    LEDGER,
    LEDGER_SEEN,
    OWN_HISTORY,
    RESULT,
    SLOTS,
    TRAINED,
)
from fedgradnorm._runs.ledger import BudgetSpent, Ledger

log = logging.getLogger("fedgradnorm")

LEFT = (LEDGER_SEEN, OWN_HISTORY, RESULT)
"""What a run that used the data leaves behind, besides the client's state."""

SPENT = "its privacy budget is spent; it no longer participates"
"""All that the server learns."""


def at_home(client: Client, rounds: int) -> Client:
    """A private client as it participates from its own machine; any other stays as it is.

    The server can measure the norm of the update that it is sent, so that norm is reported.
    """
    terms = client.privacy
    if terms is None:
        return client
    if terms.seeded:
        raise ConfigError(
            f"client {client.name!r}: privacy.noise = 'seeded' is not private, and a deployed "
            "client must not use it; leave it out"
        )
    return with_rounds(client, replace(terms, norm="noised"), rounds)


class ClientLedger:
    """What one client releases in all runs of its state folder, charged before it leaves.

    The noise of a run is decided when it is opened, by ``plan`` and what is left of the budget, and
    then stays. Every charge counts whatever other runs released in the meantime.
    """

    def __init__(self, state: Path, name: str, terms: Privacy, plan: Callable[[], Plan]) -> None:
        used = {path.parent for file in (*SLOTS, TRAINED) for path in state.glob(f"*/{file}")}
        left = any(path for file in LEFT for path in state.glob(f"*/{file}"))
        answered = any(line["event"] == "answered" for line in Audit(state).lines())
        path = terms.ledger_of(name) or state / LEDGER
        self._state, self.terms, self._plan = state, terms, plan
        witnesses = [run / LEDGER_SEEN for run in sorted(used)]
        self._book = Ledger(terms, name, path, witnesses, used=left or answered)
        self._noises: dict[str, float] = {}
        if self._book.lost:
            log.warning("%s; its privacy budget counts as spent", self._book.lost)

    def noise(self, run: str) -> float:
        """The noise multiplier of a run; Refused if nothing is left for a new one.

        It is decided once per process, so what is charged is what the answer then has.
        """
        if run not in self._noises:
            try:
                self._book.catch_up()
                charges = [one["noise"] for one in self._book.charges if one["run"] == run]
                self._noises[run] = (
                    float(charges[0])
                    if charges
                    else self._plan().noise(self.terms, self._book.releases)
                )
            except (BudgetSpent, ConfigError) as error:
                log.warning("run %s: %s", run, error)
                raise Refused(SPENT) from None
        return self._noises[run]

    def charge(self, run: str, round_number: int, first: bool = False) -> float:
        """Pay for an answer before there is one; epsilon after it. Refused if it costs too much.

        ``first``: the answer reveals the first loss.
        """
        noise = self.noise(run)
        about = {"run": run, "round": round_number, "noise": noise}
        releases = self._plan().round(noise, first)
        try:
            return self._book.charge(releases, self._state / run / LEDGER_SEEN, **about)
        except BudgetSpent as error:
            log.warning("run %s, round %d: %s", run, round_number + 1, error)
            raise Refused(SPENT) from None

    def rows(self, run: str, name: str) -> list[Row]:
        """What the client's own history shows: epsilon of everything after each of its answers."""
        about = {"epoch": 0.0, "client": name, "split": "batch"}
        return [
            {**about, "round": charge["round"] + 1, "epsilon": charge["epsilon"]}
            for charge in self._book.charges
            if charge["run"] == run
        ]
