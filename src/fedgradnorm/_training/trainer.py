"""The rounds of a run: who takes part, what is recorded, what a checkpoint holds."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm._client import SPLITS, Client
from fedgradnorm._errors import TrainingError
from fedgradnorm._federation.federation import Federation, Outcome
from fedgradnorm._federation.sharing import (
    check_clients,
    federations,
    warn_of_order,
    warn_of_scale,
)
from fedgradnorm._round.presence import Presence, batches_of
from fedgradnorm._round.private.accounts import Accounts
from fedgradnorm._round.private.client_sums import drawn
from fedgradnorm._round.private.private_plan import planned
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs.about import kept_words
from fedgradnorm._runs.csv_table import Row, Table
from fedgradnorm._runs.history import UNTUNED, History, conflict_table, pair_rows
from fedgradnorm._runs.layout import CONFLICT, METRICS
from fedgradnorm._runs.run import Run, TrainedClient
from fedgradnorm._training.alone.candidates import Alone, choose, install, start_of
from fedgradnorm._training.ending.stopping import Stopping, log_personal
from fedgradnorm._training.watch import Watch
from fedgradnorm.models._dividing import log_division
from fedgradnorm.weighting import Weighting

log = logging.getLogger("fedgradnorm")


@dataclass(frozen=True)
class Progress:
    """What a progress callback is told after every round; ``rows`` are the history's new ones.

    ``losses`` are what ``shown`` says: a server over the network may know no more than ratios.
    ``ended`` is empty until the run is over; it then says what was kept, where that was a choice.
    ``stage`` is "alone" while clients train alone to have the choice of it; rounds are then its.
    """

    round: int
    rounds: int
    epoch: float
    losses: Mapping[str, float]
    weights: Mapping[str, float]
    rows: Sequence[Row] = ()
    shown: str = "loss"
    ended: str = ""
    stage: str = ""


class Trainer:
    """One run in the making: its federations, its round counter and its history."""

    def __init__(
        self,
        network: nn.Module,
        clients: Sequence[Client],
        weighting: Weighting,
        settings: Settings,
        device: torch.device,
    ) -> None:
        check_clients(clients, settings)
        clients = planned(clients, settings)
        self.clients = {client.name: client for client in clients}
        sizes = [client.drawn for client in clients]
        self.rounds = settings.total_rounds(sizes)
        settings = settings.for_rounds(self.rounds)
        self.federations = federations(network, clients, weighting, settings, device)
        self.names = list(self.clients)
        self.network, self.settings, self.device = network, settings, device
        self.start = start_of(network, clients, settings.seed) if settings.chooses_alone else {}
        self.per_epoch = settings.rounds_per_epoch(sizes)
        self.round, self.ending = 0, False
        self.taken = dict.fromkeys(self.names, 0)
        self.watch = Watch(self.names, settings)
        self.accounts = Accounts(clients, settings, self.rounds)
        self.rounds = self.accounts.govern(self.federations, self.rounds)
        self.stopping = Stopping(self.federations, settings)
        self.personal: dict[str, dict[str, Any]] = {}
        batch = batches_of(clients, settings.batch_size, settings.seed).batch
        steps = settings.local().steps
        self.presence = Presence(clients, settings.batch_size, settings.seed, steps)
        self._samples = {name: steps * batch[name] for name in self.names}
        metrics = sorted({key for client in clients for key in client.task.metrics})
        self.history = History(metrics, private=bool(self.accounts))
        self.conflict = conflict_table()
        if settings.share == "all":
            warn_of_order(clients)

    def begin(
        self, statistics: Mapping[str, Mapping[str, Tensor]], networks: Mapping[str, Tensor]
    ) -> None:
        """Start with what clients have from another run: running statistics, and networks."""
        for federation in self.federations:
            federation.begin(statistics, networks)
        if self.start:
            self.start["statistics"] = {name: dict(own) for name, own in statistics.items()}

    @property
    def tables(self) -> dict[str, Table]:
        """The history and, where it is recorded, the conflict, by the name of their file."""
        recorded = {CONFLICT: self.conflict} if self.settings.record_conflict else {}
        return {METRICS: self.history, **recorded}

    @property
    def epoch(self) -> float:
        """Passes over the largest client's training rows so far."""
        return self.round / self.per_epoch

    @property
    def done(self) -> bool:
        """Whether all rounds are over, or enough of them."""
        return self.round >= self.rounds or self.stopping.stopped

    @property
    def over(self) -> bool:
        """Whether there is nothing left to do; ``ending`` is between the last round and that."""
        return self.done and not self.ending

    def every(self, given: int | None) -> int:
        """An interval in rounds: as given, or once an epoch."""
        return max(1, round(self.per_epoch)) if given is None else given

    def advance(self, most: int = 1) -> Progress:
        """One round, or up to ``most`` where the engine runs several without coming back."""
        if every := self.settings.record_conflict:  # a recorded round is the first of its burst
            most = min(most, every - self.round % every)
        count = min(most, self.rounds - self.round, self.federations.burst)
        actives = [self._active(self.round + k) for k in range(count)]
        outcomes = self.federations.rounds(self.round, self._by_federation(actives))
        rows: list[Row] = []
        for together in zip(*outcomes, strict=True):
            rows = self._record(list(together))
        return Progress(
            self.round,
            self.rounds,
            self.epoch,
            {row["client"]: row["loss"] for row in rows if row["active"]},
            {row["client"]: row["weight"] for row in rows},
        )

    def _by_federation(self, actives: Sequence[Sequence[str]]) -> list[list[list[str]]]:
        """Who takes part in each round, for each federation; nobody in one that has stopped."""
        there, found = [set(active) for active in actives], []
        for place, federation in enumerate(self.federations):
            names = [] if self.stopping.is_stopped(place) else federation.names
            found.append([[name for name in names if name in those] for those in there])
        return found

    def _active(self, round_number: int) -> list[str]:
        """Who takes part in a round; whose privacy budget is spent does so no more."""
        found = drawn(self.settings, self.names, round_number)
        if found is None:
            found = self.presence.active(self.settings.participation, round_number)
        return self.accounts.able(found)

    def _record(self, outcomes: Sequence[Outcome]) -> list[Row]:
        """Count a round and write down what became of it."""
        active = [name for outcome in outcomes for name in outcome.active]
        failed = [name for outcome in outcomes for name in outcome.failed]
        self.watch.fail(self.round + 1, active, failed)
        if active and len(failed) == len(active):
            raise TrainingError(
                f"round {self.round + 1}: training diverges: the loss or gradient of every active "
                f"client is not finite ({', '.join(failed)}); "
                f"lower {self.watch.divergence.rates} or look at the data"
            )
        self.round += 1
        self.accounts.note(self.round, active)
        rows: list[Row] = []
        for federation, outcome in zip(self.federations, outcomes, strict=True):
            rows += self._rows(federation, outcome)
            self.conflict.append(pair_rows(self.round, self.epoch, outcome.conflict))
        self.watch.hold(self.round, rows)
        if self.round % self.settings.log_every == 0 or self.done:
            self.history.append(rows)
        return rows

    def _rows(self, federation: Federation, outcome: Outcome) -> list[Row]:
        rows = []
        wanted, failed = set(outcome.active), set(outcome.failed)
        for i, name in enumerate(federation.names):
            if name not in wanted:
                continue
            ok = name not in failed
            self.taken[name] += ok
            row: Row = {"round": self.round, "epoch": self.epoch, "client": name, "split": "batch"}
            row.update(active=int(ok), weight=outcome.columns["weight"][i])
            if ok:
                row.update({k: outcome.columns[k][i] for k in ("loss", "loss_ratio", "gauge_norm")})
            row["held"] = int(outcome.columns["held"][i])
            rows.append({**row, **self._meters(federation, name)})
        return rows

    def _meters(self, federation: Federation, name: str) -> Row:
        """Samples a client has seen, bytes exchanged and privacy spent so far."""
        traffic = federation.bytes_per_round(name) if self.settings.share == "all" else 0
        taken = self.taken[name]
        spent = self.accounts.columns(name)
        return {"samples": taken * self._samples[name], "bytes": taken * traffic, **spent}

    def announce(self) -> None:
        """Say what is shared, where gradients are measured, and what recording costs more."""
        log_division(self.network, self.federations[0].gauge)
        warn_of_scale(list(self.clients.values()), self.settings)
        scheduled = self.settings.server_schedule or self.settings.head_schedule
        if self.device.type == "cuda" and scheduled:
            log.info("rounds are not captured into a GPU graph: rates follow a schedule")
        self.accounts.announce()
        self.stopping.announce(self.names)
        self.presence.announce(self.rounds)
        every, engine = self.settings.record_conflict, self.federations[0].engine
        reason = engine.conflict_obstacle
        if every and reason and len(self.federations[0].names) > 1:
            log.info(
                "record_conflict = %d: engine %s is kept, but %s, so the rounds to record are also "
                "tried client by client; the training is the same", every, engine.name, reason,
            )  # fmt: skip

    def evaluate(self) -> None:
        """Loss and metrics of every client on all its splits, into the history.

        The last evaluation is that of what the run ends with: the state that is kept, with heads
        tuned if they are. Where clients may choose to be alone, it waits until they have been.
        """
        rows = self._measured() if self.stopping.best or not self.done else []
        self.stopping.note(self.round, rows)
        if not self.done:
            self.history.append(rows)
        elif self.settings.chooses_alone:
            self.ending = True
        else:
            self.end()

    def end(self, alone: Alone | None = None) -> None:
        """What comes after the last round; ``alone`` is what clients may choose instead."""
        self.watch.sum_up()
        self.stopping.restore()
        for federation in self.federations:
            federation.finish(self.round)
        if self.settings.personalize is not None:
            self.history.append(self._measured(UNTUNED))
        for federation in self.federations:
            self.personal |= federation.personalize(self.round)
        if alone is not None:
            self.personal = choose(self.personal, alone)
            install([o for f in self.federations for o in f.owners()], self.personal, alone)
        log_personal(self.personal)
        self.ending = False
        self.history.append(self._measured())

    def _measured(self, before: str = "") -> list[Row]:
        """Rows of all clients and splits, whose names begin with ``before``."""
        rows: list[Row] = []
        for federation in self.federations:
            weight = federation.server.weighting.weight.tolist()
            weights = dict(zip(federation.names, weight, strict=True))
            for split in SPLITS:
                for name, values in federation.evaluate(split).items():
                    row: Row = {"round": self.round, "epoch": self.epoch, "client": name}
                    row.update(split=before + split, weight=weights[name], **values)
                    rows.append({**row, **self._meters(federation, name)})
        order = {name: i for i, name in enumerate(self.names)}
        return sorted(rows, key=lambda row: order[row["client"]])

    def result(self, about: dict[str, Any]) -> Run:
        """The run as it stands."""
        one = len(self.federations) == 1 and self.settings.share == "all"
        trained = {}
        for owner in [o for federation in self.federations for o in federation.owners()]:
            state, heads = owner.engine.state_dict(), owner.engine.heads()
            for name in owner.names:
                client = self.clients[name]
                own = state[name].get("own")
                with_others = one and owner in self.federations and own is None
                network = None if with_others else owner.shared_network(own)
                trained[name] = TrainedClient.from_client(client, heads[name], state[name], network)
        shared = self.federations[0].shared_network() if one else None
        about = {**about, "finished": self.over, **self.watch.counts(), **self._kept()}
        return Run(trained, about, self.history, shared, self.over, self.conflict)

    def _kept(self) -> dict[str, Any]:
        """What a finished run says of the state that it kept, where that was a choice."""
        personal = {"personal": self.personal} if self.personal else {}
        if not self.over or not self.stopping.best:
            return personal
        kept = self.stopping.about()
        return {"stopped_early": self.round < self.rounds, "kept": kept, **personal}

    @property
    def ended(self) -> str:
        """The same in words."""
        return kept_words(self._kept())

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on from here."""
        more: dict[str, Any] = {"personal": self.personal} if self.personal else {}
        if self.stopping.best:
            more["stopping"] = self.stopping.state_dict()
        more |= {"accounts": self.accounts.state_dict()} if self.accounts else {}
        if self.start and not self.over:
            more |= {"start": self.start, "ending": self.ending}
        return {
            "round": self.round,
            "taken": self.taken,
            "watch": self.watch.state_dict(),
            "federations": [federation.state_dict() for federation in self.federations],
            **more,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""
        self.round = _whole(state["round"], "round", self.rounds)
        self.taken = {name: _whole(state["taken"][name], f"taken.{name}") for name in self.names}
        load = self.watch.load_state_dict if "watch" in state else self.watch.load_old
        load(state.get("watch", state))
        self.personal = dict(state.get("personal", {}))
        self.start = state.get("start", self.start)
        self.ending = bool(state.get("ending"))
        self.stopping.load_state_dict(state.get("stopping", []))
        self.accounts.load_state_dict(state.get("accounts", {}))
        for federation, part in zip(self.federations, state["federations"], strict=True):
            federation.load_state_dict(part)


def _whole(value: Any, what: str, most: float = float("inf")) -> int:
    """A counter out of a checkpoint; a ValueError if it cannot be one."""
    if not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{what} is {value!r:.40}")
    return value
