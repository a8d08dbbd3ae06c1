"""The best round: of all clients together, and of one client for itself (``keep``)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from fedgradnorm._errors import TrainingError, listed
from fedgradnorm._federation.alone import Alone
from fedgradnorm._federation.federation import Federation
from fedgradnorm._round.settings import Settings
from fedgradnorm._state.table import NETWORK
from fedgradnorm._training.callbacks import (
    MIN_ROUNDS,
    VALIDATION,
    Callback,
    Patience,
    TrainingState,
    gain,
)

log = logging.getLogger("fedgradnorm")


def min_rounds(settings: Settings) -> int:
    """Rounds without improvement that ``patience`` needs; an interval you chose is obeyed as is."""
    return MIN_ROUNDS if settings.eval_every is None else 0


class Best:
    """The best state so far of clients that are judged together.

    Evaluations are compared by the mean gain over the clients that have validation examples,

        gain = mean_i (first_i - loss_i) / max(|first_i|, |loss_i|),

    with first_i the loss of client i before training. It has no unit, so clients with large losses
    do not dominate. A loss that grew without bound counts as -1, so one such client does not decide
    for all. Of equal gains the earlier one is kept. With one client the best gain is the lowest
    loss.

    ``take`` returns the state of these clients, as copies, and ``give`` restores it. A first loss
    that nothing can be compared with is an error; with ``lenient`` the evaluation is
    skipped, and a later one may be the first.
    """

    def __init__(
        self,
        take: Callable[[], dict[str, Any]],
        give: Callable[[Mapping[str, Any]], None],
        patience: int | None,
        rounds: int = 0,
        *,
        lenient: bool = False,
    ) -> None:
        self.take, self.give, self.lenient, self._warned = take, give, lenient, False
        self.patience = Patience(patience, rounds)
        self.first: dict[str, float] = {}
        self.last_gain = -math.inf
        self.state: dict[str, Any] | None = None

    @property
    def round(self) -> int:
        """The best round."""
        return self.patience.round

    @property
    def stopped(self) -> bool:
        """Whether patience is exhausted."""
        return self.patience.exhausted

    @property
    def found(self) -> bool:
        """Whether there is an evaluation that could be used."""
        return math.isfinite(self.patience.value)

    def note(self, round_number: int, losses: Mapping[str, float]) -> None:
        """Take the validation losses of an evaluation; the first ones are before training."""
        if self.stopped:
            return
        if not self.first:
            try:
                self.first = _usable(losses)
            except TrainingError as error:
                if not self.lenient:
                    raise
                self.patience.note(round_number, -math.inf)
                if not self._warned:
                    log.warning("round %d: %s; it is looked at again", round_number, error)
                self._warned = True
                return
        self.last_gain = gain(self.first, losses)
        if self.patience.note(round_number, self.last_gain):
            self.state = self.take()

    def restore(self, current: int | None = None) -> None:
        """Return to the best state, unless the clients are in that round already."""
        current = self.patience.last_round if current is None else current
        if self.state is not None and self.round != current:
            self.give(self.state)
        self.state = None

    def about(self) -> dict[str, Any]:
        """What is saved, and what the last evaluation gave: for run.json."""
        last = self.last_gain if math.isfinite(self.last_gain) else None
        ends = {"last_round": self.patience.last_round, "last_gain": last}
        return {"round": self.round, "gain": self.patience.value, **ends}

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart."""
        own = {"first": self.first, "last_gain": self.last_gain, "state": self.state}
        return own | {name: getattr(self.patience, name) for name in _COUNTED}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state saved by :meth:`state_dict`; one that does not fit is an error now.

        The clients are left with the best state, so their own is to be loaded after this.
        """
        if state["state"] is not None:
            self.give(state["state"])
        self.first, self.last_gain, self.state = (
            state[key] for key in ("first", "last_gain", "state")
        )
        for name in _COUNTED:
            setattr(self.patience, name, state[name])


_COUNTED = ("round", "value", "waited", "last_round")


def _usable(losses: Mapping[str, float]) -> dict[str, float]:
    """The first losses that others can be compared with; a TrainingError if there are none."""
    usable = {name: loss for name, loss in losses.items() if math.isfinite(loss) and loss != 0}
    if not usable:
        found = listed([f"{name} {loss:g}" for name, loss in losses.items()])
        raise TrainingError(
            "keep = 'best' compares validation losses with the first ones, and none of these is a "
            f"number other than 0 ({found}); look at the data, or use keep = 'last'"
        )
    for name in [name for name in losses if name not in usable]:
        log.warning(
            "client %r: its first validation loss is %g, so it does not count for keep = 'best'",
            name, losses[name],
        )  # fmt: skip
    return usable


class BestRound(Callback):
    """Saves the best states of a run and ends it when patience is exhausted.

    ``shared`` is the best round of all clients together, None where each trains alone. ``own`` are
    those of single clients: with ``keep="own_best"``, and of clients alone, who stop one by one.
    Both are empty with ``keep="last"``. A head fits the network that it was trained on, so a client
    whose best round is another than the shared one gets both of that round. A client without
    validation examples ends with the shared best round, or alone with its last state.
    """

    def __init__(self, federation: Federation | Alone, settings: Settings) -> None:
        self.keep, self.clients, self.closed = settings.keep, federation.clients, False
        self.shared: Best | None = None
        self.own: dict[str, Best] = {}
        if not settings.keeps_best:
            return
        wait = settings.patience, min_rounds(settings)
        alone = isinstance(federation, Alone)
        if isinstance(federation, Federation):
            self.shared = Best(federation.state_dict, federation.load_state_dict, *wait)
        if alone or settings.keep == "own_best":
            for name in [c.name for c in federation.clients if c.validation is not None]:
                take, give = partial(federation.part, name), partial(federation.give, name)
                self.own[name] = Best(take, give, *wait, lenient=not alone)

    @property
    def active(self) -> bool:
        """Whether a best round is looked for at all."""
        return self.keep != "last"

    @property
    def last_round(self) -> int:
        """The round of the last evaluation that was judged."""
        return max((best.patience.last_round for best in self._judged), default=0)

    @property
    def _judged(self) -> list[Best]:
        return [*([] if self.shared is None else [self.shared]), *self.own.values()]

    def training(self, names: Sequence[str]) -> list[str]:
        """The clients of a round that have not stopped by themselves, as clients alone do."""
        if self.shared is not None or not self.own:
            return list(names)
        return [name for name in names if name not in self.own or not self.own[name].stopped]

    def announce(self) -> None:
        """Name the clients whose losses do not count."""
        others = [client.name for client in self.clients if client.validation is None]
        if self.active and others:
            words = "keep = %r: no validation examples, so not counted: %s"
            log.info(words, self.keep, listed(others))

    def on_evaluation(self, state: TrainingState) -> None:
        """Judge an evaluation of all clients; stop the run when no patience is left."""
        if not self.active or self.closed:
            return
        rows = [row for row in state.evaluation if row["split"] == VALIDATION]
        losses = {row["client"]: row["loss"] for row in rows}
        if self.shared is not None:
            self.shared.note(state.round, losses)
        for name, best in self.own.items():
            best.note(state.round, {name: losses[name]})
        everybody = self.shared is not None or len(self.own) == len(self.clients)
        if everybody and all(best.stopped for best in self._judged):
            state.stop("no better evaluation within patience")

    def restore(self) -> None:
        """Return to the best round, and every client to its own; nothing is judged after that."""
        self.closed = True
        if self.shared is not None:
            self.shared.restore()
        for best in self.own.values():
            best.restore(None if self.shared is None else self.shared.round)

    def about(self) -> dict[str, Any]:
        """What is saved of the run, and of each client where that may be another round."""
        shared = {} if self.shared is None else self.shared.about()
        if not self.own:
            return shared
        return {**shared, "clients": {n: b.about() for n, b in self.own.items() if b.found}}

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart; a network that several clients keep is stored once."""
        networks, places = dict[int, Tensor](), dict[bytes, int]()
        clients = {}
        for name, best in self.own.items():
            clients[name] = best.state_dict()
            if best.state is not None and NETWORK in best.state:
                own: Tensor = best.state[NETWORK].cpu()
                place = places.setdefault(own.contiguous().numpy().tobytes(), len(places))
                networks[place] = own
                clients[name]["state"] = {**best.state, NETWORK: place}
        shared = {} if self.shared is None else {"shared": self.shared.state_dict()}
        return {**shared, "networks": networks, "clients": clients}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state saved by :meth:`state_dict`; the run's own is to be loaded after it."""
        if self.shared is not None:
            self.shared.load_state_dict(state["shared"])
        for name, best in self.own.items():
            part = dict(state["clients"][name])
            if part["state"] is not None:
                network = part["state"][NETWORK]
                network = state["networks"][network] if isinstance(network, int) else network
                part["state"] = {**part["state"], NETWORK: network}
            best.load_state_dict(part)
