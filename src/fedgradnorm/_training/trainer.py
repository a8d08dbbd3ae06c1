"""The rounds of a run: who takes part, what is recorded, what a checkpoint holds."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm._engines import Journal
from fedgradnorm._errors import TrainingError, listed
from fedgradnorm._federation.federation import Federation, Outcome
from fedgradnorm._federation.head_start import log_starts
from fedgradnorm._federation.sharing import (
    check_clients,
    make_federation,
    warn_of_scale,
)
from fedgradnorm._round.presence import Presence
from fedgradnorm._round.private.accounts import Accounts
from fedgradnorm._round.private.client_sums import drawn
from fedgradnorm._round.private.private_plan import planned
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs.about import kept_words
from fedgradnorm._runs.csv_table import Row, Table
from fedgradnorm._runs.history import UNTUNED, History
from fedgradnorm._runs.many.stacked_clients import StackedClients
from fedgradnorm._runs.run import Run, TrainedClient
from fedgradnorm._training.alone.candidates import Alone, choose, install, start_of
from fedgradnorm._training.ending.stopping import Stopping, log_personal
from fedgradnorm._training.recording import Recording
from fedgradnorm._training.spells import packed_counts, unpacked_counts
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
    ``spread`` are new rows of quantiles, where the history has not the rows of all clients.
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
    spread: Sequence[Row] = ()


class Trainer:
    """One run in the making: its clients, its round counter and its history."""

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
        self.federation = make_federation(network, clients, weighting, settings, device)
        self.names = list(self.clients)
        self.network, self.settings, self.device = network, settings, device
        self.start = start_of(network, clients, settings) if settings.chooses_alone else {}
        self.per_epoch = settings.rounds_per_epoch(sizes)
        self.round, self.ending = 0, False
        self.watch = Watch(self.names, settings)
        self.accounts = Accounts(clients, settings, self.rounds)
        self.rounds = self.accounts.govern(self.federation, self.rounds)
        self.stopping = Stopping(self.federation, settings)
        self.personal: dict[str, dict[str, Any]] = {}
        steps = settings.local().steps
        self.presence = Presence(clients, settings.batch_size, settings.seed, steps)
        self.recording = Recording(clients, self.federation, self.accounts, settings)

    def begin(
        self, statistics: Mapping[str, Mapping[str, Tensor]], networks: Mapping[str, Tensor]
    ) -> None:
        """Start with what clients have from another run: running statistics, and networks."""
        self.federation.begin(statistics, networks)
        if self.start:
            self.start["statistics"] = {name: dict(own) for name, own in statistics.items()}

    @property
    def tables(self) -> dict[str, Table]:
        """What is recorded, by the name of its file."""
        return self.recording.tables

    @property
    def history(self) -> History:
        """The rows of rounds and evaluations."""
        return self.recording.history

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
        count = min(most, self.rounds - self.round, self.federation.burst)
        actives = [self._active(self.round + k) for k in range(count)]
        rows: list[Row] = []
        for outcome in self.federation.rounds(self.round, actives):
            rows = self._record(outcome)
        return Progress(
            self.round,
            self.rounds,
            self.epoch,
            {row["client"]: row["loss"] for row in rows if row["active"]},
            {row["client"]: row["weight"] for row in rows},
        )

    def _active(self, round_number: int) -> list[str]:
        """Who takes part in a round; whose privacy budget is spent does so no more."""
        found = drawn(self.settings, self.names, round_number)
        if found is None:
            found = self.presence.active(self.settings.participation, round_number)
        return self.stopping.training(self.accounts.able(found))

    def _record(self, outcome: Outcome) -> list[Row]:
        """Count a round and write down what became of it."""
        active, failed = list(outcome.active), list(outcome.failed)
        self.watch.fail(self.round + 1, active, failed)
        if active and len(failed) == len(active):
            raise TrainingError(
                f"round {self.round + 1}: training diverges: the loss or gradient of every active "
                f"client is not finite ({listed(failed)}); "
                f"lower {self.watch.divergence.rates} or look at the data"
            )
        self.round += 1
        self.accounts.note(self.round, active)
        rows = self.recording.round(self.round, self.epoch, outcome)
        self.watch.hold(self.round, rows)
        if self.round % self.settings.log_every == 0 or self.done:
            self.recording.keep(rows)
        return rows

    def announce(self) -> None:
        """Say what is shared, where gradients are measured, and what recording costs more."""
        log_division(self.network, self.federation.gauge)
        clients, common = list(self.clients.values()), self.federation.shared_heads.names
        if not self.round:
            log_starts(clients, self.settings, common)
        server = self.federation.server if isinstance(self.federation, Federation) else None
        warn_of_scale(clients, self.settings, common, server.weighting if server else None)
        scheduled = self.settings.server_schedule or self.settings.head_schedule
        if self.device.type == "cuda" and scheduled:
            log.info("rounds are not captured into a GPU graph: rates follow a schedule")
        self.accounts.announce()
        self.stopping.announce(clients)
        self.presence.announce(self.rounds)
        self.recording.announce()

    def evaluate(self) -> None:
        """Loss and metrics of clients on all their splits, into the history.

        The last evaluation is that of what the run ends with: the state that is kept, with heads
        tuned if they are. Where clients may choose to be alone, it waits until they have been.
        """
        rows = self._measured() if self.stopping.keeps or not self.done else []
        self.stopping.note(self.round, rows)
        if not self.done:
            self.recording.keep(rows)
        elif self.settings.chooses_alone:
            self.ending = True
        else:
            self.end()

    def end(self, alone: Alone | None = None) -> None:
        """What comes after the last round; ``alone`` is what clients may choose instead."""
        self.watch.sum_up()
        self.stopping.restore()
        self.federation.finish(self.round)
        if self.settings.personalize is not None:
            self.recording.keep(self._measured(UNTUNED, last=True), everybody=True)
        self.personal |= self.federation.personalize(self.round)
        if alone is not None:
            self.personal = choose(self.personal, alone)
            install(self.federation, self.personal, alone)
        log_personal(self.personal)
        self.ending = False
        self.recording.keep(self._measured(last=True), everybody=True)

    def _measured(self, before: str = "", last: bool = False) -> list[Row]:
        return self.recording.measured(self.round, self.epoch, before, last)

    def result(self, about: dict[str, Any]) -> Run:
        """The run as it stands."""
        federation, shared = self.federation, None
        if isinstance(federation, Federation):
            shared = federation.shared_network(federation.server.shared)
        trained = self._trained_in_rows() or self._trained()
        about = {**about, "finished": self.over, **self.watch.counts(), **self._kept()}
        return self.recording.run(trained, about, shared, self.over)

    def _trained_in_rows(self) -> Mapping[str, TrainedClient]:
        """All clients, where their heads lie in rows; else none."""
        if (tables := self.federation.head_tables()) is None:
            return {}
        return StackedClients.of(self.clients, tables)

    def _trained(self) -> Mapping[str, TrainedClient]:
        """All clients, with their heads as modules."""
        found = self.federation.all_trained()
        own = {n: e.network for n, e in found.items()}
        networks = {n: self.federation.shared_network(v) for n, v in own.items() if v is not None}
        return {
            name: TrainedClient.from_client(self.clients[name], exported, networks.get(name))
            for name, exported in found.items()
        }

    def _kept(self) -> dict[str, Any]:
        """What a finished run says of the state that it kept, where that was a choice."""
        personal = {"personal": self.personal} if self.personal else {}
        if not self.over or not self.stopping.keeps:
            return personal
        kept = self.stopping.about()
        return {"stopped_early": self.round < self.rounds, "kept": kept, **personal}

    @property
    def ended(self) -> str:
        """The same in words."""
        return kept_words(self._kept())

    @property
    def journal(self) -> Journal | None:
        """What of the clients is written down piece by piece, where it is."""
        return self.federation.engine.journal

    def state_dict(self, rows: bool = True) -> dict[str, Any]:
        """Everything needed to go on from here; without ``rows`` all but what the journal holds."""
        more: dict[str, Any] = {"personal": self.personal} if self.personal else {}
        if self.stopping.keeps:
            more["stopping"] = self.stopping.state_dict()
        more |= {"accounts": self.accounts.state_dict()} if self.accounts else {}
        if self.start and not self.over:
            more |= {"start": self.start, "ending": self.ending}
        return {
            "round": self.round,
            "taken": packed_counts(self.recording.taken),
            "watch": self.watch.state_dict(),
            "federation": self.federation.state_dict(rows),
            **more,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state saved by :meth:`state_dict`."""
        self.round = state["round"]
        if not isinstance(self.round, int) or not 0 <= self.round <= self.rounds:
            raise ValueError(f"round is {self.round!r:.40}")
        self.recording.taken = unpacked_counts(state["taken"], self.names, "taken")
        self.watch.load_state_dict(state["watch"])
        self.personal = dict(state.get("personal", {}))
        self.start = state.get("start", self.start)
        self.ending = bool(state.get("ending"))
        self.stopping.load_state_dict(state.get("stopping", []))
        self.accounts.load_state_dict(state.get("accounts", {}))
        self.federation.load_state_dict(state["federation"])
