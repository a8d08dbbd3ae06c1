"""The training loop: rounds, what is done around them, and how a run ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm._client import Client
from fedgradnorm._engines import Journal
from fedgradnorm._engines.ranks import RankLost, World
from fedgradnorm._errors import ConfigError, TrainingError, listed
from fedgradnorm._federation.federation import Federation
from fedgradnorm._federation.head_start import log_starts
from fedgradnorm._federation.sharing import (
    check_clients,
    make_federation,
    warn_of_scale,
)
from fedgradnorm._round.participation import Presence
from fedgradnorm._round.private.accounts import Accounts
from fedgradnorm._round.private.client_sums import drawn
from fedgradnorm._round.private.private_plan import planned
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs.about import kept_words
from fedgradnorm._runs.csv_table import Table
from fedgradnorm._runs.history import UNTUNED, History
from fedgradnorm._runs.many.stacked_clients import StackedClients
from fedgradnorm._runs.run import Run, TrainedClient
from fedgradnorm._training.alone import choose, install, log_personal, start_of, train_alone
from fedgradnorm._training.best import BestRound
from fedgradnorm._training.callbacks import (
    Callback,
    Record,
    Reporter,
    Show,
    TrainingState,
    saved_state,
)
from fedgradnorm._training.checkpoints import Checkpoints
from fedgradnorm._training.monitor import Monitor, packed_counts, unpacked_counts
from fedgradnorm._training.recording import Recording
from fedgradnorm.models._dividing import log_division
from fedgradnorm.weighting import Weighting

log = logging.getLogger("fedgradnorm")


class Evaluation(Callback):
    """Evaluates the clients every ``every`` rounds; 0 is only at the end."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.every = trainer, trainer.interval(trainer.settings.eval_every)

    def on_round(self, state: TrainingState) -> None:
        """Evaluate, but not after the last round: the end of the run does."""
        if state.round < state.rounds:
            self.trainer.evaluate()


class Trainer:
    """A run in the making: its clients, its round counter and its callbacks."""

    def __init__(
        self,
        network: nn.Module,
        clients: Sequence[Client],
        weighting: Weighting,
        settings: Settings,
        device: torch.device,
        callbacks: Sequence[Callback] = (),
        world: World | None = None,
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
        self.world = world or World()
        self.start = start_of(network, clients, settings) if settings.chooses_alone else {}
        self.per_epoch = settings.rounds_per_epoch(sizes)
        self.round = 0
        self.stopped = ""  # why a callback ended the run
        self.training_alone = False
        self.over = False
        self.folder: Path | None = None
        self.about: dict[str, Any] = {}
        self.personal: dict[str, dict[str, Any]] = {}
        self.accounts = Accounts(clients, settings, self.rounds)
        self.rounds = self.accounts.govern(self.federation, self.rounds)
        steps = settings.local().steps
        self.presence = Presence(clients, settings.batch_size, settings.seed, steps)
        self.state = TrainingState(self)
        self.recording = Recording(clients, self.federation, self.accounts, settings)
        self.monitor = Monitor(self.names, settings)
        self.best = BestRound(self.federation, settings)
        self.evaluation = Evaluation(self)
        self.callbacks = list(callbacks)
        self.checkpoints = Checkpoints(None, self, self.world)
        self.show: Show | None = None
        self.interrupt: Callable[[], None] = lambda: None
        self.diverged: list[str] = []
        self._failure: BaseException | None = None
        self._intervals: list[int] = []
        self._shared_callbacks = False

    def train(
        self,
        checkpoints: Checkpoints | None = None,
        show: Show | None = None,
        stage: str = "",
        interrupt: Callable[[], None] | None = None,
    ) -> None:
        """Run all rounds that are left, with the callbacks around them, and end the run.

        ``interrupt`` raises KeyboardInterrupt if Ctrl-C was pressed. It is called between rounds
        only, where a checkpoint can be written.
        """
        if self.over:
            return
        self.checkpoints = checkpoints or self.checkpoints
        self.interrupt = interrupt or self.interrupt
        self.show = show
        progress = None if show is None else Reporter(show, self, stage)
        # Rounds run together must be the same on all ranks, whose callbacks may differ.
        found = self.world.gather([callback.every for callback in self.callbacks])
        intervals = [every for of_a_rank in found for every in of_a_rank]
        self._shared_callbacks = self.world.size > 1 and bool(intervals)
        self._intervals = [self.evaluation.every, self.checkpoints.every, *intervals]

        self._call("on_start", self.callbacks)
        if not self.history.rows:
            self.evaluate()
        self._settle()
        while not self.done:
            try:
                self.advance(self._rounds_until_next())
            except RankLost:
                raise
            except TrainingError:
                self.checkpoints.write()
                raise
            if self._due(self.evaluation):
                self.evaluation.on_round(self.state)
            self._call("on_round", [one for one in self.callbacks if self._due(one)])
            self._settle()
            if self.settings.chooses_alone or not self.done:  # else the end writes and shows it
                self.checkpoints.on_round(self.state)
                self._report(progress, "on_round")
        self._end()
        self._report(progress, "on_end")

    def advance(self, most: int = 1) -> None:
        """Run one round, or up to ``most`` where the engine can run several as one CUDA graph."""
        if every := self.settings.record_conflict:  # only the first of them may be recorded
            most = min(most, every - self.round % every)
        count = min(most, self.rounds - self.round, self.federation.burst)
        actives = [self._active(self.round + k) for k in range(count)]
        for outcome in self.federation.rounds(self.round, actives):
            active, failed = outcome.active, outcome.failed
            if active and len(failed) == len(active):
                raise TrainingError(
                    f"round {self.round + 1}: training diverges: the loss or gradient of every "
                    f"active client is not finite ({listed(failed)}); "
                    f"lower {self.monitor.rates} or look at the data"
                )
            self.round += 1
            self.accounts.note(self.round, list(active))
            self.state.record = Record(active, failed, outcome.columns, outcome.conflict)
            self.recording.on_round(self.state)
            self.monitor.on_round(self.state)

    def evaluate(self, last: bool = False) -> None:
        """Evaluate the clients on all their splits, and tell every callback."""
        self.state.evaluation = self.recording.measured(self.round, self.epoch, last=last)
        self.recording.on_evaluation(self.state)
        self.best.on_evaluation(self.state)
        self._call("on_evaluation", self.callbacks)

    def _end(self) -> None:
        """Return to the best round, personalize, and evaluate what the run ends with.

        Nothing of this is in the last round's checkpoint, so a run that is interrupted here does it
        again. Only where clients train alone first, that checkpoint is written before.
        """
        self.training_alone = self.settings.chooses_alone
        alone = train_alone(self) if self.training_alone else None
        self.training_alone = False
        if self.best.active and self.best.last_round < self.round:
            self.evaluate()
        self.monitor.on_end(self.state)
        self.best.restore()
        self.federation.finish(self.round)
        if self.settings.personalize is not None:
            rows = self.recording.measured(self.round, self.epoch, UNTUNED, last=True)
            self.recording.write(rows, everybody=True)
        self.personal |= self.federation.personalize(self.round)
        if alone is not None:
            self.personal = choose(self.personal, alone)
            install(self.federation, self.personal, alone)
        log_personal(self.personal)
        self.evaluate(last=True)
        self.recording.flush(everybody=True)
        self.diverged = self.monitor.diverged(self.state.evaluation, restored=self.best.active)
        self.over = True
        self._call("on_end", self.callbacks)
        self._settle()
        self.checkpoints.on_end(self.state)

    def _call(self, hook: str, callbacks: Sequence[Callback]) -> None:
        """Call a hook of the user's callbacks; the first that fails is raised by ``_settle``.

        All of them are called first, so that each has seen the round that the checkpoint is of.
        """
        for callback in callbacks:
            try:
                getattr(callback, hook)(self.state)
            except (ConfigError, KeyboardInterrupt) as error:
                self._failure = self._failure or error
            except Exception as error:
                what = f"callback {type(callback).__name__}: {hook} failed at round {self.round}"
                failure = TrainingError(f"{what}: {type(error).__name__}: {error}")
                failure.__cause__ = error
                self._failure = self._failure or failure

    def _settle(self) -> None:
        """Agree with the other ranks whether a callback stops the run or failed."""
        reason, failure = self.state.stop_reason, self._failure
        self._failure = None
        if self._shared_callbacks:
            said = None if failure is None else (type(failure), str(failure))
            told = self.world.gather((reason, said))
            reason = next((theirs for theirs, _ in told if theirs), "")
            kind, words = next((theirs for _, theirs in told if theirs), (None, ""))
            failure = failure or (kind(words) if kind is not None else None)
        self.stopped = reason
        if not self.done:
            self.recording.flush()
        if failure is not None:
            self.checkpoints.write()
            raise failure

    def _report(self, progress: Reporter | None, hook: str) -> None:
        """Show the progress, and stop where Ctrl-C was pressed, on any rank: all stop together."""
        interrupted = False
        try:
            if progress is not None:
                getattr(progress, hook)(self.state)
            self.interrupt()
        except KeyboardInterrupt:
            interrupted = True
        if self.world.anyone(interrupted):
            self.checkpoints.write()
            raise KeyboardInterrupt

    def _due(self, callback: Callback) -> bool:
        return callback.every > 0 and self.round % callback.every == 0

    def _rounds_until_next(self) -> int:
        """Rounds until the next evaluation, checkpoint or callback is due."""
        found = (every - self.round % every for every in self._intervals if every)
        return min(found, default=1 << 30)

    def _active(self, round_number: int) -> list[str]:
        """The clients of a round; not those that have stopped or spent their privacy budget."""
        found = drawn(self.settings, self.names, round_number)
        if found is None:
            found = self.presence.active(self.settings.participation, round_number)
        return self.best.training(self.accounts.able(found))

    def interval(self, given: int | None) -> int:
        """An interval in rounds: as given, or once an epoch."""
        return max(1, round(self.per_epoch)) if given is None else given

    @property
    def done(self) -> bool:
        """Whether there are no more rounds."""
        return self.round >= self.rounds or bool(self.stopped)

    @property
    def epoch(self) -> float:
        """Passes over the largest client's training examples so far."""
        return self.round / self.per_epoch

    @property
    def tables(self) -> dict[str, Table]:
        """What is recorded, by the name of its file."""
        return self.recording.tables

    @property
    def history(self) -> History:
        """The rows of rounds and evaluations."""
        return self.recording.history

    @property
    def journal(self) -> Journal | None:
        """The client rows that checkpoints store incrementally, where they do."""
        return self.federation.engine.journal

    def begin(
        self, statistics: Mapping[str, Mapping[str, Tensor]], networks: Mapping[str, Tensor]
    ) -> None:
        """Start with what clients have from another run: running statistics, and networks."""
        self.federation.begin(statistics, networks)
        if self.start:
            self.start["statistics"] = {name: dict(own) for name, own in statistics.items()}

    def announce(self) -> None:
        """Log what is shared, where gradients are measured, and what recording costs."""
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
        self.best.announce()
        self.presence.announce(self.rounds)
        self.recording.announce()

    def result(self) -> Run:
        """The run as it stands; under torchrun all ranks take part in this."""
        federation, recording, shared = self.federation, self.recording, None
        if isinstance(federation, Federation):
            shared = federation.shared_network(federation.server.shared)
        about = {**self.about, "finished": self.over, **self.monitor.counts(), **self._outcome()}
        if recording.recorded is not None:  # the history lacks rows, so everybody's weight is here
            about["weights"] = recording.weights()
        tables = recording.history, recording.conflict, recording.spread
        run = Run(self._trained(), about, tables[0], shared, self.over, *tables[1:])
        run.folder = self.folder
        return run

    def snapshot(self) -> Run:
        """The run as it stands, with tables of its own that do not grow any more."""
        run = self.result()
        run.table = run.table.copy()
        run.pairs, run.quantiles = run.pairs.copy(), run.quantiles.copy()
        run.table.append(self.recording.pending)
        return run

    def _trained(self) -> Mapping[str, TrainedClient]:
        """All clients: in rows where many are registered, else with their heads as modules."""
        if (tables := self.federation.head_tables()) is not None:
            return StackedClients.of(self.clients, tables)
        found = self.federation.all_trained()
        own = {n: e.network for n, e in found.items()}
        networks = {n: self.federation.shared_network(v) for n, v in own.items() if v is not None}
        return {
            name: TrainedClient.from_client(self.clients[name], exported, networks.get(name))
            for name, exported in found.items()
        }

    def _outcome(self) -> dict[str, Any]:
        """What run.json says of the end of a run: why it stopped, what was saved, who diverged."""
        found: dict[str, Any] = {"personal": self.personal} if self.personal else {}
        if not self.over:
            return found
        early = self.round < self.rounds
        if self.best.active or early:
            found["stopped_early"] = early
        if early:
            found["stopped"] = self.stopped
        if self.best.active:
            found["kept"] = self.best.about()
        if self.diverged:
            found["diverged"] = self.diverged
        return found

    @property
    def ended(self) -> str:
        """How the run ended, in words, where there is something to say."""
        return kept_words(self._outcome())

    def state_dict(self, rows: bool = True) -> dict[str, Any]:
        """Everything needed to continue; without ``rows`` all but what the journal holds."""
        more: dict[str, Any] = {"personal": self.personal} if self.personal else {}
        if self.best.active:
            more["best"] = self.best.state_dict()
        more |= {"accounts": self.accounts.state_dict()} if self.accounts else {}
        if self.start and not self.over:
            more["start"] = self.start
        if self.over:
            more["diverged"] = self.diverged
        return {
            "round": self.round,
            "stopped": self.stopped,
            "over": self.over,
            "taken": packed_counts(self.recording.taken),
            "monitor": self.monitor.state_dict(),
            "callbacks": {
                _place(position, callback): state
                for position, callback in enumerate(self.callbacks)
                if (state := saved_state(callback))
            },
            "federation": self.federation.state_dict(rows),
            **more,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state saved by :meth:`state_dict`."""
        self.round = state["round"]
        if not isinstance(self.round, int) or not 0 <= self.round <= self.rounds:
            raise ValueError(f"round is {self.round!r:.40}")
        self.stopped, self.over = str(state["stopped"]), bool(state["over"])
        self.state.stop_reason = self.stopped
        self.recording.taken = unpacked_counts(state["taken"], self.names, "taken")
        self.monitor.load_state_dict(state["monitor"])
        self.personal = dict(state.get("personal", {}))
        self.start = state.get("start", self.start)
        self.diverged = list(state.get("diverged", []))
        if self.best.active:
            self.best.load_state_dict(state["best"])
        self.accounts.load_state_dict(state.get("accounts", {}))
        self.federation.load_state_dict(state["federation"])
        saved = dict(state["callbacks"])
        for position, callback in enumerate(self.callbacks):
            if (place := _place(position, callback)) in saved:
                callback.load_state_dict(saved.pop(place))
        if saved:
            log.warning("callbacks of the checkpoint are missing now: %s", listed(list(saved)))


def _place(position: int, callback: Callback) -> str:
    """What a checkpoint calls a callback: its class and its position."""
    return f"{type(callback).__name__} {position}"
