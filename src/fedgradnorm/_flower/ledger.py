"""What a private client has spent in all runs of its state folder, on disk before it is spent.

A run's noise is decided at its first order, from what the budget still holds then, and kept. Each
order is charged before it is answered. The same order again gets the same answer, from the same
noise, and costs nothing; another network under the same round is another question, and is charged.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError, RunFolderError
from fedgradnorm._flower.wire.messages import Refused
from fedgradnorm._privacy.accountant import Steps
from fedgradnorm._privacy.budget import FIRST, Budget
from fedgradnorm._privacy.terms import Privacy
from fedgradnorm._round.local_update import LocalSpec
from fedgradnorm._round.private.private_plan import budget_of, with_rounds
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.csv_table import Row
from fedgradnorm._runs.layout import NOISE_KEY

log = logging.getLogger("fedgradnorm")

SPENT = "its privacy budget is spent; it no longer takes part"
REMEMBERED = 64
"""Orders whose answers cost nothing again; the server repeats only the last few."""


def at_home(client: Client, rounds: int, state: Path) -> Client:
    """A private client as it takes part from its own machine; any other stays as it is.

    Its noise comes from a secret in its state folder, unless it names another source. The server
    can measure the norm of the update that it is sent, so that is what is told.
    """
    terms = client.privacy
    if terms is None:
        return client
    secret = terms.secret or str(state / NOISE_KEY)
    return with_rounds(client, replace(terms, secret=secret, norm="noised"), rounds)


class Ledger:
    """The accounts of one client, by run, in one file."""

    def __init__(self, path: Path, client: Client, how: LocalSpec, batch_size: int | None) -> None:
        assert client.privacy is not None
        self._path, self._client, self._terms = path, client, client.privacy
        self._how, self._batch = how, batch_size
        self._runs: dict[str, dict[str, Any]] = self._read()
        self._budgets: dict[str, Budget] = {}

    def budget(self, run: str) -> Budget:
        """The account of this run; it is opened where it is new, and Refused if nothing is left."""
        if run not in self._budgets:
            others = tuple(s for name in self._runs if name != run for s in self._spent_in(name))
            own = self._runs.get(run)
            terms = self._terms if own is None else replace(self._terms, noise=own["noise"])
            before = others if own is None else tuple(Steps(*s) for s in own["before"])
            try:
                found = budget_of(self._with(terms), self._how, self._batch, before)
            except ConfigError as error:
                log.warning("run %s: %s", run, error)
                raise Refused(SPENT) from None
            self._budgets[run] = found
            if own is None:
                plan = {"noise": found.noise, "before": before, "rate": found.rate}
                more = {"steps": found.steps, "first": found.first}
                self._runs[run] = {**plan, **more, "rounds": [], "orders": []}
        return self._budgets[run]

    def charge(self, run: str, round_number: int, question: str) -> None:
        """Count an order before it is answered; Refused where that would cost too much."""
        budget, own = self.budget(run), self._runs[run]
        if question in own["orders"]:
            return
        if len(own["rounds"]) >= budget.most:
            raise Refused(SPENT)  # which the server reads, so it says no more than that
        own["rounds"].append(round_number)
        own["orders"] = [*own["orders"], question][-REMEMBERED:]
        text = json.dumps({"format": 1, "runs": self._runs}, indent=1)
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        checkpoint.write_atomically(self._path, text.encode())
        if len(own["rounds"]) == budget.most:
            log.warning(
                "round %d: epsilon %.3g of %g is spent; this client no longer takes part",
                round_number + 1, self.epsilon(run), budget.epsilon,
            )  # fmt: skip

    def epsilon(self, run: str) -> float:
        """What is spent with this run, and with all before it."""
        return self.budget(run).spent(len(self._runs[run]["rounds"]))

    def rows(self, run: str) -> list[Row]:
        """What the client's own history says of it: epsilon after each order."""
        if run not in self._runs:
            return []
        budget, about = self.budget(run), {"epoch": 0.0, "client": self._client.name}
        return [
            {**about, "round": number + 1, "split": "batch", "epsilon": budget.spent(count)}
            for count, number in enumerate(self._runs[run]["rounds"], start=1)
        ]

    def _with(self, terms: Privacy) -> Client:
        return replace(self._client, privacy=terms)

    def _spent_in(self, run: str) -> list[Steps]:
        own = self._runs[run]
        if not own["rounds"]:
            return []
        first = [Steps(FIRST * own["noise"], 1.0, 1)] if own["first"] else []
        return [*first, Steps(own["noise"], own["rate"], own["steps"] * len(own["rounds"]))]

    def _read(self) -> dict[str, dict[str, Any]]:
        if not self._path.exists():
            return {}
        try:
            runs: dict[str, dict[str, Any]] = json.loads(self._path.read_text("utf-8"))["runs"]
            for own in runs.values():
                _ = [Steps(*s) for s in own["before"]], len(own["rounds"]), list(own["orders"])
                _ = float(own["noise"]), float(own["rate"]), int(own["steps"]), own["first"]
            return runs
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise RunFolderError(
                f"{self._path} is damaged ({error}): nobody knows what was spent; put a copy back, "
                "or take another state folder and data that was never used"
            ) from error
