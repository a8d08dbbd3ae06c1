"""A server that asks any client for anything, through the real encoded records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engines.flower.secret import Secret
from fedgradnorm._flower.private.verified_sums import chained, network_digest, sums_of, told
from fedgradnorm._flower.wire.sum_messages import SumAnswer, SumOrder, decode_sum_answer
from fedgradnorm._flower.wire.transport import Exchange, InMemory
from fedgradnorm._masking.gathering import Gathering
from fedgradnorm._masking.ring import LIMBS, unpack_vector
from fedgradnorm._masking.roster import Attempt, Phase, Subject, Unsafe, digest


class Said(Exception):
    """A client's refusal, in its words."""


class Hostile:
    """It knows what a server knows, and the clients of ``secret``."""

    def __init__(self, secret: Secret) -> None:
        self.secret, self.agreement = secret, secret.agreement.digest
        self.terms = secret.server.terms
        self.first = secret.server.server.shared.data.clone()
        self.kinds = secret.server.kinds

    def ask(
        self, name: str, asks: dict[str, Any], shared: Tensor | None = None, **about: Any
    ) -> SumAnswer:
        """The answer of one client; Said where it refuses."""
        facts = {"run": "r1", "round": 0, "state_round": 0, **about}
        updates = "input" in asks and asks["input"]["part"] == Phase.UPDATE
        words = len(self.first) if updates else 0
        given = (facts["run"], self.agreement, facts["round"], facts["state_round"], asks, shared)
        order = SumOrder(*given, words, len(self.secret.names))
        respond = self.secret.exchange.participants[name].respond
        reply = Exchange(InMemory({name: respond})).ask({name: order}, 60.0)[name]
        if not isinstance(reply, bytes):
            raise Said(str(reply))
        return decode_sum_answer(reply, order)

    def prepared(
        self, names: Sequence[str], run: str = "r1", number: int = 0, phase: Phase = Phase.SIGNALS
    ) -> Gathering:
        """Keys and letters."""
        attempt = Attempt.new(self.agreement, run, number, phase)
        at = Gathering(attempt, self.terms.roster, self.terms.colluders)
        about = {"run": run, "round": number}
        key = {"attempt": attempt.name, "round": number, "phase": str(phase)}
        for name in names:
            at.add_keys(name, self.ask(name, {"keys": key}, **about).gives["keys"])
        letters = {"attempt": attempt.name, "keys": [at.keys[n] for n in sorted(at.keys)]}
        for name in names:
            answer = self.ask(name, {"letters": letters}, **about)
            at.add_letters(name, answer.gives["letters"])
        at.close_letters()
        return at

    def inputs(
        self, at: Gathering, give: dict[str, Any], shared: Tensor, state: int = 0, **asked: Any
    ) -> None:
        """Everybody's masked input; ``give`` is what they are told.

        ``asked``: a ``part`` or ``number`` of another sum than the attempt's.
        """
        number = asked.get("number", at.attempt.round)
        phase = asked.get("part", at.attempt.phase)
        chain = chained(give.get("chain", ""), give["since"])
        used = [sums_of(*give["sums"]).digest] if "sums" in give else []
        subject = Subject(network_digest(shared), digest([chain, *used]), give["ahead"])
        told_too = {k: v for k, v in give.items() if k not in ("sums", "chain")}
        sends = shared if phase == Phase.SIGNALS or give["ahead"] else None
        for name in at.givers:
            ask = {**told_too, "part": phase, "attempt": at.attempt.name}
            ask["letters"] = at.letters_to(name)
            about = {"run": at.attempt.run, "round": number, "state_round": state}
            answer = self.ask(name, {"input": ask}, sends, **about)
            front = LIMBS * sum(self.kinds[phase].values())
            at.add_input(name, answer.gives["input"], subject, answer.masked, front)

    def revealed(self, at: Gathering, silent: Sequence[str] = ()) -> np.ndarray:
        """The sum; nothing is asked of those who are ``silent``."""
        left, about = at.survivors(), {"run": at.attempt.run, "round": at.attempt.round}
        for name in sorted(set(left) - set(silent)):
            one = {"attempt": at.attempt.name, "survivors": left}
            answer = self.ask(name, {"reveal": one}, **about)
            at.add_reveal(name, answer.gives["reveal"])
        return at.sum()

    def round(
        self,
        names: Sequence[str],
        run: str = "r1",
        number: int = 0,
        shared: Tensor | None = None,
        given: dict[str, Any] | None = None,
        state: int = 0,
        silent: Sequence[str] = (),
    ) -> tuple[Gathering, np.ndarray]:
        """Both sums of a round over ``names``; the attempt and the words of the second.

        Who is ``silent`` is asked for no shares of the second.
        """
        shared = self.first if shared is None else shared
        give = {"told": {}, "since": [], "ahead": False, **(given or {})}
        signals = self.prepared(names, run, number)
        self.inputs(signals, give, shared, state)
        first = self.revealed(signals)
        update = self.prepared(names, run, number, Phase.UPDATE)
        give |= {"signals": told(signals), "sums": (signals, first)}
        self.inputs(update, give, shared, state)
        return update, self.revealed(update, silent)

    def vector(self, words: np.ndarray) -> Tensor:
        """The summed update."""
        front = LIMBS * sum(self.kinds[Phase.UPDATE].values())
        return torch.from_numpy(unpack_vector(words[front:], self.terms.bits))


__all__ = ["Hostile", "Said", "Unsafe"]
