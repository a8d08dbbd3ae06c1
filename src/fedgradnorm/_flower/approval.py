"""Which runs a client's owner has approved: no order of any other run is answered.

The audit log is the register. What was approved, and what asks for approval, is what it says.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedgradnorm._errors import ConfigError, listed
from fedgradnorm._flower.audit import Audit
from fedgradnorm._flower.federation_file import ClientFile
from fedgradnorm._flower.wire.messages import Refused, Text, Word, unpack, validated

if TYPE_CHECKING:
    from fedgradnorm._flower.client_session import ClientSession
    from fedgradnorm._flower.private.secure_sum_client import SecureSumClient

log = logging.getLogger("fedgradnorm")

APPROVED, ASKED = "approved", "asked for approval"
NOT_YET = "its owner has not approved this run"


class Approvals:
    """The runs of one client, in its state folder; the command and ``join`` share the log."""

    def __init__(self, state: Path, how: str = "first") -> None:
        self.audit, self.how, self._known = Audit(state), how, set[str]()

    def check(self, run: str, settings: str) -> bool:
        """Refused unless the run is approved; whether it is new. ``settings`` is their digest.

        It is a Waiting where the run asks for the first time.
        """
        if run in self._known:
            return False
        approved = self._runs(APPROVED)
        if run not in approved:
            if self.how == "all" or (self.how == "first" and settings not in approved.values()):
                self._approve(run, settings, f'approve = "{self.how}"')
            elif run in self._runs(ASKED):
                raise Refused(NOT_YET)
            else:
                self.audit.add(ASKED, run=run, settings=settings)
                raise Waiting(NOT_YET)
        self._known.add(run)
        return run not in approved

    def waiting(self) -> dict[str, str]:
        """The runs that ask for approval, with the digest of their settings."""
        approved = self._runs(APPROVED)
        return {run: own for run, own in self._runs(ASKED).items() if run not in approved}

    def approve(self, run: str) -> None:
        waiting = self.waiting()
        if run in waiting:
            self._approve(run, waiting[run], "federation approve")
        elif run not in self._runs(APPROVED):
            known = listed(list(waiting)) if waiting else "none"
            raise ConfigError(f"no run {run!r} asks for approval; waiting: {known}")

    def _approve(self, run: str, settings: str, by: str) -> None:
        self.audit.add(APPROVED, run=run, settings=settings, by=by)

    def _runs(self, event: str) -> dict[str, str]:
        """The runs of an event, with the digest of their settings; a log that was changed ends."""
        lines = [line for line in self.audit.lines() if line["event"] == event]
        return {line["run"]: line["settings"] for line in lines}


class Waiting(Refused):
    """A run asks for the first time."""


def _short(said: object) -> object:
    """What was said, or how a long or nested one begins."""
    short = isinstance(said, int) and abs(said) < 2**63
    return said if short else str(said)[:20] if isinstance(said, str) else None


@dataclass(frozen=True)
class _Asking:
    run: Word
    digest: Text


class ApprovedClient:
    """A client as its transport sees it: every order of an approved run goes to ``client``."""

    def __init__(
        self, given: ClientFile, client: ClientSession | SecureSumClient, path: Path
    ) -> None:
        self.client, self.agreement, self.path = client, client.agreement, path
        self.approvals = Approvals(given.path("state"), given.approve)
        self.audit = self.approvals.audit
        self.audit.lines()  # a log that was changed is not continued
        self.audit.add("joined", server=given.server, settings=self.agreement.digest)

    def respond(self, content: bytes) -> bytes:
        """The answer to an order, noted with its digest; Refused where the run is not approved."""
        facts, _ = unpack(content)
        asking = validated(_Asking, {key: facts.get(key) for key in ("run", "digest")})
        run, settings = asking.run, asking.digest
        if settings == self.agreement.digest:
            # Any other settings are refused by the client, whoever approved them.
            try:
                if self.approvals.check(run, settings):
                    log.info("run %s is approved: %s", run, self.about())
            except Waiting:
                words = "run %s asks for this client's data (%s); to approve it: %s"
                command = f"fedgradnorm federation approve {self.path} {run}"
                log.warning(words, run, self.about(), command)
                raise
        # Not checked yet, and the log is kept: a server must not fill it with its own words.
        about = {"run": run, **{key: _short(facts.get(key)) for key in ("round", "kind")}}
        try:
            answer = self.client.respond(content)
        except Refused as error:
            self.audit.add("refused", why=str(error)[:200], **about)
            raise
        digest = hashlib.sha256(answer).hexdigest()
        self.audit.add("answered", bytes=len(answer), answer=digest, **about)
        if self.client.result is not None:
            self.audit.add("finished", run=run, result=str(self.client.result))
        return answer

    def about(self) -> str:
        """Settings, rounds, what leaves, and epsilon where there is one."""
        agreement, terms = self.agreement, self.client.privacy
        spends = "no privacy budget" if terms is None else f"epsilon at most {terms.epsilon:g}"
        sent = ", ".join(agreement.sent)
        digest = agreement.digest[:12]
        return f"settings {digest}, {agreement.rounds} rounds, sends {sent}, {spends}"
