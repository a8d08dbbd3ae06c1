"""The training loop: rounds, what is done around them, how a run ends, and its manifest."""

from __future__ import annotations

import logging
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedgradnorm._client import Client
from fedgradnorm._engines.ranks import World
from fedgradnorm._engines.tuning import log_personal
from fedgradnorm._errors import ConfigError, FedGradNormError, RankLost, TrainingError, listed
from fedgradnorm._federation.checks import check_clients, warn_of_scale
from fedgradnorm._federation.federation import make_federation
from fedgradnorm._federation.heads import log_starts
from fedgradnorm._round.participation import Presence
from fedgradnorm._round.private.private_plan import planned
from fedgradnorm._round.reports import Record
from fedgradnorm._round.seeding import number
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs.blueprint import blueprints
from fedgradnorm._runs.history import UNTUNED
from fedgradnorm._runs.manifest import (
    FORMAT,
    client_info,
    describe_weighting,
    kept_words,
    now,
)
from fedgradnorm._runs.run import Run
from fedgradnorm._runs.spread import ALL_ROWS
from fedgradnorm._runs.trained import StackedClients, TrainedClient
from fedgradnorm._training.accounts import Accounts
from fedgradnorm._training.best import BestRound
from fedgradnorm._training.callbacks import (
    Callback,
    Progress,
    Show,
    TrainingState,
    saved_state,
)
from fedgradnorm._training.checkpoints import Checkpoints
from fedgradnorm._training.monitor import Monitor
from fedgradnorm._training.recording import Recording
from fedgradnorm._version import __version__
from fedgradnorm.models._dividing import log_division, private_names
from fedgradnorm.weighting import Weighting

log = logging.getLogger("fedgradnorm")

SHORT = 12  # letters of a commit
UNLUCKY = 10
"""Rounds in a row in which all of those drawn may fail; if all clients do, the run ends at once."""


class Trainer(TrainingState):
    """A run in the making: its clients, its round counter and its callbacks.

    The library's own callbacks are called first, and in every round; then the user's, each at its
    interval. What they all see as the state of the run is the trainer.
    """

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
        sizes = [client.drawn for client in clients]
        rounds = settings.total_rounds(sizes)
        settings = settings.for_rounds(rounds)
        federation = make_federation(network, clients, weighting, settings, device)
        self.federation, self.clients = federation, {client.name: client for client in clients}
        self.names, self.weighting = list(self.clients), federation.server.weighting
        self.network, self.settings, self.device = network, settings, device
        self.world, self.callbacks = world or World(), list(callbacks)
        self.accounts = Accounts(clients, settings, rounds)
        self.private = bool(self.accounts)
        self.accounts.govern(federation)
        self.rounds = rounds
        self.per_epoch = settings.rounds_per_epoch(sizes)
        self.whole_epoch = max(1, round(self.per_epoch))
        steps = settings.local().steps
        self.presence = Presence(clients, settings.batch_size, settings.seed, steps)
        self.recording = Recording(clients, federation, self.accounts, settings)
        self.monitor = Monitor(self.names, settings)
        self.best = BestRound(federation, settings)
        own = {"recording": self.recording, "monitor": self.monitor, "best": self.best}
        self.own: dict[str, Callback] = own
        self.history, self.tables = self.recording.history, self.recording.tables
        self.journal = federation.engine.journal  # client rows that are stored incrementally
        self.checkpoints = Checkpoints(None, self, self.world)
        self.show: Show | None = None
        self.interrupt: Callable[[], None] = lambda: None
        self.over = False
        self.lost = 0  # rounds in a row in which every active client failed
        self.folder: Path | None = None
        self.manifest: dict[str, Any] = {}
        self.personal: dict[str, dict[str, Any]] = {}
        self.diverged: list[str] = []
        self._failure: BaseException | None = None  # of a callback
        self._agrees = False  # with other ranks, on what callbacks ask for

    def train(
        self,
        checkpoints: Checkpoints | None = None,
        show: Show | None = None,
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
        self.show, asked = show, self.settings.eval_every
        evaluates = self.whole_epoch if asked is None else asked
        # Rounds run together must be the same on all ranks, whose callbacks may differ.
        everywhere = self.world.gather([callback.every for callback in self.callbacks])
        intervals = [evaluates, self.checkpoints.every, *(k for some in everywhere for k in some)]
        self._agrees = self.world.size > 1 and any(everywhere)

        self._call("on_start")
        if not self.history.rows:
            self.evaluate()
        self._settle()
        while not self.done:
            before = self.round
            try:
                self.advance(min((k - self.round % k for k in intervals if k), default=1 << 30))
            except RankLost:
                raise
            except TrainingError:
                self.checkpoints.write()
                raise
            if self.round == before:  # the privacy budget is spent
                continue
            if evaluates and self.round % evaluates == 0 and self.round < self.rounds:
                self.evaluate()
            self._call("on_round")
            self._settle()
            if not self.done:  # else the end writes and shows it
                if self.checkpoints.every:
                    self.checkpoints.on_round(self)
                self._report()
        self._end()
        self._report()

    def advance(self, most: int = 1) -> None:
        """Run one round, or up to ``most`` where the engine can run several as one CUDA graph."""
        count = min(most, self.rounds - self.round, self.federation.rounds_per_call)
        count = 1 if self.private else count
        actives = [self._active(self.round + k) for k in range(count)]
        if self.stopped:
            return
        for record in self.federation.rounds(self.round, actives):
            active, failed = record.clients, record.failed
            if active and not self.accounts.whole_clients:
                self.lost = self.lost + 1 if len(failed) == len(active) else 0
            if self.lost == UNLUCKY or (self.lost and len(active) == len(self.clients)):
                times = f", {self.lost} rounds in a row" if self.lost > 1 else ""
                raise TrainingError(
                    f"round {self.round + 1}: training diverges: the loss or gradient of every "
                    f"active client is not finite ({listed(failed)}){times}; "
                    f"lower {self.monitor.rates} or look at the data"
                )
            self.round += 1
            self.record = record
            self.recording.on_round(self)
            self.monitor.on_round(self)

    def _active(self, round_number: int) -> list[str]:
        """The clients of a round; not those that have stopped or spent their privacy budget."""
        if (sums := self.federation.sums) is not None:  # whose privacy needs independent draws
            found = sums.drawn(round_number)
        else:
            found = self.presence.active(self.settings.participation, round_number)
        if self.private:
            paid = self.accounts.charge(round_number, found)
            if paid is None:
                self.stop("the privacy budget is spent")
                return []
            found = paid
        return self.best.training(found) if self.best.own else found

    def evaluate(self, last: bool = False) -> None:
        """Evaluate the clients on all their splits, and tell every callback."""
        self.evaluation = self.recording.measured(self.round, self.epoch, last=last)
        for callback in self.own.values():
            callback.on_evaluation(self)
        self._call("on_evaluation")

    def _end(self) -> None:
        """Return to the best round, personalize, and evaluate what the run ends with.

        Nothing of this is in the last round's checkpoint, so a run that is interrupted here does it
        again.
        """
        judged = max((best.last_round for best in self.best.all), default=0)
        if self.best.keeps and judged < self.round:
            self.evaluate()
        self.monitor.on_end(self)
        self.best.restore()
        self.federation.finish(self.round)
        if self.settings.personalize is not None:
            rows = self.recording.measured(self.round, self.epoch, UNTUNED, last=True)
            self.recording.write(rows, everybody=True)
        self.personal |= self.federation.personalize(self.round)
        log_personal(self.personal)
        self.evaluate(last=True)
        self.recording.flush(everybody=True)
        self.diverged = self.monitor.diverged(self.evaluation, restored=self.best.keeps)
        self.over = True
        self._call("on_end")
        self._settle()
        self.checkpoints.write()

    def _call(self, hook: str) -> None:
        """Call a hook of the user's callbacks; the first that fails is raised by ``_settle``.

        All of them are called first, so that each has seen the round that the checkpoint is of.
        """
        for callback in self.callbacks:
            if hook == "on_round" and self.round % callback.every:
                continue
            try:
                getattr(callback, hook)(self)
            except (ConfigError, KeyboardInterrupt) as error:
                self._failure = self._failure or error
            except Exception as error:
                what = f"callback {type(callback).__name__}: {hook} failed at round {self.round}"
                failure = TrainingError(f"{what}: {type(error).__name__}: {error}")
                failure.__cause__ = error
                self._failure = self._failure or failure

    def _settle(self) -> None:
        """Agree with the other ranks whether a callback stops the run or failed."""
        failure, self._failure = self._failure, None
        if self._agrees:
            said = None if failure is None else (type(failure), str(failure))
            every = self.world.gather((self.stopped, said))
            self.stopped = next((theirs for theirs, _ in every if theirs), "")
            kind, words = next((theirs for _, theirs in every if theirs), (None, ""))
            failure = failure or (kind(words) if kind is not None else None)
        if self.recording.pending and not self.done:
            self.recording.flush()
        if failure is not None:
            self.checkpoints.write()
            raise failure

    def _report(self) -> None:
        """Show the progress, and stop where Ctrl-C was pressed, on any rank: all stop together.

        So they do where a function that shows the progress fails.
        """
        interrupted, failure = False, None
        try:
            if self.show is not None:
                record = self.record or Record((), (), {})
                weights = zip(record.clients, record.columns.get("weight", ()), strict=False)
                rows, spread = self.recording.news()
                ended = self.ended if self.over else ""
                self.show(
                    Progress(
                        self.round, self.rounds, self.epoch, record["loss"], dict(weights), rows,
                        spread=spread, ended=ended,
                    )
                )  # fmt: skip
            self.interrupt()
        except KeyboardInterrupt:
            interrupted = True
        except FedGradNormError as error:
            failure = error
        if self.world.size > 1:
            every = self.world.gather((interrupted, failure and str(failure)))
            interrupted = any(theirs for theirs, _ in every)
            words = next((theirs for _, theirs in every if theirs), "")
            failure = failure or (TrainingError(words) if words else None)
        if interrupted or failure is not None:
            self.checkpoints.write()
            raise failure or KeyboardInterrupt

    def announce(self) -> None:
        """Log what is shared, where gradients are measured, and what recording costs."""
        log_division(self.network, self.federation.norm_layer)
        clients, common = list(self.clients.values()), self.federation.shared_heads.names
        if not self.round:
            log_starts(clients, self.settings, common)
        warn_of_scale(clients, self.settings, common, self.federation.server.weighting)
        scheduled = self.settings.server_schedule or self.settings.head_schedule
        if self.device.type == "cuda" and scheduled:
            log.info("rounds are not captured into a GPU graph: rates follow a schedule")
        self.accounts.announce()
        if self.best.active and (blind := self.best.blind):
            what = "keep_best" if self.best.keeps else "early_stopping"
            log.info(
                "%s: no %s on validation examples, so not counted: %s",
                what,
                self.settings.watch,
                listed(blind),
            )
        self.presence.announce(self.rounds)
        self.recording.announce()

    def result(self) -> Run:
        """The run so far; under torchrun all ranks must call this."""
        federation, recording, shared = self.federation, self.recording, None
        if federation.shares:
            shared = federation.shared_network(federation.server.shared)
        manifest = {
            **self.manifest,
            "finished": self.over,
            **self.monitor.counts(),
            **self._outcome(),
        }
        if recording.recorded is not None:  # the history lacks rows, so everybody's weight is here
            manifest["weights"] = recording.weights()
        found = self._trained(), manifest, self.history, shared, self.over
        run = Run(*found, quantiles=recording.spread)
        run.folder = self.folder
        return run

    def run(self) -> Run:
        """The run so far, with tables of its own that do not grow any more."""
        run = self.result()
        run.table, run.quantiles = run.table.copy(), run.quantiles.copy()
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
        found |= {"stopped_early": early} if self.best.keeps or early else {}
        found |= {"stopped": self.stopped} if early else {}
        found |= {"kept": self.best.for_manifest()} if self.best.keeps else {}
        found |= {"diverged": self.diverged} if self.diverged else {}
        return found

    @property
    def ended(self) -> str:
        """How the run ended, in words, where there is something to say."""
        return kept_words(self._outcome())

    def state_dict(self, rows: bool = True) -> dict[str, Any]:
        """Everything needed to continue; without ``rows`` all but what the journal holds."""
        return {
            "round": self.round,
            "stopped": self.stopped,
            "over": self.over,
            "lost": self.lost,
            "personal": self.personal,
            "diverged": self.diverged,
            "accounts": self.accounts.state_dict() if self.private else {},
            **{name: callback.state_dict() for name, callback in self.own.items()},
            "callbacks": {
                f"{type(callback).__name__} {position}": state
                for position, callback in enumerate(self.callbacks)
                if (state := saved_state(callback))
            },
            "federation": self.federation.state_dict(rows),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.round = state["round"]
        if not isinstance(self.round, int) or not 0 <= self.round <= self.rounds:
            raise ValueError(f"round is {self.round!r:.40}")
        self.stopped, self.over = str(state["stopped"]), bool(state["over"])
        self.lost = int(state["lost"])
        self.personal, self.diverged = dict(state["personal"]), list(state["diverged"])
        self.accounts.load_state_dict(state["accounts"])
        for name, callback in self.own.items():
            callback.load_state_dict(state[name])
        self.federation.load_state_dict(state["federation"])  # after the best round's
        saved = dict(state["callbacks"])
        for position, callback in enumerate(self.callbacks):
            if (place := f"{type(callback).__name__} {position}") in saved:
                callback.load_state_dict(saved.pop(place))
        if saved:
            log.warning("callbacks of the checkpoint are missing now: %s", listed(list(saved)))


def manifest_of(trainer: Trainer, weighting: Weighting) -> dict[str, Any]:
    """What is stored with every run, so that anyone can make it again."""
    argv0 = Path(sys.argv[0]).name  # where it lies on this machine is nobody's business
    engine, device, network = trainer.federation.engine, trainer.device, trainer.network
    if engine.journal is None:
        heads = {name: one.head for name, one in engine.exported_all().items()}
    else:
        heads = _heads_of_many(trainer)
    recorded, few = trainer.recording.recorded, len(trainer.clients) <= ALL_ROWS
    seen: dict[str, Any] = {}  # many clients share equal parts of what is said of them
    clients = dict[str, dict[str, Any]]()
    for name, client in trainer.clients.items():
        info = client_info(client, baseline=recorded is None or few or name in recorded)
        tables = {k: v for k, v in info.items() if isinstance(v, (dict, list))}
        clients[name] = info | {k: seen.setdefault(repr(v), v) for k, v in tables.items()}
    layers = [(name, type(part).__qualname__) for name, part in network.named_modules()]
    shapes = [(name, tuple(p.shape)) for name, p in network.named_parameters()]
    return {
        "format": FORMAT,
        "finished": False,
        "settings": asdict(trainer.settings),
        "weighting": describe_weighting(weighting),
        "clients": clients,
        "rounds": trainer.rounds,
        "norm_layer": list(trainer.federation.norm_layer),
        "network": {
            "class": type(network).__qualname__,
            "parameters": sum(p.numel() for p in network.parameters()),
            "structure": f"{number(layers, shapes):016x}",
        },
        "blueprints": blueprints(network, heads, trainer.clients.values()),
        "command": ["fedgradnorm" if argv0 == "__main__.py" else argv0, *sys.argv[1:]],
        "started": now(),
        "versions": {
            "fedgradnorm": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "platform": platform.platform(),
            "threads": torch.get_num_threads(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            **({"commit": commit} if (commit := git_commit(Path())) else {}),
        },
    }


def _heads_of_many(trainer: Trainer) -> dict[str, nn.Module]:
    """Every client's head, without its numbers; none where rows of one file will hold them all."""
    settings, first = trainer.settings, trainer.federation.heads
    shapes = {name: first.shape(client) for name, client in trainer.clients.items()}
    more = settings.ditto or settings.personalize is not None or settings.keep == "own_best"
    buffers = any(True for _ in trainer.network.buffers()) or private_names(trainer.network)
    if not more and not buffers and all(shapes.values()):
        return {}
    return {
        name: first[name] if shape is None else nn.Linear(shape[1], shape[0], device="meta")
        for name, shape in shapes.items()
    }


def git_commit(place: Path) -> str:
    """The commit that the git repository around ``place`` is at, in short; empty without one."""
    command = ["git", "-C", str(place), "rev-parse", f"--short={SHORT}", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):  # there is no git, or no repository
        return ""
    return done.stdout.strip()[:SHORT]
