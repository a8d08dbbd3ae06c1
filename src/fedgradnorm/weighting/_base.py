"""The interface of every weighting, and the bookkeeping they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Flag, auto
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedgradnorm._errors import ConfigError

MANY = 1000
"""Rows from which on it is worth while to work on the active ones alone."""


class Needs(Flag):
    """What the server must see of a client, beside the aggregate, to weigh it."""

    NOTHING = 0
    SIZE = auto()
    LOSS = auto()
    NORM = auto()
    GRAM = auto()
    GRADIENT = auto()


@dataclass(frozen=True)
class Signals:
    """What the clients of one round reported; axis 0 is the bound rows.

    Rows that are not active hold arbitrary values. ``gram`` is update_i . update_j and
    ``gradients`` the updates themselves; both are None unless the weighting needs them.
    Where few of many take part, a server may hold signals of these alone: ``rows`` then says which
    of the bound rows they are. A ``weigh`` never sees such signals.
    """

    active: Tensor
    size: Tensor
    loss: Tensor
    loss_ratio: Tensor
    gauge_norm: Tensor
    gram: Tensor | None = None
    gradients: Tensor | None = None
    rows: Tensor | None = None

    def among(self, count: int) -> Signals:
        """The same in their places among ``count`` rows; who is not there is not active."""
        if (here := self.rows) is None:
            return self
        assert self.gram is None  # of which nobody holds a few, nor of gradients
        assert self.gradients is None
        return Signals(*(_placed(getattr(self, key), here, count) for key in _EACH))

    def few(self) -> Signals:
        """The active rows alone, where they are at most half; else all as they are."""
        if self.rows is not None:
            return self
        here = self.active.nonzero()[:, 0]
        if 2 * len(here) > len(self.active):
            return self
        return replace(Signals(*(getattr(self, key)[here] for key in _EACH)), rows=here)

    def of(self, values: Tensor) -> Tensor:
        """Of ``values``, one a bound row, those of the rows that these signals are of."""
        here = self.rows
        return values if here is None else values.to(here.device).index_select(0, here)


_EACH = ("active", "size", "loss", "loss_ratio", "gauge_norm")
"""What signals have a number a row of."""


def _placed(values: Tensor, here: Tensor, count: int) -> Tensor:
    return values.new_zeros(count).index_copy_(0, here, values)


class Weighting(ABC):
    """A weight per client, moved once a round.

    A method of your own is a subclass with a ``weigh``; names, the active mask, normalisation
    (active weights sum to their number, all others keep theirs) and saving are done here:

    >>> class InverseLoss(Weighting):
    ...     needs = Needs.LOSS
    ...     def weigh(self, signals):
    ...         return 1 / signals.loss

    State per client lives in ``self.rows``: float64 tensors, one number a client, named with their
    start values in ``starts``. It is changed in place, so that a round can be captured into a GPU
    graph, and follows the client's name, not its position. A method whose weights move on from
    where they were keeps them in a row ``level``: normalised ones depend on who else was there.

    ``positive`` is False for a method whose weights may be zero or negative, ``capturable`` for one
    that decides something on the host, which a GPU graph would not repeat. ``run_seed`` is the
    run's seed, for methods that draw. ``losses`` says which of ``loss`` and ``loss_ratio`` a method
    with ``Needs.LOSS`` reads; in a deployment no other leaves the client. ``beyond_sums`` is what a
    method needs of its clients beside sums over them; "" for a :class:`Summed` one, which a server
    can run that sees only sums.
    """

    needs: Needs = Needs.NOTHING
    losses: ClassVar[tuple[str, ...]] = ("loss",)
    starts: ClassVar[Mapping[str, float]] = {}
    positive: ClassVar[bool] = True
    beyond_sums: ClassVar[str] = "numbers of single clients"
    capturable: bool = True
    run_seed: int = 0

    def __init__(self) -> None:
        self.clients: tuple[str, ...] = ()
        self.rows: dict[str, Tensor] = {}
        self._away: dict[str, dict[str, float]] = {}

    @abstractmethod
    def weigh(self, signals: Signals) -> Tensor:
        """A positive number per row; only ratios between active rows matter."""

    def bind(self, clients: Sequence[str]) -> None:
        """Give each client a row, in this order; bound again, state moves with the name."""
        if len(set(clients)) != len(clients):
            raise ConfigError(f"two clients of one name cannot be weighed: {', '.join(clients)}")
        known = self.state_dict()["clients"]
        device = self.weight.device if self.rows else torch.device("cpu")
        self.clients = tuple(clients)
        bound = set(clients)
        self._away = {name: row for name, row in known.items() if name not in bound}
        starts = {"weight": 1.0, **self.starts}
        self.rows = {
            key: torch.full((len(clients),), float(start), dtype=torch.float64, device=device)
            for key, start in starts.items()
        }
        here = {i: known[name] for i, name in enumerate(clients) if name in known}
        for key, start in starts.items() if here else ():
            values = [_kept(row, key, start) for row in here.values()]
            self.rows[key][list(here)] = torch.tensor(values, dtype=torch.float64, device=device)

    def update(self, signals: Signals) -> Tensor:
        """Move the weights by one round; a weight per row."""
        self._move_to(signals.active.device)
        signals = signals.among(len(self.weight))
        raw = self.weigh(signals)
        self.weight.copy_(normalised(raw, signals.active, otherwise=self.weight))
        return self.weight

    def _move_to(self, device: torch.device) -> None:
        if self.weight.device != device:
            self.rows = {key: row.to(device) for key, row in self.rows.items()}

    def direction(self, signals: Signals) -> Tensor | None:  # noqa: ARG002
        """What the server steps along instead of the weighted mean; None: the weighted mean.

        Asked for after :meth:`update`, with the same signals; has the size of a mean update.
        """
        return None

    @property
    def weight(self) -> Tensor:
        """The current weights, one per row."""
        if not self.rows:
            raise ConfigError("this weighting has no clients yet: call bind([...names...]) first")
        return self.rows["weight"]

    @property
    def spread(self) -> float:
        """The largest share of a step that an honest client has, in medians of the round's shares.

        A share is weight times length of the update. Honest lengths differ by hundreds (by 650 in
        MTFL's first epoch); a method that evens them out says less. A server with bounds allows no
        more.
        """
        return 10_000.0

    @property
    def held(self) -> Tensor | None:
        """Which rows the last update left alone because their gradient vanished, if known."""
        return None

    def tensors(self) -> list[Tensor]:
        """Every tensor that an update changes in place."""
        return list(self.rows.values())

    def state_dict(self) -> dict[str, Any]:
        """Everything that must survive a restart, keyed by client name."""
        table = {key: row.tolist() for key, row in self.rows.items()}
        rows = {
            name: {key: values[i] for key, values in table.items()}
            for i, name in enumerate(self.clients)
        }
        return {"clients": {**self._away, **rows}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned; clients keep the rows they are bound to."""
        clients, self.clients, self.rows = self.clients, (), {}
        self._away = {name: dict(row) for name, row in state["clients"].items()}
        self.bind(clients)


class Summed(Weighting):
    """A weighting that needs only sums over the clients of a round.

    Each row gives numbers of its own (:meth:`first`). Their sums over the active rows tell every
    row how to move (:meth:`second`). It gives numbers again, and their sums end the round
    (:meth:`settle`). Here all rows are in one place. A client elsewhere does the same with its one
    row and sums that come to it, so that nobody needs to see another's numbers.

    ``ahead``: a row can move by the sums of an earlier round, because what the new ones change is a
    factor common to all; :meth:`settle` is then given the round's own first sums.

    ``apart``: rows that are not active are neither read nor written, but for a row ``held``, which
    is 0 for them. Of many rows of which few are active, only these are then worked on.
    """

    beyond_sums = ""
    apart: ClassVar[bool] = False

    def update(self, signals: Signals) -> Tensor:
        """Move the weights by one round, where that is enough by the active rows alone."""
        if self.apart and len(self.clients) >= MANY:
            signals = signals.few()
        else:
            signals = signals.among(len(self.clients))
        if (here := signals.rows) is None:
            return super().update(signals)
        self._move_to(signals.active.device)
        whole = self.rows
        try:
            self.rows = {key: row.index_select(0, here) for key, row in whole.items()}
            super().update(replace(signals, rows=None))
            if "held" in whole:
                whole["held"].zero_()
            for key, row in whole.items():
                row.index_copy_(0, here, self.rows[key])
        finally:
            self.rows = whole
        return self.weight

    @abstractmethod
    def first(self, signals: Signals, loud: float = 0.0) -> Tensor:
        """Numbers to add up, one line a kind of number, one column a row; 0 where not active.

        The first two are 1 and the gauge norm where the method reads it (else 0). ``loud`` is the
        last sum of gauge norms, where other clients are not among the rows.
        """

    @abstractmethod
    def second(self, signals: Signals, sums: Tensor) -> Tensor:
        """Numbers to add up after the rows have moved by the first sums."""

    @abstractmethod
    def settle(self, sums: Tensor, first: Tensor | None = None) -> Tensor:
        """A positive number per row by the second sums: what the round's weights are scaled from.

        ``first`` are the round's own first sums, where the rows moved by those of an earlier one.
        """

    @abstractmethod
    def coefficient(self, factor: float = 1.0) -> Tensor:
        """What weights are proportional to after :meth:`second`, before the second sums are known.

        ``factor`` is the last round's :meth:`growth`: a row that does not move needs it.
        """

    def growth(self, sums: Tensor) -> float:  # noqa: ARG002
        """What a settled level would have to be multiplied with to be a coefficient."""
        return 1.0

    def ahead(self, rounds: int) -> bool:  # noqa: ARG002
        """Whether a row with so many rounds behind it may move by the sums of an earlier round."""
        return True

    def weigh(self, signals: Signals) -> Tensor:
        """Both sums, with all rows here."""
        first = self.first(signals).sum(dim=1)
        return self.settle(self.second(signals, first).sum(dim=1))


class Proportional(Summed):
    """A weighting whose weights are proportional to a number that each client knows by itself."""

    _own = torch.empty(0)

    def own(self, signals: Signals) -> Tensor:
        """That number, as it is: no row is looked at beside another. Not finite: it has none."""
        return self.weigh(signals)

    def first(self, signals: Signals, loud: float = 0.0) -> Tensor:  # noqa: ARG002
        """1, nothing, and the number."""
        self._own = self.own(signals).double()
        ones = only(signals.active, torch.ones_like(self._own))
        return torch.stack([ones, torch.zeros_like(ones), only(signals.active, self._own)])

    def second(self, signals: Signals, sums: Tensor) -> Tensor:
        """The weights: nothing more is needed."""
        self._own = self._own * (sums[0] / sums[2])
        return only(signals.active, self._own)[None]

    def settle(self, sums: Tensor, first: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """The weights."""
        return self._own

    def coefficient(self, factor: float = 1.0) -> Tensor:  # noqa: ARG002
        """The weights."""
        return self._own

    @abstractmethod
    def weigh(self, signals: Signals) -> Tensor:
        """A positive number per row; only ratios between active rows matter."""


def _kept(row: Mapping[str, float], key: str, start: float) -> float:
    """A number of a client's; states from before there were levels hold only weights."""
    return row.get(key, row.get("weight", start) if key == "level" else start)


def only(active: Tensor, values: Tensor) -> Tensor:
    """``values`` as float64, 0 in rows that are not active, whatever they hold, NaN or not."""
    # torch.where would make a tensor of a plain 0, each time: a kernel of its own on a GPU.
    if values.device not in _ZERO:
        _ZERO[values.device] = torch.zeros((), dtype=torch.float64, device=values.device)
    return torch.where(active, values.double(), _ZERO[values.device])


_ZERO: dict[torch.device, Tensor] = {}


def active_mean(values: Tensor, active: Tensor) -> Tensor:
    """Mean over the active rows; never reads an inactive one, NaN or not."""
    return only(active, values).sum() / active.sum().clamp_min(1)


def normalised(raw: Tensor, active: Tensor, otherwise: Tensor) -> Tensor:
    """Active rows of ``raw`` scaled to sum to their number; other rows from ``otherwise``.

    Where the active rows have no usable sum (all zero, or not finite) they keep ``otherwise`` too.
    """
    raw = only(active, raw)
    total = raw.sum()
    usable = (total > 0) & (total < torch.inf)
    return torch.where(active & usable, raw * (active.sum() / total), otherwise)
