"""The benefit of every client: a table, a sentence, and how to fold many clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgradnorm._benefit.client_gain import VERDICTS, ClientGain, gains, mean_interval

if TYPE_CHECKING:
    import pandas as pd

    from fedgradnorm._client import Client
    from fedgradnorm._runs.run import Run

ALONE = "training alone"
HEADS: dict[str, dict[str, Any]] = {
    "own heads": {},
    "shared heads": {"heads": "task"},
    "shared heads with own bias": {"heads": "task", "head_own": "bias"},
}
"""What is tried, with its settings."""

COLUMNS = (
    *("client", "task", "metric", "unit", "rows"),
    *("alone", "joined", "gain", "low", "high", "verdict"),
)
MANY, ENDS = 20, 5
"""More clients than this are folded, to so many of the worst, the median ones and the best."""


@dataclass(frozen=True)
class Mean:
    """The mean gain of all clients of a metric, and its 95 % interval over clients."""

    metric: str
    unit: str
    clients: int
    gain: float
    low: float
    high: float

    def __str__(self) -> str:
        text = f"Mean gain in {self.metric}: {self.gain:.1f} {self.unit}"
        if math.isnan(self.low):
            return f"{text}."
        return f"{text} (95 % interval {self.low:.1f} to {self.high:.1f})."


@dataclass(frozen=True)
class Benefit:
    """What every client gains by joining; ``joined`` and ``alone`` are the runs, if they are here.

    ``print`` it for the table, folded where there are many clients, and the sentence. ``tried`` has
    the gain in validation loss, in percent, of each kind of heads that was tried; ``joined`` is the
    run of the best of them.
    """

    gains: tuple[ClientGain, ...]
    joined: Any = field(default=None, repr=False)
    alone: Any = field(default=None, repr=False)
    seed: int = 0
    tried: Mapping[str, float] = field(default_factory=dict)

    @property
    def heads(self) -> str:
        """The heads of ``joined``, where several kinds were tried: the best by validation."""
        return max(self.tried, key=self.tried.__getitem__, default="")

    @property
    def picked(self) -> str:
        """What validation picks of these heads and "training alone"; "" if none were tried."""
        return ALONE if self.tried and self.tried[self.heads] <= 0 else self.heads

    @property
    def table(self) -> pd.DataFrame:
        """One row a client: its metric alone and joined, the gain with its interval, a verdict."""
        import pandas as pd

        rows = [{**asdict(one), "verdict": one.verdict} for one in self.gains]
        return pd.DataFrame(rows, columns=list(COLUMNS))

    @property
    def means(self) -> list[Mean]:
        """The mean gain of each metric, over the clients in which it is finite."""
        kinds = dict.fromkeys((one.metric, one.unit) for one in self.gains)
        return [self._mean(metric, unit) for metric, unit in kinds]

    def _mean(self, metric: str, unit: str) -> Mean:
        mine = sorted(one.gain for one in self.gains if one.metric == metric)
        values = np.array([value for value in mine if math.isfinite(value)])
        if not len(values):
            return Mean(metric, unit, 0, math.nan, math.nan, math.nan)
        ends = mean_interval(values, self.seed)
        return Mean(metric, unit, len(values), float(values.mean()), *ends)

    @property
    def sentence(self) -> str:
        """How many clients joining helps, and how much on average; first, what was picked."""
        helped = " ".join((counted([one.verdict for one in self.gains]), *map(str, self.means)))
        return f"{self._heads} {helped}" if self.tried else helped

    @property
    def _heads(self) -> str:
        numbers = ", ".join(f"{name} {value:+.1f} %" for name, value in self.tried.items())
        shown = "" if self.picked == self.heads else f" What follows is of {self.heads}."
        gain = "gain in validation loss over training alone"
        return f"Validation picks {self.picked} ({gain}: {numbers}).{shown}"

    def __str__(self) -> str:
        places = folded([one.gain for one in self.gains])
        shown = self.table.iloc[places].to_string(index=False, float_format="{:.4g}".format)
        left = len(self.gains) - len(places)
        more = f"\n({left} clients between these are left out)" if left else ""
        return f"{shown}{more}\n{self.sentence}"


def counted(verdicts: Sequence[str]) -> str:
    """How many clients joining helps, and how many it hurts.

    >>> counted(["gains", "no significant difference", "gains"])
    'Joining helps 2 of 3 clients, hurts 0, and makes no detectable difference for 1.'
    """
    helps, hurts, unclear = (verdicts.count(one) for one in VERDICTS)
    clients = "client" if len(verdicts) == 1 else "clients"
    return (
        f"Joining helps {helps} of {len(verdicts)} {clients}, hurts {hurts}, "
        f"and makes no detectable difference for {unclear}."
    )


def folded(gains: Sequence[float]) -> list[int]:
    """The places of the clients to show: all in their order, or of many some, from worst to best.

    >>> folded([3.0, 1.0])
    [0, 1]
    """
    if len(gains) <= MANY:
        return list(range(len(gains)))
    order = sorted(range(len(gains)), key=lambda i: (_known(gains[i]), i))
    middle = (len(order) - ENDS) // 2
    return [*order[:ENDS], *order[middle : middle + ENDS], *order[-ENDS:]]


def _known(gain: float) -> float:
    return -math.inf if math.isnan(gain) else gain


def over_seeds(benefits: Sequence[Benefit]) -> Benefit:
    """The mean over seeds of one and the same comparison; the runs are left out.

    Ends of intervals are averaged, too. That is on the safe side: a mean of several is known better
    than each of them.
    """
    by_client = [{one.client: one for one in benefit.gains} for benefit in benefits]
    return Benefit(
        tuple(_mean_gain([found[one.client] for found in by_client]) for one in benefits[0].gains),
        seed=benefits[0].seed,
    )


def _mean_gain(found: Sequence[ClientGain]) -> ClientGain:
    first = found[0]
    numbers = ("alone", "joined", "gain", "low", "high")
    means = {key: fmean(getattr(one, key) for one in found) for key in numbers}
    rows = min(one.rows for one in found)
    return ClientGain(first.client, first.task, first.metric, first.unit, rows, **means)


def validation_gains(
    runs: Mapping[str, Run], alone: Run, clients: Sequence[Client]
) -> dict[str, float]:
    """Each run's gain over ``alone`` in validation loss, in percent, averaged over tasks.

    A task's loss is the mean over its clients, so that one client's loss near 0 decides nothing.
    """
    tasks: dict[str, list[str]] = {}
    for client in clients:
        if client.validation is not None:
            tasks.setdefault(client.shared_task, []).append(client.name)
    by_run = {name: _losses(run) for name, run in (*runs.items(), (ALONE, alone))}
    means = {
        name: np.array([fmean(losses[client] for client in own) for own in tasks.values()])
        for name, losses in by_run.items()
    }
    found = {name: float(gains(means[ALONE], means[name], "%").mean()) for name in HEADS}
    return {name: value if np.isfinite(value) else -np.inf for name, value in found.items()}


def _losses(run: Run) -> Mapping[str, float]:
    """Every client's validation loss at the end of the run."""
    rows = run.history[run.history.split == "validation"]
    ends = rows.drop_duplicates("client", keep="last")
    return dict(zip(ends.client, ends.loss, strict=True))
