"""A client of a private federation: trains as any other, and shows nothing but masked words.

What leaves it beside them: public keys, sealed letters, its name under lists, and shares of masks.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError, RunFolderError
from fedgradnorm._flower.agreement import Agreement
from fedgradnorm._flower.keeping import Keeping
from fedgradnorm._flower.participant import Participant
from fedgradnorm._flower.private.own_level import OwnLevel
from fedgradnorm._flower.private.private_terms import fewest_of
from fedgradnorm._flower.private.told_sums import (
    Sums,
    about_signals,
    about_update,
    is_of,
    network_digest,
    parted,
    seen,
)
from fedgradnorm._flower.slots import Slots, StateLost
from fedgradnorm._flower.wire.messages import Order, Refused
from fedgradnorm._flower.wire.sum_messages import (
    SumAnswer,
    SumOrder,
    decode_sum_order,
    encode_sum_answer,
)
from fedgradnorm._masking.member import Member
from fedgradnorm._masking.ring import Unfit, Words, pack_numbers, pack_vector
from fedgradnorm._masking.roster import Signer, Unsafe
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.history import History, read_history
from fedgradnorm._runs.layout import LEVELS, MASKING, METRICS, TRAINED
from fedgradnorm.weighting import Weighting

log = logging.getLogger("fedgradnorm")

State = dict[str, Any]


class Silo(Participant):
    """One client, its data and its state folder; ``weighting`` is the run's, with its row alone."""

    def __init__(
        self,
        network: nn.Module,
        client: Client | Sequence[Client],
        agreement: Agreement,
        folder: Path,
        signer: Signer,
        weighting: Weighting,
    ) -> None:
        super().__init__(network, client, agreement, folder)
        if self.tasks:
            raise ConfigError(
                f"client {self.rows[0].owner!r} has several tasks; a private federation has one "
                "task a client: give each task to a client of its own"
            )
        assert agreement.private is not None
        self.name = self.rows[0].name
        self.terms, self.signer = agreement.private, signer
        given = (agreement.settings, agreement.rounds, list(self.terms.clients))
        self.fewest = fewest_of(*given)
        weighting.run_seed = agreement.settings.seed
        self.level = OwnLevel(weighting, self.name, self.terms.largest_ratio)

    def respond(self, content: bytes) -> bytes:
        """The answer to a message."""
        order = decode_sum_order(content, self.like)
        try:
            return encode_sum_answer(self.give(order))
        except (Unsafe, Unfit, StateLost) as error:
            raise Refused(str(error)) from error

    def give(self, order: SumOrder) -> SumAnswer:
        """All that an order asks for, in the order in which it is safe to give it."""
        if order.digest != self.agreement.digest:
            raise Refused("the server runs other settings than this client agreed to")
        asks, gives, masked = order.asks, dict[str, Any](), None
        if asks.get("finish"):
            return self._end(order)
        if order.round >= self.agreement.rounds:
            raise Refused(f"round {order.round} is not one of the {self.agreement.rounds} agreed")
        member, keep = self._member(order.run)
        if "reveal" in asks:
            one = asks["reveal"]
            given = (one["survivors"], one.get("agreements", ()))
            gives["reveal"] = member.reveal(one["attempt"], *given)
        if "agree" in asks:
            gives["agree"] = member.agree(asks["agree"]["attempt"], asks["agree"]["survivors"])
        if "input" in asks:
            gives["input"], masked = self._input(order, asks["input"], member)
        if "keys" in asks:
            gives["keys"] = member.keys(asks["keys"])
        if "letters" in asks:
            one = asks["letters"]
            if len(one["keys"]) < self.fewest:
                raise Unsafe(
                    f"{len(one['keys'])} clients: this run needs {self.fewest} in every sum, more "
                    "than half of those that it draws"
                )
            gives["letters"] = member.letters(one["attempt"], one["keys"])
        keep()  # before anything of it is said
        return SumAnswer(order.run, order.round, order.state_round, gives, masked)

    def _member(self, run: str) -> tuple[Member, Callable[[], None]]:
        """The client's part in secure sums as it was left, and what writes it down again."""
        folder = self.folder / run
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / MASKING
        if path.exists():
            kept = json.loads(path.read_text(encoding="utf-8"))
        else:
            self._check_only_run(run)
            kept = {}
        member = Member(self.signer, self.terms.roster, run, kept)
        member.state["agreed"] = self.agreement.digest

        def keep() -> None:
            checkpoint.write_atomically(path, json.dumps(member.state).encode())
            path.chmod(0o600)

        return member, keep

    def _check_only_run(self, run: str) -> None:
        """Refuse a second run of one agreement: its sums, less those of the first, show clients.

        The first rounds of both are the same but for who takes part.
        """
        for path in self.folder.glob(f"*/{MASKING}"):
            before = json.loads(path.read_text(encoding="utf-8"))
            if before["seen"] and before.get("agreed") == self.agreement.digest:
                words = "run %s: refused, because %s was summed before; move that folder away to "
                log.warning(words + "allow another run of the same run.toml", run, path.parent)
                raise Unsafe(
                    "it took part in another run of this agreement, and the difference of sums "
                    "would show single clients; its owner can allow another run (see its log)"
                )

    def _input(self, order: SumOrder, ask: Mapping[str, Any], member: Member) -> Any:
        """Its part of a sum, masked: of the first sums, or of the update and the second ones."""
        state = self._settled(order, ask)
        ahead, part = bool(ask["ahead"]), ask["part"]
        _tell_once(member, order.round, part, ahead)
        trains = part == "signals" or ahead
        trained = self._train_once(order) if trains else self._trained(order)
        reported, network = trained["reported"], trained["network"]
        named = (self.agreement.digest, order.run, order.round, network)
        if part == "signals":
            numbers, vector = self.level.first(state, reported), np.zeros(0, dtype=np.uint64)
            about = about_signals(*named)
        else:
            used = self._used(order, ask, about_signals(*named))
            coefficient, numbers = self.level.second(state, reported, used, ahead)
            vector, about = self._vector(coefficient, trained["update"]), about_update(*named, used)
            pending = {"round": order.round, "about": about, "reported": dict(reported)}
            pending |= {"used": list(used), "ahead": ahead}
            after = {**state, "rounds": order.state_round + 1, "pending": pending}
            self._levels(order.run).save(after, keep=order.state_round)
        label = (order.round, part)
        given = (ask["attempt"], ask["letters"], label, about, pack_numbers(numbers), vector)
        return sent(member.mask(*given))

    def _levels(self, run: str) -> Slots:
        return Slots(self.folder / run / LEVELS)

    def _settled(self, order: SumOrder, ask: Mapping[str, Any]) -> State:
        """The client's level as it was left by its last round, whose sums are known by now."""
        state = dict(self._levels(order.run).at(order.state_round, self.level.initial))
        pending = state["pending"]
        if pending is None:
            return state
        sums = self._told(order.run, ask, pending["round"])
        if sums.about != pending["about"] or self.name not in sums.names:
            raise Unsafe("the server tells the sums of another round than this client's last")
        after, row = self.level.settled(state, sums.numbers)
        self._note(order.run, {**pending["reported"], **row}, pending["round"])
        return after

    def _told(self, run: str, ask: Mapping[str, Any], round_number: int) -> Sums:
        return seen(ask["told"][str(round_number)], self.terms.roster, run)

    def _used(self, order: SumOrder, ask: Mapping[str, Any], about: str) -> list[float]:
        """The sums that everybody moves by: this round's first ones, or an earlier round's."""
        if not ask["ahead"]:
            sums = seen(ask["signals"], self.terms.roster, order.run)
            if sums.about != about:
                raise Unsafe("the server tells the first sums of another round, or network")
            return list(sums.numbers)
        number, apart = ask["used"], "signals" in ask
        told = ask["signals"] if apart else ask["told"][str(number)]
        sums = seen(told, self.terms.roster, order.run)
        if not number < order.round or not is_of(sums, "signals" if apart else "update", number):
            raise Unsafe("the server tells sums of another kind than were asked for")
        return list(sums.numbers) if apart else parted(sums.numbers, self.level.sizes)["first"]

    def _train_once(self, order: SumOrder) -> State:
        """Its round, trained and written down; a repeated round is not trained again."""
        if order.shared is None:
            raise Refused("a round without a network")
        network, path = network_digest(order.shared), self.folder / order.run / TRAINED
        about = {"round": order.round, "state_round": order.state_round, "network": network}
        kept = self._kept(path)
        if all(kept.get(key) == value for key, value in about.items()):
            return kept
        plain = Order(
            "train", order.run, order.digest, order.round, order.state_round, order.shared
        )
        update = self.answer(plain).update
        assert update is not None
        trained = {**about, "update": update, "reported": dict(self.reported)}
        checkpoint.save(trained, path)
        path.chmod(0o600)
        return trained

    def _trained(self, order: SumOrder) -> State:
        kept = self._kept(self.folder / order.run / TRAINED)
        if (kept.get("round"), kept.get("state_round")) != (order.round, order.state_round):
            raise Refused("an update is asked for that was not trained")
        return kept

    def _kept(self, path: Path) -> State:
        try:
            return checkpoint.load(path) if path.exists() else {}
        except RunFolderError as error:
            log.warning("%s; the round is trained again", error)
            return {}

    def _vector(self, coefficient: float, update: Tensor) -> Words:
        """The update as it counts: finite, no longer than agreed, rounded."""
        values = coefficient * update.double().numpy()
        length = float(np.linalg.norm(values))
        if length > self.terms.longest:
            words = "the weighted update has length %.3g; it is cut to the %.3g agreed on"
            log.warning(words, length, self.terms.longest)
            values = values * (self.terms.longest / length)
        return pack_vector(values, self.terms.bits)

    def _note(self, run: str, numbers: Mapping[str, float], round_number: int) -> None:
        """A row of this client's own history, which nobody else has; once."""
        history = self._own_history(run)
        if any(row["round"] == round_number + 1 for row in history.rows[-2:]):
            return
        row = {"round": round_number + 1, "epoch": float(round_number + 1), "split": "batch"}
        shown = {k: v for k, v in numbers.items() if k != "size"}
        history.append([{**row, "client": self.name, "active": 1, **shown}])
        checkpoint.write_atomically(self.folder / run / METRICS, history.text().encode())

    def _own_history(self, run: str) -> History:
        path = self.folder / run / METRICS
        return read_history(path) if path.exists() else History([])

    def _end(self, order: SumOrder) -> SumAnswer:
        """Keep the network, the head and the history; see ``Participant``."""
        if order.shared is None:
            raise Refused("an end without a network")
        if order.state_round:
            self._settled(order, order.asks)
        about = (order.run, order.digest, order.round, order.state_round)
        self.answer(Order("finish", *about, order.shared))
        return SumAnswer(order.run, order.round, order.state_round, {})

    def _history(self, run: str, round_number: int, keeping: Keeping | None) -> History:
        history = super()._history(run, round_number, keeping)
        evaluations = history.rows
        history.rows = []
        history.append([*self._own_history(run).rows, *evaluations])
        return history


def _tell_once(member: Member, round_number: int, part: str, ahead: bool) -> None:
    """A round's signals are in one kind of sum only: two over different clients would show one."""
    if part == "update" and not ahead:
        return
    before = member.state.get("signals_in")
    if before is not None and before != [round_number, part] and before[0] == round_number:
        raise Unsafe("this round's signals were summed already, in another way")
    member.state["signals_in"] = [round_number, part]


def sent(given: tuple[dict[str, Any], Words]) -> tuple[dict[str, Any], Words | None]:
    """A signed message and its masked vector, None where that has no words."""
    message, rest = given
    return message, rest if len(rest) else None
