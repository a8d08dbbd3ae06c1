"""Callbacks: what happens around the rounds of a run, the library's own and yours."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedgradnorm._checks import shown, whole
from fedgradnorm._errors import ConfigError, TrainingError
from fedgradnorm._round.reports import Record
from fedgradnorm._runs.csv_table import Row
from fedgradnorm.tasks._named_metrics import higher_is_better

if TYPE_CHECKING:
    from fedgradnorm._runs.run import Run

VALIDATION = "validation"
"""The split that decides when to stop and which round is best."""

MIN_ROUNDS = 50
"""Rounds without improvement before early stopping may end a run.

Where the training examples fit in one batch, an epoch is a single round. Five evaluations without
improvement are then five steps of the optimizer, and plateaus of 30 steps are common.
"""


class TrainingState:
    """What a callback can read of a run and ask of it.

    ``round`` rounds of ``rounds`` are over. ``record`` is the :class:`Record` of the last round,
    None before the first one. ``evaluation`` has the rows of the last evaluation, one per client
    and split, each a dict with ``client``, ``split``, ``loss`` and the client's metrics.
    """

    round = 0
    rounds = 0
    per_epoch = 1.0  # rounds in an epoch
    record: Record | None = None
    evaluation: Sequence[Row] = ()
    samples_clients = False  # whether every evaluation is of other clients (``eval_clients``)
    stopped = ""  # why a callback ended the run

    @property
    def epoch(self) -> float:
        """Passes over the largest client's training examples so far."""
        return self.round / self.per_epoch

    @property
    def done(self) -> bool:
        """Whether there are no more rounds."""
        return self.round >= self.rounds or bool(self.stopped)

    def stop(self, reason: str = "a callback stopped the run") -> None:
        """End the run after this round. It counts as finished and keeps its result."""
        self.stopped = self.stopped or str(reason)

    def run(self) -> Run:
        """The run as it stands, to be saved or used; under torchrun call it on all ranks."""
        raise NotImplementedError


class Callback:
    """Base class of callbacks: override the hooks you need and pass instances to ``fgn.train``.

    ``every`` is the number of rounds between two calls of :meth:`on_round`. On a GPU the rounds in
    between can run as one CUDA graph, so a large ``every`` keeps training fast. In a round with an
    evaluation, :meth:`on_evaluation` is called before :meth:`on_round`.

    A callback with a state that must survive a restart overrides :meth:`state_dict` and
    :meth:`load_state_dict`. The state is stored in the run's checkpoints under the class name and
    position of the callback; it may hold tensors, numbers, texts, lists and dicts.

    Under torchrun the hooks are called on every rank, and a run that is stopped on one rank stops
    on all of them.
    """

    every: int = 1

    def on_start(self, state: TrainingState) -> None:
        """Called once, before the first round, or before the first one after a restart."""

    def on_round(self, state: TrainingState) -> None:
        """Called after every ``every`` rounds; ``state.record`` is the last round's."""

    def on_evaluation(self, state: TrainingState) -> None:
        """Called after each evaluation; the last one is of the state that the run ends with."""

    def on_end(self, state: TrainingState) -> None:
        """Called once, after the last round and the final evaluation."""

    def state_dict(self) -> dict[str, Any]:
        """The state to store in checkpoints; none by default."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state saved by :meth:`state_dict`."""


def saved_state(callback: Callback) -> dict[str, Any]:
    """The state of a callback, for a checkpoint; a TrainingError if that cannot hold it."""
    state = callback.state_dict()
    if not _storable(state):
        raise TrainingError(
            f"callback {type(callback).__name__}: a checkpoint holds tensors, numbers, texts, "
            f"lists and dicts; state_dict() returned {shown(state)}"
        )
    return state


def _storable(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, (str, int)) and _storable(v) for key, v in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_storable, value))
    return value is None or isinstance(value, (Tensor, bool, int, float, str))


class Patience:
    """Counts the evaluations and rounds since the best value so far; higher is better."""

    def __init__(self, evaluations: int | None, min_rounds: int = 0) -> None:
        self.evaluations, self.min_rounds = evaluations, min_rounds
        self.round, self.value, self.waited, self.last_round = 0, -math.inf, 0, 0

    def note(self, round_number: int, value: float) -> bool:
        """Take the value of an evaluation; whether it is the best so far."""
        self.last_round, self.waited = round_number, self.waited + 1
        if value > self.value:
            self.round, self.value, self.waited = round_number, value, 0
        return self.waited == 0

    @property
    def exhausted(self) -> bool:
        """Whether enough evaluations and enough rounds have passed without a better value."""
        if self.evaluations is None or self.waited < self.evaluations:
            return False
        return self.last_round - self.round >= self.min_rounds

    def state_dict(self) -> dict[str, Any]:
        """The best value, and what was counted since."""
        return {key: getattr(self, key) for key in ("round", "value", "waited", "last_round")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state saved by :meth:`state_dict`."""
        self.round, self.value = state["round"], state["value"]
        self.waited, self.last_round = state["waited"], state["last_round"]


class EarlyStopping(Callback):
    """Ends a run that no longer improves on the clients' validation examples.

    Args:
        patience: the number of evaluations in a row without improvement that ends the run.
        watch: "loss", or the name of a metric that clients have. The loss of a client is compared
            with its first one, so that clients count equally whatever their units are; a metric is
            averaged over the clients that have it, and the direction of better is the metric's own.
        min_rounds: the run also continues until this many rounds have passed without improvement.

    The run ends with its last round; ``keep="best"`` returns to the best one.
    """

    def __init__(
        self, patience: int = 5, watch: str = "loss", min_rounds: int = MIN_ROUNDS
    ) -> None:
        if not isinstance(watch, str):
            raise ConfigError(f"watch must be 'loss' or the name of a metric, not {shown(watch)}")
        self.watch = watch
        patience = whole("patience", patience, 1)
        self._patience = Patience(patience, whole("min_rounds", min_rounds, 0))
        self._first: dict[str, float] = {}

    def on_start(self, state: TrainingState) -> None:
        """Refuse a run whose evaluations cannot be compared."""
        if state.samples_clients:
            raise ConfigError(
                "EarlyStopping compares evaluations of the same clients, and eval_clients draws "
                "others each time; leave eval_clients out"
            )

    def on_evaluation(self, state: TrainingState) -> None:
        """Stop the run if the evaluation is one too many without improvement."""
        values = {
            row["client"]: row[self.watch]
            for row in state.evaluation
            if row["split"] == VALIDATION and row.get(self.watch) is not None
        }
        if not values:
            raise ConfigError(
                f"EarlyStopping watches {self.watch!r} on validation examples, and no client has "
                "both; give clients validation=(x, y), or watch 'loss' or one of their metrics"
            )
        patience = self._patience
        patience.note(state.round, self._value(values))
        if patience.exhausted:
            state.stop(
                f"no better {self.watch} in {patience.waited} evaluations "
                f"(best at round {patience.round})"
            )

    def _value(self, values: Mapping[str, float]) -> float:
        """The evaluation as one number, higher is better."""
        if self.watch == "loss":
            usable = {name: v for name, v in values.items() if math.isfinite(v) and v != 0}
            self._first = self._first or usable
            return gain(self._first, values)
        known = [value for value in values.values() if math.isfinite(value)]
        if not known:  # r2 of constant targets, say, is undefined
            return -math.inf
        mean = sum(known) / len(known)
        return mean if higher_is_better(self.watch) else -mean

    def state_dict(self) -> dict[str, Any]:
        """The first losses, and the best value so far."""
        return {"first": self._first, "patience": self._patience.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state saved by :meth:`state_dict`."""
        self._first = dict(state["first"])
        self._patience.load_state_dict(state["patience"])


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


@dataclass(frozen=True)
class Progress:
    """What a progress function is called with after every round; ``rows`` are new history rows.

    ``losses`` are what ``shown`` names: a server over the network may know only loss ratios.
    ``ended`` is empty until the run is over; it then says what was saved, where that was a choice.
    ``stage`` is "alone" while clients train alone so that they can choose; rounds are then its.
    ``spread`` are new rows of quantiles, where the history does not have the rows of all clients.
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


Show = Callable[[Progress], None]


class ShowProgress(Callback):
    """Shows a live display in the terminal, or calls a function after each round.

    Args:
        show: a function of one argument, the event of a round: ``round``, ``rounds``, ``epoch``,
            ``losses`` and ``weights`` by client, and the new ``rows`` of the history. The live
            display by default. Under torchrun only rank 0 calls it.
    """

    def __init__(self, show: Show | None = None) -> None:
        if show is not None and not callable(show):
            raise ConfigError(f"show must be a function, or None, not {shown(show)}")
        self.show = show
