"""What the clients of one round reported, and which of it the history records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedgradnorm._errors import ConfigError, choose
from fedgradnorm._registry import Registry, calling_module
from fedgradnorm.weighting import Needs, Signals


@dataclass(frozen=True)
class Reports:
    """The reports of one round; axis 0 is the clients that were asked, ``active`` says who counts.

    ``updates`` has a row per client. N full gradients may be too much to hold, so the server only
    asks for their weighted sum (:meth:`aggregate`), which an executor without ``updates`` may
    answer with a single backward pass. Where not all clients were asked, ``rows`` are their indices
    among all clients.
    """

    active: Tensor
    size: Tensor
    loss: Tensor
    loss_ratio: Tensor
    grad_norm: Tensor
    failed: Sequence[str]
    rows: Tensor | None = field(default=None, kw_only=True)
    updates: Tensor | None = field(default=None, kw_only=True)

    def signals(self, needs: Needs) -> Signals:
        """What a weighting with these needs may see."""
        return Signals(
            self.active,
            self.size,
            self.loss,
            self.loss_ratio,
            self.grad_norm,
            gram=self.gram() if Needs.GRAM in needs else None,
            gradients=self.gradients() if Needs.GRADIENT in needs else None,
            rows=self.rows,
        )

    def aggregate(self, coefficients: Tensor) -> Tensor:
        """sum_i c_i update_i."""
        updates = self.gradients()
        return coefficients.to(updates.dtype) @ updates

    def gradients(self) -> Tensor:
        """The updates, one row per client."""
        assert self.updates is not None
        return self.updates

    def gram(self) -> Tensor:
        """update_i . update_j for all pairs of clients."""
        updates = self.gradients()
        return updates @ updates.T


@dataclass(frozen=True)
class Record:
    """One round: the clients that participated and a column of numbers per quantity.

    ``columns`` has ``loss``, ``loss_ratio``, ``grad_norm``, ``weight`` and ``weight_frozen``: one
    value for each of ``clients``; registered columns are there, too. ``failed`` are the clients
    whose loss or gradient was not finite. ``record["loss"]`` is a column by client name, without
    the clients that failed.
    """

    clients: Sequence[str]
    failed: Sequence[str]
    columns: Mapping[str, Sequence[float]]

    def keys(self) -> list[str]:
        """The names of the columns, so that ``dict(record)`` has them all."""
        return list(self.columns)

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __getitem__(self, column: str) -> dict[str, float]:
        if column not in self.columns:
            choose(column, [*COLUMNS, *self.columns], "column of a round")
        failed = set(self.failed)
        values = zip(self.clients, self.columns.get(column, ()), strict=False)
        return {name: value for name, value in values if name not in failed}


Read = Callable[[Reports, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Column:
    """A column of a run's history, with one number per client and round.

    A module that registers one needs only be imported; the history of every run then has it:

    >>> with COLUMNS.restored():
    ...     share = Column("share", "weight x size", lambda r, weights, _: weights * r.size)
    ...     share.register().name in COLUMNS
    True

    Args:
        name: of the column.
        meaning: what the number is, in a few words.
        read: a function ``(reports, weights, frozen)`` that returns a tensor with a number for each
            client of the reports. ``reports`` has ``loss``, ``loss_ratio``, ``grad_norm`` and
            ``size``; ``reports.gradients()`` has the updates, which executor joint does not form.
            None for a number that the run counts.
        sent: whether it is part of what a client reports, so that one that failed has none.
    """

    name: str
    meaning: str
    read: Read | None = None
    sent: bool = False

    def register(self) -> Column:
        """Record it in the history of every run from now on, and return the column."""
        module = calling_module()
        if self.name in KEYS:
            raise ConfigError(f"history column {self.name!r} exists already; choose another name")
        if not module.startswith("fedgradnorm.") and (self.sent or not callable(self.read)):
            raise ConfigError(f"history column {self.name!r} needs a function, read=...")
        return COLUMNS.register(self.name, self, module)


KEYS = ("round", "epoch", "client", "split")
"""The columns that say what a row of the history is about."""

COLUMNS = Registry[Column]("history column")
"""The other columns of a run's history, in the order of its file."""

Column("loss", "mean loss over the round's batches", lambda r, *_: r.loss, sent=True).register()
Column("weight", "the client's weight after the round", lambda _, weights, __: weights).register()
Column(
    "loss_ratio", "loss / first loss of the client", lambda r, *_: r.loss_ratio, sent=True
).register()
Column(
    "grad_norm", "gradient norm on the measured layer", lambda r, *_: r.grad_norm, sent=True
).register()
Column("active", "1, or 0 for a client that failed").register()
Column(
    "weight_frozen",
    "1 where the weight is frozen: the gradient vanished",
    lambda *found: found[2],
).register()
Column("samples", "examples the client has read so far").register()
Column("bytes", "bytes exchanged with the server so far").register()

SENT = tuple(name for name, column in COLUMNS.items() if column.sent)
"""The numbers that a client may be asked for next to its update and its size."""


def column_values(
    columns: Mapping[str, Read], reports: Reports, weights: Tensor, frozen: Tensor | None
) -> dict[str, Tensor]:
    """The columns recorded for one round, with one value per reporting client.

    ``weights`` and ``frozen`` have a number for each of all clients.
    """
    if reports.rows is not None:
        weights, frozen = weights[reports.rows], None if frozen is None else frozen[reports.rows]
    frozen = torch.zeros_like(weights) if frozen is None else frozen.to(weights.dtype)
    found = {name: read(reports, weights, frozen) for name, read in columns.items()}
    for name, values in found.items():
        if not isinstance(values, Tensor) or values.shape != reports.loss.shape:
            shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ConfigError(
                f"history column {name!r} returns {shape} for {len(reports.loss)} clients; it must "
                "return a tensor with one number for each"
            )
    return found
