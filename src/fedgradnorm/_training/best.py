"""The best round and early stopping: of all clients together, and of one client for itself."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from fedgradnorm._errors import TrainingError, listed
from fedgradnorm._federation.federation import Federation
from fedgradnorm._round.settings import Settings
from fedgradnorm._state.table import NETWORK
from fedgradnorm._training.callbacks import VALIDATION, Callback, TrainingState
from fedgradnorm.tasks._named_metrics import higher_is_better

log = logging.getLogger("fedgradnorm")

Values = Mapping[str, Mapping[str, Any]]
"""Loss and metrics of an evaluation, by client."""


class Best:
    """The best evaluation so far of clients that are judged together, and how long ago it was.

    With the loss, evaluations are compared by the mean gain over the clients that have validation
    examples,

        gain = mean_i (first_i - loss_i) / max(|first_i|, |loss_i|),

    with first_i the loss of client i before training. It has no unit, so clients with large losses
    do not dominate. A loss that grew without bound counts as -1, so one such client does not decide
    for all. With a metric, its mean over the clients that have it counts. Of equal values the
    earlier one is kept. With one client the best gain is the lowest loss.

    Where the best round is kept, ``take`` returns the state of these clients, as copies, and
    ``give`` restores it. A first loss that nothing can be compared with is an error; with
    ``lenient`` the evaluation is skipped, and a later one may be the first.
    """

    def __init__(
        self,
        take: Callable[[], dict[str, Any]],
        give: Callable[[Mapping[str, Any]], None],
        settings: Settings,
        *,
        lenient: bool = False,
    ) -> None:
        self.take, self.give, self.lenient, self._warned = take, give, lenient, False
        self.keeps, self.watch = settings.keeps_best, settings.watch
        self.patience, self.min_rounds = settings.patience, settings.least_wait
        self.first: dict[str, float] = {}
        self.round, self.value = 0, -math.inf
        self.last_round, self.last_value, self.waited = 0, -math.inf, 0
        self.state: dict[str, Any] | None = None

    def judge(self, round_number: int, values: Values) -> None:
        """Take an evaluation on validation examples; the first one is before training."""
        if self.exhausted:
            return
        self.last_round, self.waited = round_number, self.waited + 1
        try:
            self.last_value = self._value(values)
        except TrainingError as error:
            if not self.lenient:
                raise
            self.last_value = -math.inf
            if not self._warned:
                log.warning("round %d: %s; it is looked at again", round_number, error)
            self._warned = True
            return
        if self.last_value > self.value:
            self.round, self.value, self.waited = round_number, self.last_value, 0
            self.state = self.take() if self.keeps else None

    def _value(self, values: Values) -> float:
        """The evaluation as one number, higher is better."""
        found: dict[str, float] = {
            name: row[self.watch] for name, row in values.items() if row.get(self.watch) is not None
        }
        if self.watch == "loss":
            self.first = self.first or _usable(found)
            return gain(self.first, found)
        known = [value for value in found.values() if math.isfinite(value)]
        if not known:  # r2 of constant targets, say, is undefined
            return -math.inf
        mean = sum(known) / len(known)
        return mean if higher_is_better(self.watch) else -mean

    @property
    def exhausted(self) -> bool:
        """Whether enough evaluations and enough rounds have passed without a better value."""
        if self.patience is None or self.waited < self.patience:
            return False
        return self.last_round - self.round >= self.min_rounds

    def restore(self, current: int | None = None) -> None:
        """Return to the best state, unless the clients are in that round already."""
        current = self.last_round if current is None else current
        if self.state is not None and self.round != current:
            self.give(self.state)
        self.state = None

    def for_manifest(self) -> dict[str, Any]:
        """What is saved, and what the last evaluation gave: for run.json."""
        last = self.last_value if math.isfinite(self.last_value) else None
        gains = {"gain": self.value, "last_gain": last} if self.watch == "loss" else {}
        return {"round": self.round, "last_round": self.last_round, **gains}

    _STORED = ("first", "round", "value", "last_round", "last_value", "waited", "state")

    def state_dict(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in self._STORED}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state saved by :meth:`state_dict`; one that does not fit is an error now.

        The clients are left with the best state, so their own is to be loaded after this.
        """
        if state["state"] is not None:
            self.give(state["state"])
        found = {key: state[key] for key in self._STORED}
        for key, value in found.items():
            setattr(self, key, value)


def gain(first: Mapping[str, float], losses: Mapping[str, float]) -> float:
    """Mean of (first - loss) / max(|first|, |loss|); minus infinity if a loss is not finite.

    >>> gain({"a": 2.0, "b": 100.0}, {"a": 1.0, "b": 75.0})
    0.375
    """
    gains = [
        (start - losses[name]) / max(abs(start), abs(losses[name])) for name, start in first.items()
    ]
    mean = sum(gains) / len(gains) if gains else -math.inf
    return mean if math.isfinite(mean) else -math.inf


def _usable(losses: Mapping[str, float]) -> dict[str, float]:
    """The first losses that others can be compared with; a TrainingError if there are none."""
    usable = {name: loss for name, loss in losses.items() if math.isfinite(loss) and loss != 0}
    if not usable:
        found = listed([f"{name} {loss:g}" for name, loss in losses.items()])
        raise TrainingError(
            "the best round and early stopping compare validation losses with the first ones, and "
            f"none of these is a number other than 0 ({found}); look at the data, or leave both out"
        )
    for name in [name for name in losses if name not in usable]:
        log.warning(
            "client %r: its first validation loss is %g, so it does not count for the best round",
            name, losses[name],
        )  # fmt: skip
    return usable


class BestRound(Callback):
    """Saves the best states of a run, and ends it when patience is exhausted.

    ``shared`` is the best round of all clients together, None where each trains alone. ``own`` are
    those of single clients: with ``KeepBest(per_client=True)``, and of clients alone, who stop one
    by one. Both are empty with neither ``KeepBest`` nor ``EarlyStopping``. A head fits the network
    that it was trained on, so a client whose best round is another than the shared one gets both of
    that round. A client without validation examples, or without the metric that is watched, ends
    with the shared best round, or alone with its last state.
    """

    def __init__(self, federation: Federation, settings: Settings) -> None:
        self.active, self.keeps, self.closed = settings.judges, settings.keeps_best, False
        self.shared: Best | None = None
        self.own: dict[str, Best] = {}
        watched = [c for c in federation.clients if settings.watch in ("loss", *c.task.metrics)]
        judged = [client.name for client in watched if client.validation is not None]
        self.blind = [name for name in federation.names if name not in set(judged)]
        alone = not federation.shares
        if self.active and not alone:
            self.shared = Best(federation.state_dict, federation.load_state_dict, settings)
        if self.active and (alone or settings.keep == "own_best"):
            for name in judged:
                take, give = partial(federation.part, name), partial(federation.give, name)
                self.own[name] = Best(take, give, settings, lenient=not alone)
        self.all = [*([] if self.shared is None else [self.shared]), *self.own.values()]

    def training(self, names: Sequence[str]) -> list[str]:
        """The clients of a round that have not stopped by themselves, as clients alone do."""
        if self.shared is not None:
            return list(names)
        return [name for name in names if name not in self.own or not self.own[name].exhausted]

    def on_evaluation(self, state: TrainingState) -> None:
        """Judge an evaluation of all clients; stop the run when no patience is left."""
        if not self.active or self.closed:
            return
        values = {row["client"]: row for row in state.evaluation if row["split"] == VALIDATION}
        if self.shared is not None:
            self.shared.judge(state.round, values)
        for name, best in self.own.items():
            best.judge(state.round, {name: values[name]})
        everybody = self.shared is not None or not self.blind
        if everybody and all(best.exhausted for best in self.all):
            last = max(self.all, key=lambda best: best.round)
            state.stop(
                f"no better {last.watch} in {last.waited} evaluations (best at round {last.round})"
            )

    def restore(self) -> None:
        """Return to the best round, and every client to its own; nothing is judged after that."""
        self.closed = True
        if self.shared is not None:
            self.shared.restore()
        for best in self.own.values():
            best.restore(None if self.shared is None else self.shared.round)

    def for_manifest(self) -> dict[str, Any]:
        """What is saved of the run, and of each client where that may be another round."""
        shared = {} if self.shared is None else self.shared.for_manifest()
        own = {n: best.for_manifest() for n, best in self.own.items() if math.isfinite(best.value)}
        return {**shared, "clients": own} if self.own else shared

    def state_dict(self) -> dict[str, Any]:
        """The best states; a network that several clients keep is stored once."""
        networks, places = dict[int, Tensor](), dict[bytes, int]()
        clients = {name: best.state_dict() for name, best in self.own.items()}
        for one in clients.values():
            if one["state"] is not None:
                own: Tensor = one["state"][NETWORK].cpu()
                place = places.setdefault(own.contiguous().numpy().tobytes(), len(places))
                networks[place] = own
                one["state"] = {**one["state"], NETWORK: place}
        shared = {} if self.shared is None else {"shared": self.shared.state_dict()}
        return {**shared, "networks": networks, "clients": clients}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state saved by :meth:`state_dict`; the run's own is to be loaded after it."""
        if self.shared is not None:
            self.shared.load_state_dict(state["shared"])
        for name, best in self.own.items():
            one = dict(state["clients"][name])
            if one["state"] is not None:
                network = state["networks"][one["state"][NETWORK]]
                one["state"] = {**one["state"], NETWORK: network}
            best.load_state_dict(one)
