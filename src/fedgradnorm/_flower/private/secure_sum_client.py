"""A client of a private federation: trains as any other, and shows nothing but masked words.

What leaves it besides them: public keys, sealed letters, its name under lists, and shares of masks.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm._errors import RunFolderError
from fedgradnorm._flower.agreement import Agreement
from fedgradnorm._flower.client_session import ClientSession, batch_row
from fedgradnorm._flower.own_history import OwnHistory
from fedgradnorm._flower.private.network_check import NetworkBound
from fedgradnorm._flower.private.own_level import NoPart, OwnLevel
from fedgradnorm._flower.private.verified_sums import (
    Sums,
    chained,
    network_digest,
    usable,
    verified,
)
from fedgradnorm._flower.slots import Slots, StateLost
from fedgradnorm._flower.wire.messages import Order, Refused
from fedgradnorm._flower.wire.sum_messages import (
    SumAnswer,
    SumOrder,
    decode_sum_order,
    encode_sum_answer,
)
from fedgradnorm._masking.revealed import Revealed
from fedgradnorm._masking.ring import Words, pack_numbers, pack_vector
from fedgradnorm._masking.roster import Phase, Signer, Subject, Unsafe, digest
from fedgradnorm._masking.session import Session
from fedgradnorm._round.reports import SENT
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.layout import LEVELS, MASKING, REVEALED, TRAINED
from fedgradnorm.weighting import Weighting

log = logging.getLogger("fedgradnorm")

State = dict[str, Any]


class SecureSumClient:
    """One client, its data and its state folder; ``weighting`` is the run's, with its row alone."""

    def __init__(
        self,
        network: nn.Module,
        client: Client,
        agreement: Agreement,
        folder: Path,
        signer: Signer,
        weighting: Weighting,
    ) -> None:
        self.client = ClientSession(network, client, agreement, folder)
        self.agreement, self.folder, self.privacy = agreement, folder, self.client.privacy
        assert agreement.private is not None
        self.name, self.like = self.client.name, self.client.like
        self.terms, self.signer = agreement.private, signer
        self.revealed = Revealed()  # read with every order
        self.bound = NetworkBound(agreement.settings)
        self._first_network = self.like.clone()
        self._start = network_digest(self._first_network)
        weighting.run_seed = agreement.settings.seed
        self.level = OwnLevel(weighting, self.name, self.terms.largest_ratio)

    @property
    def result(self) -> Path | None:
        """Where the client's result was saved, once the run is over."""
        return self.client.result

    @property
    def over(self) -> bool:
        """Whether the run is over, even if the result could not be saved."""
        return self.client.over

    def respond(self, content: bytes) -> bytes:
        """The answer to a message."""
        order = decode_sum_order(content, self.like)
        try:
            return encode_sum_answer(self.give(order))
        except (Unsafe, StateLost) as error:
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
        session, keep = self._session(order.run)
        if "reveal" in asks:
            one = asks["reveal"]
            given = (one["survivors"], one.get("agreements", ()), one.get("proofs", ()))
            gives["reveal"] = session.reveal(one["attempt"], *given)
        if "agree" in asks:
            one = asks["agree"]
            proofs = one.get("proofs", ())
            gives["agree"] = session.agree(one["attempt"], one["survivors"], proofs)
        if "input" in asks:
            gives["input"], masked = self._input(order, asks["input"], session)
        if "keys" in asks:
            one = asks["keys"]
            gives["keys"] = session.keys(one["attempt"], int(one["round"]), Phase(one["phase"]))
        if "letters" in asks:
            gives["letters"] = session.letters(asks["letters"]["attempt"], asks["letters"]["keys"])
        keep()  # before anything of it is said
        return SumAnswer(order.run, order.round, order.state_round, gives, masked)

    def _session(self, run: str) -> tuple[Session, Callable[[], None]]:
        """The client's part in secure sums as it was left, and what writes it down again.

        Also the record of sums: the process before this one may have added to it since.
        """
        self.revealed = Revealed(self.folder / REVEALED)
        folder = self.folder / run
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / MASKING
        if not path.exists():
            for other in self.folder.glob(f"*/{MASKING}"):  # other runs know what must be there
                self.revealed.check_count(json.loads(other.read_bytes())["revealed"])
        session = Session(
            self.signer,
            self.terms.roster,
            self.agreement.digest,
            run,
            colluders=self.terms.colluders,
            state=json.loads(path.read_text(encoding="utf-8")) if path.exists() else {},
            revealed=self.revealed,
            start=self._start,
        )

        def keep() -> None:
            checkpoint.write_atomically(path, json.dumps(session.state).encode())
            path.chmod(0o600)

        return session, keep

    def _input(self, order: SumOrder, ask: Mapping[str, Any], session: Session) -> Any:
        """Its part of a sum, masked: of the first sums, or of the update and the second ones.

        Whatever fails here depends on the client's data. So it fails in secret: the client adds
        nothing, and only its own log has the reason.
        """
        ahead, phase = bool(ask["ahead"]), Phase(ask["part"])
        session.check_attempt(ask["attempt"], order.round, phase)
        state = self._settled(order, ask, session)
        since = [str(one) for one in ask["since"]]
        if state["known"] + len(since) != order.round:
            raise Unsafe("the server leaves out sums of earlier rounds")
        if since:
            self._check_last(order, ask, session, since[-1])
        chain = chained(state["chain"], since)
        trained = self._train_once(order) if order.shared is not None else self._trained(order)
        network = trained["network"]
        if phase == Phase.SIGNALS:
            subject, used = Subject(network, digest([chain])), list[float]()
        else:
            sums = self._used(order, ask, session, Subject(network, digest([chain])))
            subject = Subject(network, digest([chain, sums.digest]), ahead)
            parts = usable(sums.numbers, self.level.sizes[sums.phase], len(sums.names))
            used = parts.get("first", [])
        numbers, vector, failed = self._part(phase, state, trained, used, ahead)
        if phase == Phase.UPDATE:
            pending = {"round": order.round, "subject": subject.facts(), "used": used}
            pending |= {"reported": trained["reported"], "ahead": ahead}
            pending |= {"failed": failed, "chain": chain}
            after = {**state, "rounds": order.state_round + 1, "pending": pending}
            self._levels(order.run).save(after, keep=order.state_round)
        packed = pack_numbers(numbers)
        message, rest = session.mask(ask["attempt"], ask["letters"], subject, packed, vector)
        return message, rest if len(rest) else None

    def _part(
        self, phase: Phase, state: State, trained: State, used: Sequence[float], ahead: bool
    ) -> tuple[list[float], Words, bool]:
        """Numbers and vector of an input, and whether they are only zeros.

        Whatever is raised here may depend on the client's data.
        """
        nothing = np.zeros(len(self.like) if phase == Phase.UPDATE else 0, dtype=np.uint64)
        try:
            if trained["failed"]:
                raise NoPart("its loss or gradient could not be used")
            if phase == Phase.SIGNALS:
                return self.level.first(state, trained["reported"]), nothing, False
            given = (state, trained["reported"], used, ahead)
            coefficient, numbers, _ = self.level.second(*given)
            return numbers, self._vector(coefficient, trained["update"]), False
        except Exception as error:
            log.warning("this client adds nothing to the sum: %r", error)
            return self.level.nothing(phase), nothing, True

    def _levels(self, run: str) -> Slots:
        return Slots(self.folder / run / LEVELS)

    def _settled(self, order: SumOrder, ask: Mapping[str, Any], session: Session) -> State:
        """The client's level as it was left by its last round, whose sums are known by now."""
        state = dict(self._levels(order.run).at(order.state_round, self.level.initial))
        pending = state["pending"]
        if pending is None:
            return state
        sums = verified(ask["told"][str(pending["round"])], session, self.level.sizes)
        about = (sums.round, sums.phase, sums.subject.facts())
        if about != (pending["round"], Phase.UPDATE, pending["subject"]):
            raise Unsafe("the server tells the sums of another round than this client's last")
        if self.name not in sums.names:
            raise Unsafe("the server tells sums without this client's own part")
        after, row = self.level.settled(state, sums)
        if row and ask.get("part") != Phase.SIGNALS:  # once a round
            self._note(order, pending["round"], state["rounds"], {**pending["reported"], **row})
        return after

    def _check_last(
        self, order: SumOrder, ask: Mapping[str, Any], session: Session, name: str
    ) -> None:
        """Unsafe unless the last round was summed, and this client has no part in that sum.

        Its clients asked for the same. So no round can be skipped, and the network check allows
        no more steps than there were rounds.
        """
        sums = verified(ask["told"].get(str(order.round - 1)), session, self.level.sizes)
        if (sums.round, sums.phase, sums.digest) != (order.round - 1, Phase.UPDATE, name):
            raise Unsafe("the server does not show the sums of the last round")
        if self.name in sums.names:
            raise Unsafe("the last round's sum has this client's part, from the state before it")

    def _used(
        self, order: SumOrder, ask: Mapping[str, Any], session: Session, first: Subject
    ) -> Sums:
        """The sums that everybody moves by: this round's first ones, or an earlier round's."""
        if not ask["ahead"]:
            sums = verified(ask["signals"], session, self.level.sizes)
            if (sums.round, sums.phase, sums.subject) != (order.round, Phase.SIGNALS, first):
                raise Unsafe("the server tells the first sums of another round, or network")
            return sums
        number, apart = int(ask["used"]), "signals" in ask
        told = ask["signals"] if apart else ask["told"][str(number)]
        sums = verified(told, session, self.level.sizes)
        phase = Phase.SIGNALS if apart else Phase.UPDATE
        if not number < order.round or (sums.round, sums.phase) != (number, phase):
            raise Unsafe("the server tells sums of another kind than were asked for")
        return sums

    def _train_once(self, order: SumOrder) -> State:
        """Its round, trained and written down; a repeated round is not trained again.

        A round has one network, and the agreed server optimizer can have made it of the last one.
        """
        assert order.shared is not None
        network, path = network_digest(order.shared), self.folder / order.run / TRAINED
        about = {"round": order.round, "state_round": order.state_round, "network": network}
        kept = self._kept(path)
        before = kept.get("round", -1)
        if order.round < before or (order.round == before and network != kept["network"]):
            raise Unsafe(f"round {before} was begun, with another network")
        if all(kept.get(key) == value for key, value in about.items()):
            return kept
        known = kept["shared"] if kept else self._first_network
        self.bound.check(order.shared, known, max(before, 0), order.round)
        seen = kept and self.revealed.seen(kept["network"], Phase.UPDATE)
        if seen and order.state_round <= kept["state_round"]:
            raise Unsafe(
                f"round {order.round} begins from the state before round {before}, whose sum "
                "was seen: the difference of the two would show single clients"
            )
        plain = Order(
            "train", order.run, order.digest, order.round, order.state_round, order.shared
        )
        failed, update = False, None
        try:
            update = self.client.answer(plain).update
        except Exception as error:  # whatever it is, it may depend on the data
            log.warning("round %d: %s", order.round + 1, error, exc_info=not str(error))
            slots, failed = Slots(self.folder / order.run), True
            state = slots.at(order.state_round, self.client.initial)
            slots.save({**state, "rounds": order.state_round + 1}, keep=order.state_round)
        update = torch.zeros_like(self.like) if update is None else update
        reported = dict.fromkeys(("size", *SENT), 0.0) if failed else dict(self.client.reported)
        trained = {**about, "update": update, "reported": reported, "failed": failed}
        checkpoint.save({**trained, "shared": order.shared.cpu()}, path)
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

    def _note(
        self, order: SumOrder, number: int, state: int, measured: Mapping[str, float]
    ) -> None:
        """A row of this client's own history, which nobody else has."""
        row = {**batch_row(number + 1, self.name, measured), "weight": measured["weight"]}
        row["weight_frozen"] = measured["weight_frozen"]
        OwnHistory(self.folder / order.run).add(state, [row])

    def _end(self, order: SumOrder) -> SumAnswer:
        """Keep the network, the head and the history."""
        if order.shared is None:
            raise Refused("an end without a network")
        if order.state_round:
            self._settled(order, order.asks, self._session(order.run)[0])
        about = (order.run, order.digest, order.round, order.state_round)
        self.client.answer(Order("finish", *about, order.shared))
        return SumAnswer(order.run, order.round, order.state_round, {})
