"""The server's rounds in a private federation: sums of masked words, a division, a step.

A round has two sums: of the signals that weights are made of, and of the weighted updates. Where
all clients can move by the sums of an earlier round the second is enough.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import torch

from fedgradnorm._errors import TrainingError
from fedgradnorm._flower.coordinator import Coordinator
from fedgradnorm._flower.private.own_level import sizes_of
from fedgradnorm._flower.private.summing import Asks, Key, Summing, Wanted
from fedgradnorm._flower.private.verified_sums import (
    Sums,
    chained,
    network_digest,
    sums_of,
    told,
    usable,
)
from fedgradnorm._flower.wire.sum_messages import SumAnswer, SumOrder, decode_sum_answer
from fedgradnorm._masking.gathering import Gathering
from fedgradnorm._masking.ring import LIMBS, Words, unpack_vector
from fedgradnorm._masking.roster import Attempt, Phase, Subject, digest, least_shown, threshold
from fedgradnorm._runs.csv_table import Row
from fedgradnorm._training.callbacks import Progress
from fedgradnorm.weighting._secure_sums import secure_sums

log = logging.getLogger("fedgradnorm")

ALL = "all"
"""What the history calls all clients of a round together: of a single one nothing is known."""


class PrivateCoordinator(Coordinator):
    """The server of one private run. It knows the participants, and sums."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        assert self.agreement.private is not None
        self.sums, self.terms = secure_sums(self.server.weighting), self.agreement.private
        self.kinds = sizes_of(self.sums)
        self.summing = Summing(self._ask, self._gathering, self._refuse)
        self.told: dict[str, Any] = {}  # of the last round of each client, by round
        self.last: dict[str, int] = {}  # the last round of each client
        self.before: dict[str, Any] = {}  # the last round's first sums, for clients to move by
        self.chain: list[str] = []  # the digest of each round's sums
        self.ahead: bool | None = None  # whether this round goes without first sums
        self.signals: dict[str, Any] = {}  # this round's first sums, once they are known

    def weights(self) -> dict[str, float]:
        """Nobody's: only the client knows its weight."""
        return {}

    def _asked(self, drawn: list[str]) -> list[str]:
        """All but those refused in this round; suspended ones only where a sum needs them."""
        least = max(self.patience.minimum, self._needed(drawn, []))
        here = [name for name in drawn if name not in self.out]
        return self.attendance.asked(here, self.round, least)

    def _least(self, drawn: list[str], asked: list[str]) -> int:
        """Clients that a sum needs: ``minimum``, or all who still participate, or the threshold."""
        return max(super()._least(drawn, asked), threshold(len(self.names), self.terms.colluders))

    def _needed(self, drawn: list[str], asked: list[str]) -> int:  # noqa: ARG002
        return least_shown(len(drawn), self.terms.colluders)

    def _attempt(self, drawn: list[str], asked: list[str]) -> Progress:
        """One attempt: the signals' sum, where it is needed, then that of the updates, and a step.

        Clients move by this round's first sums, or ahead of them by an earlier round's.
        """
        needed = self._needed(drawn, asked)
        if len(asked) < needed:
            left = ", ".join(sorted(set(drawn) - set(asked)))
            raise TrainingError(
                f"round {self.round + 1}: {len(asked)} of {len(drawn)} clients can be asked, "
                f"{needed} are needed; without {left}"
            )
        started, exchanges = time.monotonic(), self.summing.exchanges
        able = [n for n in asked if self.before and self.sums.reuses_sums(self.states[n])]
        if self.ahead is None:
            self.ahead = able == asked
        ahead, asked = self.ahead, able if self.ahead else asked
        least = self._least(drawn, asked)
        network, chain = network_digest(self.server.shared.data), chained("", self.chain)
        if not ahead:
            subject = Subject(network, digest([chain]))
            asked = self._first_sums(asked, least, subject)
        used = self.before["digest"] if ahead else self.signals["digest"]
        at, words = self.summing.sum(
            Wanted(
                (self.round, Phase.UPDATE),
                asked,
                Subject(network, digest([chain, used]), ahead),
                lambda name: self._update_ask(name, ahead),
                self._front(Phase.UPDATE),
                least,
                self._upcoming(),
            )
        )
        counts = (len(at.inputs), self.summing.exchanges - exchanges)
        seconds = time.monotonic() - started
        log.info("round %d: %d inputs, %d exchanges, %.2f s", self.round + 1, *counts, seconds)
        return self._private_step(asked, at, words)

    def _first_sums(self, asked: list[str], least: int, subject: Subject) -> list[str]:
        """Sum the signals, once a round; who is in that sum and still asked."""
        if self.signals.get("subject") != subject:
            key, then = (self.round, Phase.SIGNALS), (self.round, Phase.UPDATE)
            front = self._front(Phase.SIGNALS)
            wanted = Wanted(key, asked, subject, self._signals_ask, front, least, (then, asked))
            at, words = self.summing.sum(wanted)
            sums = sums_of(at, words)
            self.signals = {"subject": subject, "digest": sums.digest, "names": sums.names}
            self.signals |= {"told": told(at), "first": self._usable(sums).get("first", [])}
        return [name for name in asked if name in self.signals["names"]]

    def _usable(self, sums: Sums) -> dict[str, Any]:
        """The sums by kind; empty where a client must have lied in them."""
        parts = usable(sums.numbers, self.kinds[sums.phase], len(sums.names))
        if not parts:
            words = "round %d: no honest clients have these %s: somebody lies; weights stay"
            log.warning(words, self.round + 1, sums.phase)
        return parts

    def _front(self, phase: Phase) -> int:
        """Words of the numbers in a sum."""
        return LIMBS * sum(self.kinds[phase].values())

    def _gathering(self, key: Key) -> Gathering:
        """A new attempt at a sum."""
        attempt = Attempt.new(self.agreement.digest, self.run, *key)
        return Gathering(attempt, self.terms.roster, self.terms.colluders)

    def _signals_ask(self, name: str) -> dict[str, Any]:
        return {"part": Phase.SIGNALS, "ahead": False, **self._told_to(name)}

    def _update_ask(self, name: str, ahead: bool) -> dict[str, Any]:
        ask: dict[str, Any] = {"part": Phase.UPDATE, "ahead": ahead, **self._told_to(name)}
        if not ahead:
            return {**ask, "signals": self.signals["told"]}
        used = self.before["round"]
        apart = self.before["signals"]
        return {**ask, "used": used, **({"signals": apart} if apart else {})}

    def _told_to(self, name: str) -> dict[str, Any]:
        """How its last round and the run's ended, and a name for the sums of each in between."""
        last = self.last.get(name, -1)
        rounds = {last, self.round - 1} - {-1}
        known = {str(number): self.told[str(number)] for number in sorted(rounds)}
        return {"told": known, "since": self.chain[last + 1 :]}

    def _upcoming(self) -> tuple[Key, list[str]] | None:
        """The sum that is likely to come next, and over whom."""
        number = self.round + 1
        if number >= self.agreement.rounds:
            return None
        names = [n for n in self.names if self.attendance.takes_part(n, number)]
        ahead = all(self.sums.reuses_sums(self.states[name] + 1) for name in names)
        return (number, Phase.UPDATE if ahead else Phase.SIGNALS), names

    def _ask(self, asks: Asks) -> Mapping[str, SumAnswer]:
        """One exchange."""
        return self._collect({name: self._sum_order(name, one) for name, one in asks.items()})

    def _sum_order(self, name: str, asks: Mapping[str, Any]) -> SumOrder:
        about = (self.run, self.agreement.digest, self.round, self.states[name])
        one, shared = asks.get("input"), self.server.shared.data
        updates = one is not None and one["part"] == Phase.UPDATE
        trains = one is not None and (one["part"] == Phase.SIGNALS or one["ahead"])
        sends = shared.clone() if trains or asks.get("finish") else None
        return SumOrder(*about, dict(asks), sends, len(shared) if updates else 0, len(self.names))

    def _checked(self, name: str, content: bytes, order: Any) -> Any:  # noqa: ARG002
        return decode_sum_answer(content, order)

    def _read(self, name: str) -> None:
        """An answer that can be read need not be a good one: that is known with the sum."""

    def _private_step(self, asked: list[str], at: Gathering, words: Words) -> Progress:
        """g = (sum of weighted updates) / (sum of coefficients), and one step along it."""
        front = self._front(Phase.UPDATE)
        sums, shared = sums_of(at, words[:front]), self.server.shared
        parts, first = self._usable(sums), self.signals.get("first", [])
        active, total = len(sums.names), float(len(sums.names))
        if parts:
            active, total = int(parts["first"][0]), parts["coefficient"][0]
        direction = unpack_vector(words[front:], self.terms.bits) / total
        self.server.step(torch.from_numpy(direction).to(shared))
        self._done(list(sums.names))
        self.told[str(self.round)] = told(at)
        needed = {self.round, *self.last.values()}
        self.told = {k: v for k, v in self.told.items() if int(k) in needed}
        apart = self.signals.get("told")
        used = self.signals["digest"] if apart else sums.digest
        self.before = {"round": self.round, "digest": used, "signals": apart}
        self.chain.append(sums.digest)
        first = first if apart else parts.get("first", [])
        self.signals, self.ahead = {}, None
        self.round += 1
        row: Row = {"round": self.round, "epoch": float(self.round), "client": ALL}
        row.update(split="batch", active=active, weight=1.0)
        row.update(bytes=sum(self.bytes[name] for name in asked))
        if "grad_norm" in self.agreement.scalars and first:
            row["grad_norm"] = first[1] / first[0]
        self.history.append([row])
        known = {ALL: float(row["grad_norm"])} if "grad_norm" in row else {}
        counts = (self.round, self.agreement.rounds)
        return Progress(*counts, float(self.round), known, {ALL: 1.0}, shown="mean gradient norm")

    def _done(self, names: list[str]) -> None:
        """Who is in the round's sum; whoever did nothing wrong in it begins anew to be counted."""
        for name in names:
            self.states[name] += 1
            self.last[name] = self.round
            if name not in self.out:
                self.attendance.good(name)

    def finish(self) -> list[str]:
        """Give everybody who is not shut out the finished network; who has it."""
        names = [name for name in self.names if not self.attendance.shut_out(name)]
        asks = {name: {"finish": True, **self._told_to(name)} for name in names}
        return list(self._ask(asks))

    def state_dict(self, rows: bool = True) -> dict[str, Any]:
        """Everything needed to continue from here."""
        own = {"told": self.told, "last": self.last, "before": self.before, "chain": self.chain}
        return {**super().state_dict(rows), "private": own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""
        super().load_state_dict(state)
        own = state["private"]
        self.told, self.last, self.before = dict(own["told"]), dict(own["last"]), own["before"]
        self.chain, self.signals, self.ahead = list(own["chain"]), {}, None
