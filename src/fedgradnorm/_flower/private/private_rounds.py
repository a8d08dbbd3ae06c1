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
from fedgradnorm._flower.private.private_terms import fewest_of
from fedgradnorm._flower.private.summing import Asks, Summing, Wanted
from fedgradnorm._flower.private.told_sums import (
    about_signals,
    about_update,
    network_digest,
    parted,
    told,
)
from fedgradnorm._flower.wire.sum_messages import SumAnswer, SumOrder, decode_sum_answer
from fedgradnorm._masking.gathering import TooFew
from fedgradnorm._masking.ring import LIMBS, Words, unpack_numbers, unpack_vector
from fedgradnorm._masking.roster import Unsafe, threshold
from fedgradnorm._round.participation import participants
from fedgradnorm._runs.csv_table import Row
from fedgradnorm._training.callbacks import Progress
from fedgradnorm.weighting._secure_sums import secure_sums

log = logging.getLogger("fedgradnorm")

ALL = "all"
"""What the history calls all clients of a round together: of a single one nothing is known."""


class PrivateCoordinator(Coordinator):
    """The server of one private run. It knows who takes part, and sums."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        assert self.agreement.private is not None
        self.sums, self.terms = secure_sums(self.server.weighting), self.agreement.private
        self.fewest = fewest_of(self.agreement.settings, self.agreement.rounds, self.names)
        self.kinds = sizes_of(self.sums)
        self.summing = Summing(self._ask, self.terms.roster, self._refuse)
        self.told: dict[str, Any] = {}  # of the last round of each client, by round
        self.last: dict[str, int] = {}  # the last round of each client
        self.before: dict[str, Any] = {}  # the last round's first sums, for clients to move by
        self.ahead: bool | None = None  # whether this round goes without first sums
        self.signals: dict[str, Any] = {}  # this round's first sums, once they are known

    def weights(self) -> dict[str, float]:
        """Nobody's: only the client knows its weight."""
        return {}

    def advance(self) -> Progress:
        """One round, repeated with new masks while too few are left, then a TrainingError."""
        reason = ""
        drawn = self._drawn(self.round)
        for attempt in range(1, self.patience.attempts + 1):
            asked = self._asked(drawn)
            if len(asked) < self.fewest:
                raise TrainingError(
                    f"round {self.round + 1}: {len(asked)} clients; a private round needs "
                    f"{self.fewest}, more than half of those that the run draws"
                )
            try:
                return self._private_round(drawn, asked)
            except (TooFew, Unsafe) as error:
                reason = str(error)
            words = "round %d: %s (attempt %d of %d; the next has new masks)"
            log.warning(words, self.round + 1, reason, attempt, self.patience.attempts)
        raise TrainingError(
            f"round {self.round + 1}: {reason}; look at the clients' logs, then go on with --resume"
        )

    def _drawn(self, round_number: int) -> list[str]:
        """Who is to take part in a round."""
        settings = self.agreement.settings
        return participants(settings.participation, settings.seed, self.names, round_number)

    def _private_round(self, drawn: list[str], asked: list[str]) -> Progress:
        started, exchanges = time.monotonic(), self.summing.exchanges
        ahead, asked = self._ahead(asked)
        least = max(self._least(drawn, asked), threshold(len(asked)))
        network = network_digest(self.server.shared.data)
        named = (self.agreement.digest, self.run, self.round, network)
        if not ahead:
            asked = self._first_sums(asked, least, about_signals(*named))
        used = self.before["numbers"] if ahead else self.signals["numbers"]
        wanted = Wanted(
            asked,
            about_update(*named, used),
            lambda name: self._update_ask(name, ahead),
            least,
            self._upcoming(),
        )
        at, words = self.summing.sum(self.run, wanted)
        counts = (len(at.inputs), self.summing.exchanges - exchanges)
        seconds = time.monotonic() - started
        log.info("round %d: %d inputs, %d exchanges, %.2f s", self.round + 1, *counts, seconds)
        return self._private_step(asked, list(at.inputs), words, told(at))

    def _ahead(self, asked: list[str]) -> tuple[bool, list[str]]:
        """Whether a round needs no first sums, decided once for it; who can be asked then."""
        able = [n for n in asked if self.before and self.sums.reuses_sums(self.states[n])]
        if self.ahead is None:
            self.ahead = able == asked
        return self.ahead, able if self.ahead else asked

    def _first_sums(self, asked: list[str], least: int, about: str) -> list[str]:
        """Sum the signals, once a round; who is in that sum and still asked."""
        if self.signals.get("about") != about:
            wanted = Wanted(asked, about, self._signals_ask, least, asked)
            at, words = self.summing.sum(self.run, wanted)
            numbers, names = unpack_numbers(words), list(at.inputs)
            self.signals = {"about": about, "numbers": numbers, "names": names, "told": told(at)}
        return [name for name in asked if name in self.signals["names"]]

    def _signals_ask(self, name: str) -> dict[str, Any]:
        return {"part": "signals", "ahead": False, "told": self._told_to(name)}

    def _update_ask(self, name: str, ahead: bool) -> dict[str, Any]:
        ask: dict[str, Any] = {"part": "update", "ahead": ahead, "told": self._told_to(name)}
        if not ahead:
            return {**ask, "signals": self.signals["told"]}
        used = self.before["round"]
        if self.before.get("signals"):
            return {**ask, "used": used, "signals": self.before["signals"]}
        return {**ask, "used": used, "told": {**ask["told"], str(used): self.told[str(used)]}}

    def _told_to(self, name: str) -> dict[str, Any]:
        """What a client needs to know how its last round ended."""
        last = str(self.last.get(name, ""))
        return {last: self.told[last]} if last else {}

    def _upcoming(self) -> list[str]:
        """Who is likely to be asked in the next round."""
        number = self.round + 1
        if number >= self.agreement.rounds:
            return []
        return [name for name in self._drawn(number) if self.attendance.takes_part(name, number)]

    def _ask(self, asks: Asks) -> Mapping[str, SumAnswer]:
        """One exchange."""
        return self._collect({name: self._sum_order(name, one) for name, one in asks.items()})

    def _sum_order(self, name: str, asks: Mapping[str, Any]) -> SumOrder:
        about = (self.run, self.agreement.digest, self.round, self.states[name])
        one, shared = asks.get("input"), self.server.shared.data
        updates = one is not None and one["part"] == "update"
        trains = one is not None and (one["part"] == "signals" or one["ahead"])
        sends = shared.clone() if trains or asks.get("finish") else None
        return SumOrder(*about, asks, sends, self._words() if updates else 0, len(self.names))

    def _words(self) -> int:
        """How many masked words come with an update."""
        return len(self.server.shared)

    def _checked(self, name: str, content: bytes, order: Any) -> Any:  # noqa: ARG002
        return decode_sum_answer(content, order)

    def _refuse(self, name: str, why: str) -> None:
        """An answer in the right form that does not fit the others'."""
        self.refused[name] += 1
        self.notices.collected(self.round + 1, {}, {name: why})
        self.attendance.missed(name, self.round, refused=True)

    def _private_step(
        self, asked: list[str], good: list[str], words: Words, shown: Mapping[str, Any]
    ) -> Progress:
        """g = (sum of weighted updates) / (sum of coefficients), and one step along it."""
        front = LIMBS * sum(self.kinds.values())
        sums = parted(unpack_numbers(words[:front]), self.kinds)
        shared, total = self.server.shared, sums["coefficient"][0]
        direction = unpack_vector(words[front:], self.terms.bits) / total
        self.server.step(torch.from_numpy(direction).to(shared))
        for name in good:
            self.states[name] += 1
            self.last[name] = self.round
        needed = {self.round, *self.last.values()}
        self.told = {k: v for k, v in self.told.items() if int(k) in needed}
        self.told[str(self.round)] = dict(shown)
        first = self.signals.get("numbers", sums["first"])
        told_first = self.signals.get("told")
        self.before = {"round": self.round, "numbers": first, "signals": told_first}
        self.signals, self.ahead = {}, None
        self.round += 1
        row: Row = {"round": self.round, "epoch": float(self.round), "client": ALL}
        row.update(split="batch", active=len(good), weight=1.0)
        row.update(bytes=sum(self.bytes[name] for name in asked))
        if "grad_norm" in self.agreement.scalars:
            row["grad_norm"] = first[1] / first[0]
        self.history.append([row])
        known = {ALL: float(row["grad_norm"])} if "grad_norm" in row else {}
        counts = (self.round, self.agreement.rounds)
        return Progress(*counts, float(self.round), known, {ALL: 1.0}, shown="mean gradient norm")

    def finish(self) -> list[str]:
        """Give everybody who is not shut out the finished network; who has it."""
        names = [name for name in self.names if not self.attendance.shut_out(name)]
        asks = {name: {"finish": True, "told": self._told_to(name)} for name in names}
        return list(self._ask(asks))

    def state_dict(self, rows: bool = True) -> dict[str, Any]:
        """Everything needed to go on from here."""
        own = {"told": self.told, "last": self.last, "before": self.before}
        number = self.summing.number
        return {**super().state_dict(rows), "private": {**own, "number": number}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""
        super().load_state_dict(state)
        own = state["private"]
        self.told, self.last, self.before = dict(own["told"]), dict(own["last"]), own["before"]
        self.summing.number, self.signals, self.ahead = own["number"], {}, None
