"""The server's rounds: order, collect what is good, weigh, step; again where that is too little."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedgradnorm._errors import TrainingError
from fedgradnorm._flower.agreement import Agreement
from fedgradnorm._flower.attendance import Attendance, Patience
from fedgradnorm._flower.group_heads import GroupHeads
from fedgradnorm._flower.wire.messages import (
    Answer,
    Order,
    Refused,
    check_grad_norm,
    decode_answer,
)
from fedgradnorm._flower.wire.transport import Asking, Content, Exchange
from fedgradnorm._masking.gathering import TooFew
from fedgradnorm._masking.roster import Unsafe
from fedgradnorm._round.bounds import Cut
from fedgradnorm._round.participation import participants
from fedgradnorm._round.reports import SENT, Reports
from fedgradnorm._round.server import ServerState, server_step
from fedgradnorm._runs.csv_table import Row, Table
from fedgradnorm._runs.history import History
from fedgradnorm._runs.layout import METRICS
from fedgradnorm._training.callbacks import Progress
from fedgradnorm._training.monitor import Monitor

log = logging.getLogger("fedgradnorm")

AWAY = 0.5  # seconds between two looks for clients that went away


class Coordinator:
    """The server of one run. It knows of a client: its name, its updates, the agreed scalars.

    Where clients share ``heads``, it knows these too.
    """

    def __init__(
        self,
        server: ServerState,
        names: list[str],
        agreement: Agreement,
        exchange: Exchange,
        patience: Patience,
        heads: GroupHeads,
        norm_layer: Tensor | None = None,
    ) -> None:
        self.server, self.names, self.agreement = server, names, agreement
        self.exchange, self.patience = exchange, patience
        self.heads, self.norm_layer = heads, norm_layer
        self.run = secrets.token_hex(8)
        self.round = 0
        self.states = dict.fromkeys(names, 0)  # rounds each client has completed
        self.refused, self.missed = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
        self.bytes, self.bounded = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
        self.sizes: dict[str, float] = {}  # examples that each client first reported
        self.out: set[str] = set()  # whose answers were refused in this round
        self.silent: set[str] = set()  # whose missing answer was counted in this attempt
        self.given: dict[str, float | None] = dict.fromkeys(names)  # weight after its last round
        self.monitor = Monitor(names, agreement.settings)
        self.attendance = Attendance(names, patience.rules)
        self.history = History([])

    @property
    def tables(self) -> dict[str, Table]:
        return {METRICS: self.history}

    def weights(self) -> dict[str, float]:
        """Each client's weight, as far as the server knows it."""
        return dict(zip(self.names, self.server.weighting.weight.tolist(), strict=True))

    def board(self, connected: Sequence[str]) -> list[dict[str, Any]]:
        """What ``federation status`` shows of each client."""
        weights, exchange = self.weights(), self.exchange
        return [
            {
                "client": name,
                "connected": name in connected,
                "seen": exchange.seen.get(name),
                "seconds": exchange.seconds.get(name),
                "rounds": self.states[name],
                "weight": weights.get(name),
                "bytes": self.bytes[name],
                "left_out": self.missed[name],
                "refused": self.refused[name],
                "bounded": self.bounded[name],
                "state": self.attendance.state_of(name, self.round),
            }
            for name in self.names
        ]

    @property
    def done(self) -> bool:
        return self.round >= self.agreement.rounds

    def advance(self) -> Progress:
        """One round, repeated while too little comes of it, then a TrainingError."""
        settings, why = self.agreement.settings, ""
        drawn = participants(settings.participation, settings.seed, self.names, self.round)
        self.out = set()
        for attempt in range(1, self.patience.attempts + 1):
            asked, self.silent = self._asked(drawn), set()
            try:
                return self._attempt(drawn, asked)
            except (TooFew, Unsafe) as error:
                why = str(error)
            words = "round %d: %s (attempt %d of %d)"
            log.warning(words, self.round + 1, why, attempt, self.patience.attempts)
            if attempt < self.patience.attempts:
                self._await({*drawn, *asked}, self._needed(drawn, asked))
        raise TrainingError(
            f"round {self.round + 1}: {why}; check the clients' logs, then continue with --resume"
        )

    def _attempt(self, drawn: list[str], asked: list[str]) -> Progress:
        """Orders, answers and a step; TooFew where too few answers are good."""
        started = time.monotonic()
        good = self._collect({name: self._order("train", name) for name in asked})
        least = self._least(drawn, asked)
        if len(good) < least:
            raise TooFew(f"{len(good)} good answers, {least} are needed")
        seconds = time.monotonic() - started
        log.info("round %d: %d answers in %.2f s", self.round + 1, len(good), seconds)
        return self._step(asked, good)

    def _await(self, names: Iterable[str], least: int) -> None:
        """Where too few are connected, wait ``deadline`` seconds at most for others to return.

        Nobody waits for clients that are shut out, or where the others are too few.
        """
        end, said = time.monotonic() + self.patience.deadline, False
        able = {name for name in names if not self.attendance.shut_out(name)}
        while len(missing := able.difference(self.exchange.online())) > len(able) - least:
            if len(able) < least or time.monotonic() > end:
                return
            if not said:
                words = "waiting %.0f s at most for %s to connect again"
                log.warning(words, self.patience.deadline, ", ".join(sorted(missing)))
            said = True
            time.sleep(AWAY)

    def _asked(self, drawn: list[str]) -> list[str]:
        """The drawn clients that participate; all others that do, if those are all shut out."""
        if not drawn:
            return []
        asked, needed = self.attendance.asked, min(self.patience.minimum, len(drawn))
        return asked(drawn, self.round, needed) or asked(self.names, self.round, 1)

    def _least(self, drawn: list[str], asked: list[str]) -> int:
        """Good answers that the round needs: ``minimum``, or those of all who still participate."""
        if not drawn:
            return 0
        if self.patience.minimum:
            return min(self.patience.minimum, len(drawn))
        return max(1, sum(self.attendance.takes_part(name, self.round) for name in asked))

    def _needed(self, drawn: list[str], asked: list[str]) -> int:
        """Clients that must be there for another attempt."""
        return self._least(drawn, asked)

    def finish(self) -> list[str]:
        """Give everybody who is not shut out the finished network; who has it."""
        names = [name for name in self.names if not self.attendance.shut_out(name)]
        return list(self._collect({name: self._order("finish", name) for name in names}))

    def _order(self, kind: Any, name: str) -> Order:
        shared = self.server.shared.data.clone()
        about = (kind, self.run, self.agreement.digest, self.round, self.states[name])
        return Order(*about, shared, self.given[name], *self.heads.of(name))

    def _collect(self, orders: Mapping[str, Asking]) -> dict[str, Any]:
        """The answers that can be used; all others are logged and counted."""
        good: dict[str, Any] = {}
        found = dict(self.exchange.ask(orders, self.patience.deadline))
        for name, order in orders.items():
            content = found.pop(name, "no answer")  # a large thing, not to be held twice
            if isinstance(content, str):
                self._count(self.missed, name, "client %r left out: %s", content)
                if name not in self.silent:  # a private round has several orders
                    self.attendance.missed(name, self.round, refused=False)
                self.silent.add(name)
                continue
            answer = self._tried(name, content, order)
            if isinstance(answer, str):
                self._refuse(name, answer)
            else:
                good[name] = answer
                self._read(name)
        return good

    def _refuse(self, name: str, why: str) -> None:
        """Name, count and leave out whoever sent what cannot be used."""
        self._count(self.refused, name, "answer of %r refused: %s", why)
        self.out.add(name)
        self.attendance.missed(name, self.round, refused=True)

    def _count(self, counts: dict[str, int], name: str, words: str, why: str) -> None:
        """Count a client's problem; log the first one of its kind."""
        if not counts[name]:
            log.warning(f"round %d: {words}", self.round + 1, name, why)
        counts[name] += 1

    def _read(self, name: str) -> None:
        self.attendance.good(name)

    def _tried(self, name: str, content: Content, order: Any) -> Any:
        """The answer, or why it is refused: in words, for an error would hold what it came from."""
        if isinstance(content, Refused):
            return str(content)
        assert isinstance(content, bytes)
        self.bytes[name] += self.exchange.ordered.get(name, 0) + len(content)
        try:
            return self._checked(name, content, order)
        except Refused as error:
            return str(error)

    def _checked(self, name: str, content: bytes, order: Any) -> Any:
        """The answer, decoded and checked; a private federation has answers of another kind."""
        answer = decode_answer(content, order, self.agreement.scalars, self.patience.longest)
        if answer.update is not None:
            if self.norm_layer is not None and "grad_norm" in answer.scalars:
                check_grad_norm(answer.update, answer.scalars["grad_norm"], self.norm_layer)
            self._check_size(name, answer.scalars.get("size"))
        return answer

    def _check_size(self, name: str, said: float | None) -> None:
        """Refuse another number of rows than the client first said; its data stays the same."""
        if said is not None and said != self.sizes.setdefault(name, said):
            raise Refused(f"its size is {said:g}, but it was {self.sizes[name]:g}")

    def _count_bounded(self, cuts: Sequence[Cut]) -> None:
        """Count the rounds in which a client was bounded; log the first one."""
        for cut in {cut.row: cut for cut in cuts}.values():
            name = self.names[cut.row]
            if not self.bounded[name]:
                words = "round %d: client %r is bounded: %s; later rounds are only counted"
                log.warning(words, self.round + 1, name, cut)
            self.bounded[name] += 1

    def _step(self, active: list[str], good: Mapping[str, Answer]) -> Progress:
        reports = self._reports(good)
        self.server.begin_round(self.round)
        weights = server_step(self.server, reports)
        heads = {name: answer.head for name, answer in good.items() if answer.head is not None}
        cuts = self.heads.average(heads, reports, weights, self.server.aggregate)
        self._count_bounded([*self.server.cuts, *cuts])
        weight = dict(zip(self.names, weights.tolist(), strict=True))
        for name in good:
            self.states[name] += 1
            self.given[name] = weight[name]
        self.round += 1
        frozen = self.server.weighting.frozen
        rows: list[Row] = []
        for i, name in enumerate(self.names):
            if name not in active:
                continue
            row: Row = {"round": self.round, "epoch": float(self.round), "client": name}
            row.update(split="batch", active=int(name in good), weight=weight[name])
            row.update(
                weight_frozen=0 if frozen is None else int(frozen[i]), bytes=self.bytes[name]
            )
            known = good[name].scalars if name in good else {}
            rows.append({**row, **{k: v for k, v in known.items() if k != "size"}})
        self.history.append(rows)
        self._monitored(rows)
        return self._progress(rows, weight)

    def _monitored(self, rows: Sequence[Row]) -> None:
        """Note whose weight was frozen in a round, and whose loss has grown."""
        active = {row["client"]: row for row in rows if row["active"]}
        frozen = {name: row["weight_frozen"] for name, row in active.items()}
        losses, ratios = (
            {name: row[key] for name, row in active.items() if row.get(key) is not None}
            for key in ("loss", "loss_ratio")
        )
        self.monitor.note(self.round, [], frozen, losses, ratios)

    def sum_up(self) -> None:
        for name in self.names:
            counts = (self.states[name], self.round, self.missed[name], self.refused[name])
            if any(counts[2:]):
                words = "client %r participated in %d of %d rounds: %d orders were not answered, "
                log.warning(words + "and %d answers refused", name, *counts)
        self.monitor.frozen.sum_up(self.round)

    def _progress(self, rows: list[Row], weight: Mapping[str, float]) -> Progress:
        key = "loss" if "loss" in self.agreement.scalars else "loss_ratio"
        known = {row["client"]: float(row[key]) for row in rows if key in row}
        counts, shown = (self.round, self.agreement.rounds), key.replace("_", " ")
        return Progress(*counts, float(self.round), known, weight, shown=shown)

    def _reports(self, good: Mapping[str, Answer]) -> Reports:
        """The answers as rows, in the clients' order, as an engine in one process has them."""

        def column(key: str) -> Tensor:
            values = [good[n].scalars.get(key, 0.0) if n in good else 0.0 for n in self.names]
            return torch.tensor(values, dtype=torch.float64)

        shared = self.server.shared.data
        updates = shared.new_zeros(len(self.names), len(shared))
        for name, answer in good.items():
            assert answer.update is not None
            updates[self.names.index(name)] = answer.update
        return Reports(
            active=torch.tensor([name in good for name in self.names]),
            size=column("size"),
            **{key: column(key) for key in SENT},
            failed=(),
            updates=updates,
        )

    @property
    def journal(self) -> None:
        """Nothing: all that a server knows is in its state."""

    def state_dict(self, rows: bool = True) -> dict[str, Any]:  # noqa: ARG002
        tables = {key: dict(getattr(self, key)) for key in _TABLES}
        tables["attendance"] = self.attendance.state_dict()
        own = {"server": self.server.state_dict(), "monitor": self.monitor.state_dict()}
        kept = {"run": self.run, "round": self.round, "sizes": dict(self.sizes)}
        return {**kept, **own, **tables, "heads": self.heads.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.run, self.round = state["run"], state["round"]
        self.server.load_state_dict(state["server"])
        self.sizes = dict(state["sizes"])
        self.monitor.load_state_dict(state["monitor"])
        self.heads.load_state_dict(state["heads"])
        for key in _TABLES:
            setattr(self, key, {name: state[key][name] for name in self.names})
        self.attendance.load_state_dict(state["attendance"])


_TABLES = ("states", "refused", "missed", "bytes", "bounded", "given")
