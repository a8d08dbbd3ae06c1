"""The interface of every weighting, their common bookkeeping, and arithmetic that several use."""

from __future__ import annotations

import copy
import inspect
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Flag, auto
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedgradnorm._checks import shown
from fedgradnorm._errors import ConfigError

log = logging.getLogger("fedgradnorm")

GATHER_FROM = 1000
"""Number of clients above which gathering the active rows pays off."""


class Needs(Flag):
    """What the server must see of a client, in addition to the aggregate, to weigh it."""

    NOTHING = 0
    SIZE = auto()
    LOSS = auto()
    NORM = auto()
    GRAM = auto()
    GRADIENT = auto()


@dataclass(frozen=True)
class Signals:
    """What the clients of one round reported; axis 0 is the bound rows.

    Inactive rows hold arbitrary values. ``grad_norm`` is the gradient norm, ``gram`` is
    update_i . update_j, and ``gradients`` are the updates themselves; the last two are None unless
    the weighting needs them. When few of many clients participate, signals may hold these alone,
    and ``rows`` are their indices among the bound rows. ``weigh`` never sees such signals.
    """

    active: Tensor
    size: Tensor
    loss: Tensor
    loss_ratio: Tensor
    grad_norm: Tensor
    gram: Tensor | None = None
    gradients: Tensor | None = None
    rows: Tensor | None = None

    def among(self, count: int) -> Signals:
        """Scattered to ``count`` rows, of which all others are inactive."""
        if (here := self.rows) is None:
            return self
        gram = self.gram
        if gram is not None:
            gram = _scattered(_scattered(gram, here, count).T.contiguous(), here, count)
        gradients = None if self.gradients is None else _scattered(self.gradients, here, count)
        each = {key: _scattered(getattr(self, key), here, count) for key in _COLUMNS}
        return Signals(**each, gram=gram, gradients=gradients)

    def few(self) -> Signals:
        """The active rows gathered if they are at most half, otherwise unchanged."""
        if self.rows is not None:
            return self
        here = self.active.nonzero()[:, 0]
        if 2 * len(here) > len(self.active):
            return self
        return replace(Signals(*(getattr(self, key)[here] for key in _COLUMNS)), rows=here)

    def of(self, values: Tensor) -> Tensor:
        """The entries of ``values``, which has one per bound row, for the rows of these signals."""
        here = self.rows
        return values if here is None else values.to(here.device).index_select(0, here)


_COLUMNS = ("active", "size", "loss", "loss_ratio", "grad_norm")
"""The signals with one number per row."""


def _scattered(values: Tensor, here: Tensor, count: int) -> Tensor:
    return values.new_zeros(count, *values.shape[1:]).index_copy_(0, here, values)


class Weighting(ABC):
    """A weight per client, updated once per round.

    To write your own method, subclass this and define ``weigh``. The base class takes care of
    client names, absent clients, normalization (active weights sum to their number, and all others
    stay as they are) and saving:

    >>> class InverseLoss(Weighting):
    ...     needs = Needs.LOSS
    ...     def weigh(self, signals):
    ...         return 1 / signals.loss

    If you need a state per client, name it in ``starts`` with its initial value. ``self.rows`` then
    has a float64 tensor of that name with one number per client, which follows the client's name,
    not its position. Update it in place, so that a round can be captured into a GPU graph. If your
    method updates its previous weights, keep them in a row ``level``, because normalized weights
    depend on who else participated. A row ``frozen`` marks frozen weights. Keep any other state in
    ``self.extra``, as values for JSON.

    Set ``positive`` to False if weights may be zero or negative, and ``capturable`` if the method
    makes a decision on the host, which a GPU graph would not repeat. ``run_seed`` is the seed of
    the run, for methods that draw random numbers. ``losses`` names which of ``loss`` and
    ``loss_ratio`` a method with ``Needs.LOSS`` reads; a deployed client never sends the other one.
    ``beyond_sums`` is what a method needs in addition to sums over clients, "" if it has an adapter
    in ``_secure_sums``. ``gathers``: ``weigh`` neither reads nor writes inactive rows, except that
    it sets ``frozen`` to 0 there; with many clients it then gets the active rows alone.
    """

    needs: Needs = Needs.NOTHING
    losses: ClassVar[tuple[str, ...]] = ("loss",)
    starts: ClassVar[Mapping[str, float]] = {}
    gathers: ClassVar[bool] = False
    positive: bool = True
    beyond_sums: str = "numbers of single clients"
    capturable: bool = True
    run_seed: int = 0
    _told_nan: bool = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not isinstance(needs := cls.__dict__.get("needs", cls.needs), Needs | property):
            raise ConfigError(
                f"needs of weighting {cls.__name__} must be of fgn.Needs, such as "
                f"Needs.LOSS | Needs.NORM, not {shown(needs)}"
            )

    def __init__(self) -> None:
        self.clients: tuple[str, ...] = ()
        self.rows: dict[str, Tensor] = {}
        self.extra: dict[str, Any] = {}
        self._away: dict[str, dict[str, float]] = {}

    def __repr__(self) -> str:
        """The class, and the options that are not its defaults."""
        known = inspect.signature(type(self)).parameters
        given = {name: vars(self)[name] for name in known if name in vars(self)}
        changed = [f"{k}={v!r}" for k, v in given.items() if repr(v) != repr(known[k].default)]
        return f"{type(self).__name__}({', '.join(changed)})"

    @abstractmethod
    def weigh(self, signals: Signals) -> Tensor:
        """A positive number per row; only ratios between active rows matter."""

    def bind(self, clients: Sequence[str]) -> None:
        """Give each client a row, in this order; on a second call, state follows the name."""
        if "rows" not in vars(self):
            raise ConfigError(
                f"weighting {type(self).__name__}: call super().__init__() in its __init__"
            )
        if len(set(clients)) != len(clients):
            raise ConfigError(f"two clients of one name cannot be weighed: {', '.join(clients)}")
        known = self._by_name()
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
        for key in starts if here else ():
            values = [row[key] for row in here.values()]
            self.rows[key][list(here)] = torch.tensor(values, dtype=torch.float64, device=device)

    def update(self, signals: Signals) -> Tensor:
        """Update the weights by one round; a weight per row."""
        if self.weight.device != signals.active.device:
            self.rows = {key: row.to(signals.active.device) for key, row in self.rows.items()}
        if self.gathers and len(self.clients) >= GATHER_FROM:
            signals = signals.few()
        else:
            signals = signals.among(len(self.clients))
        whole, here = self.rows, signals.rows
        if here is not None:  # the active rows alone, copied back if nothing fails
            self.rows = {key: row.index_select(0, here) for key, row in whole.items()}
            signals = replace(signals, rows=None)
        try:
            raw = self._checked(self.weigh(signals), signals)
            self.weight.copy_(normalised(raw, signals.active, otherwise=self.weight))
            if here is not None:
                if "frozen" in whole:
                    whole["frozen"].zero_()
                for key, row in whole.items():
                    row.index_copy_(0, here, self.rows[key])
        finally:
            if here is not None:
                self.rows = whole
        return self.weight

    def _checked(self, raw: Tensor, signals: Signals) -> Tensor:
        """What ``weigh`` returned; a ConfigError unless it is a weight per row.

        Signs are looked at on a CPU only: on a GPU the host would wait for them.
        """
        who, count = f"weighting {type(self).__name__}", len(signals.active)
        if not isinstance(raw, Tensor) or raw.shape != (count,):
            found = f"shape {tuple(raw.shape)}" if isinstance(raw, Tensor) else type(raw).__name__
            raise ConfigError(f"{who}: weigh must return a tensor of shape ({count},), not {found}")
        if self.positive and raw.device.type == "cpu":
            wrong = (~(raw >= 0) & signals.active).nonzero()[:, 0].tolist()
            if any(raw[i] < 0 for i in wrong):
                below = next(raw[i].item() for i in wrong if raw[i] < 0)
                raise ConfigError(
                    f"{who}: weigh returned {below:g}; weights must not be "
                    "negative, unless its class sets positive = False"
                )
            if wrong and not self._told_nan:
                self._told_nan = True
                log.warning(
                    "%s: weigh returned nan; all weights stay as they are in such rounds", who
                )
        return raw

    def direction(self, signals: Signals) -> Tensor | None:  # noqa: ARG002
        """The direction of the server's step; None for the weighted mean of the updates.

        Called after :meth:`update` with the same signals. It has the size of a mean update.
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
        """The largest share of a step that an honest client has, in multiples of the median share.

        A share is a client's weight times the norm of its update. Honest norms differ by factors of
        hundreds (650 in MTFL's first epoch); a method that evens them out returns less. A server
        with bounds clips larger shares.
        """
        return 10_000.0

    @property
    def frozen(self) -> Tensor | None:
        """Rows whose weight the last update froze because their gradient vanished, if known."""
        return self.rows["frozen"] > 0 if "frozen" in self.rows else None

    def tensors(self) -> list[Tensor]:
        """Every tensor that an update changes in place."""
        return list(self.rows.values())

    def _by_name(self) -> dict[str, dict[str, float]]:
        """The numbers of every client that was ever bound."""
        table = {key: row.tolist() for key, row in self.rows.items()}
        rows = {
            name: {key: values[i] for key, values in table.items()}
            for i, name in enumerate(self.clients)
        }
        return {**self._away, **rows}

    def state_dict(self) -> dict[str, Any]:
        """Everything that must survive a restart: a tensor per row, in the order of ``clients``."""
        away = {key: [row[key] for row in self._away.values()] for key in self.rows}
        rows = {
            key: torch.cat([r.cpu(), torch.tensor(away[key], dtype=r.dtype)])
            for key, r in self.rows.items()
        }
        return {"clients": [*self.clients, *self._away], "rows": rows, **copy.deepcopy(self.extra)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state saved by :meth:`state_dict`; clients keep their current rows."""
        names, clients = state["clients"], self.clients
        table = {
            key: torch.as_tensor(row, dtype=torch.float64).tolist()
            for key, row in state["rows"].items()
        }
        if any(len(values) != len(names) for values in table.values()):
            raise ValueError(f"weights of another number of clients than {len(names)}")
        self._away = {n: {key: row[i] for key, row in table.items()} for i, n in enumerate(names)}
        self.clients, self.rows = (), {}
        self.extra = {key: copy.deepcopy(state[key]) for key in self.extra}
        self.bind(clients)


def only(active: Tensor, values: Tensor) -> Tensor:
    """``values`` as float64, with 0 in inactive rows, even where these are NaN."""
    # A plain 0 would cost torch.where another kernel on a GPU to make a tensor of it.
    if values.device not in _ZERO:
        _ZERO[values.device] = torch.zeros((), dtype=torch.float64, device=values.device)
    return torch.where(active, values.double(), _ZERO[values.device])


_ZERO: dict[torch.device, Tensor] = {}


def active_mean(values: Tensor, active: Tensor) -> Tensor:
    """Mean over the active rows; inactive ones are ignored, even where they are NaN."""
    return only(active, values).sum() / active.sum().clamp_min(1)


def normalised(raw: Tensor, active: Tensor, otherwise: Tensor) -> Tensor:
    """Active rows of ``raw`` scaled to sum to their number; other rows from ``otherwise``.

    Active rows without a positive, finite sum are taken from ``otherwise``, too.
    """
    raw = only(active, raw)
    total = raw.sum()
    usable = (total > 0) & (total < torch.inf)
    return torch.where(active & usable, raw * (active.sum() / total), otherwise)


SMALLEST = 1e-12  # smallest weight relative to the largest: keeps logarithms and powers finite
VANISHED = 1e-9  # a gradient norm below this share of the sum over all clients is rounding error
LARGEST_LOG = 300.0

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Adam's, as in torch.optim
MOMENTS = dict.fromkeys(("first_moment", "second_moment", "steps"), 0.0)
"""The rows that :func:`adam` reads and writes, with their initial values."""


def adam(rows: dict[str, Tensor], gradient: Tensor, live: Tensor, lr: float) -> Tensor:
    """The step of Adam, to be subtracted from each row; rows that are not live keep their moments.

    ``rows["steps"]`` is the number of steps a row has taken before; the caller increments it.
    """
    steps = (rows["steps"] + live).clamp_min_(1)
    first, second = rows["first_moment"], rows["second_moment"]
    first.lerp_(torch.where(live, gradient, first), 1 - BETA1)
    second.lerp_(torch.where(live, gradient.square(), second), 1 - BETA2)
    spread = (second / (1 - BETA2**steps)).sqrt_() + EPSILON
    return lr * (first / (1 - BETA1**steps)) / spread


def safe_log(values: Tensor, active: Tensor) -> Tensor:
    """log of the active rows, finite even at zero; 0 for the others."""
    limits = torch.finfo(torch.float64)
    return torch.where(active, values.double(), 1).clamp(limits.tiny, limits.max).log()


def from_log(log_weight: Tensor, active: Tensor) -> Tensor:
    """exp(log_weight) relative to the largest active row, at least ``SMALLEST``."""
    top = torch.where(active, log_weight, -torch.inf).max()
    return (log_weight - top).exp().clamp_min(SMALLEST)


def bounded_exp(log_weight: Tensor) -> Tensor:
    """exp(log_weight), bounded so that powers and sums of it stay finite."""
    return log_weight.clamp(-LARGEST_LOG, LARGEST_LOG).exp()


def onto_simplex(values: Tensor, active: Tensor) -> Tensor:
    """The nearest point of {x >= 0, sum x = 1} over the active rows; 0 for the others.

    Held, Wolfe, Crowder 1974: x = max(v - t, 0), with t such that the sum is 1.
    """
    v = torch.where(active, values.double(), -torch.inf)
    v = v - v.max()  # a common shift changes nothing, but keeps large values exact
    down = v.sort(descending=True).values
    count = torch.arange(1, len(v) + 1, dtype=v.dtype, device=v.device)
    threshold = (torch.where(down.isfinite(), down, 0).cumsum(0) - 1) / count
    last = (down > threshold).sum() - 1
    return (v - threshold.index_select(0, last.view(1))).clamp_min(0)


def draw(*key: object) -> random.Random:
    """A random generator seeded by this key, the same in every process."""
    return random.Random("/".join(map(str, key)))


@contextmanager
def private_generator(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generator inside the block, and restore its state afterwards."""
    generator = torch.default_generator
    if device.type == "cuda":
        torch.cuda.init()
        generator = torch.cuda.default_generators[device.index or 0]
    before = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(before)
