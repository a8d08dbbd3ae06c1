"""Callbacks: what happens around the rounds of a run, the library's own and yours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedgradnorm._checks import shown
from fedgradnorm._errors import ConfigError, TrainingError
from fedgradnorm._round.reports import Record
from fedgradnorm._runs.csv_table import Row

if TYPE_CHECKING:
    from fedgradnorm._runs.run import Run
    from fedgradnorm.weighting import Weighting

VALIDATION = "validation"
"""The split that decides when to stop and which round is best."""


class TrainingState:
    """What a callback can read of a run and ask of it.

    ``round`` rounds of ``rounds`` are over. ``record`` is the :class:`Record` of the last round,
    None before the first one. ``evaluation`` has the rows of the last evaluation, one per client
    and split, each a dict with ``client``, ``split``, ``loss`` and the client's metrics.
    ``weighting`` is the run's copy of the weighting. A callback may write to its ``rows`` in place,
    for example to weight clients by what an evaluation found.
    """

    weighting: Weighting
    round = 0
    rounds = 0
    per_epoch = 1.0  # rounds in an epoch
    record: Record | None = None
    evaluation: Sequence[Row] = ()
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
        """The run so far, to be saved or used; under torchrun call it on all ranks."""
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


@dataclass(frozen=True)
class Progress:
    """What a progress function is called with after every round; ``rows`` are new history rows.

    ``losses`` are what ``shown`` names: a server over the network may know only loss ratios.
    ``ended`` is empty until the run is over; it then says what was saved, where that was a choice.
    ``stage`` is "alone" in that run of :func:`fedgradnorm.benefit` in which nothing is shared.
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
