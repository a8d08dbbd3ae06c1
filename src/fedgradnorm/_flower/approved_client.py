"""What stands between a client and its server: approval of each run, and the audit log."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from fedgradnorm._flower.agreement import Agreement
from fedgradnorm._flower.approval import Approvals, Waiting
from fedgradnorm._flower.audit import Audit
from fedgradnorm._flower.federation_file import ClientFile
from fedgradnorm._flower.wire.messages import Refused, facts_of, text, word

if TYPE_CHECKING:
    from fedgradnorm._flower.client_session import ClientSession
    from fedgradnorm._flower.private.secure_sum_client import SecureSumClient

log = logging.getLogger("fedgradnorm")


class ApprovedClient:
    """A client as its transport sees it: every order of an approved run goes to ``client``."""

    def __init__(
        self,
        given: ClientFile,
        client: ClientSession | SecureSumClient,
        agreement: Agreement,
        path: Path,
    ) -> None:
        state = given.path("state")
        self.client, self.agreement, self.path = client, agreement, path
        self.approvals, self.audit = Approvals(state, given.approve), Audit(state)
        self.audit.lines()  # a log that was changed is not continued
        self.approvals.waiting()  # nor is a damaged file of approvals
        self.audit.add("joined", server=given.server, settings=agreement.digest)

    def respond(self, content: bytes) -> bytes:
        """The answer to an order, noted with its digest; Refused where the run is not approved."""
        facts = facts_of(content)
        run = word("run", facts.get("run"))
        settings = text("digest", facts.get("digest"))
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
        about = {"run": run, "round": facts.get("round"), "kind": str(facts.get("kind"))[:20]}
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
