"""A run in the numbers that a comparison needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedgradnorm._round.reports import COLUMNS, KEYS
from fedgradnorm._runs.csv_table import Row
from fedgradnorm._runs.history import NOT_PRIVATE_EPSILON, SPENT
from fedgradnorm._stored.reader import StoredRun
from fedgradnorm._stored.summary import NOT_JUDGED, Judged

HELD_OUT = ("test", "validation")
"""Where a task's held-out metric is taken from: the first of these that it has."""

_BESIDE = {*KEYS, *COLUMNS, SPENT, NOT_PRIVATE_EPSILON} - {"loss"}


@dataclass(frozen=True)
class TaskSample:
    """How one client did in one run.

    ``values`` are the last ones by split and metric; ``epochs`` and ``losses`` the training curve.
    """

    values: Mapping[tuple[str, str], float]
    epochs: Sequence[float]
    losses: Sequence[float]
    weight: float
    judged: Judged = NOT_JUDGED

    @property
    def held_out(self) -> str:
        """The split that the task is judged on; empty where the client held nothing out."""
        return next((s for s in HELD_OUT if any(key[0] == s for key in self.values)), "")

    @property
    def metric(self) -> str:
        """The metric that the task is judged by."""
        split = self.held_out or "train"
        return self.judged.choose({m for s, m in self.values if s == split})

    @property
    def trivial(self) -> float:
        """What the trivial answer scores on held-out rows; NaN where that is not known."""
        return self.judged.trivial.get(self.metric, math.nan) if self.held_out else math.nan

    @property
    def score(self) -> float:
        """The metric's last value on held-out rows; NaN where there are none."""
        return self.values.get((self.held_out, self.metric), math.nan)

    @property
    def loss(self) -> float:
        """The last training loss."""
        return self.losses[-1] if self.losses else math.nan


@dataclass(frozen=True)
class Sample:
    """One run: how its clients did, and what it cost."""

    tasks: Mapping[str, TaskSample]
    megabytes: float = math.nan
    seconds: float = math.nan
    experiment: str = ""


def sample_of(run: StoredRun) -> Sample:
    """The numbers of a run, as far as it got."""
    seconds = run.manifest.get("seconds")
    by, mine = run.judged, dict[str, list[Row]]()
    for row in run.rows:
        mine.setdefault(row["client"], []).append(row)
    return Sample(
        tasks={name: _task(rows, by.get(name, NOT_JUDGED)) for name, rows in mine.items()},
        megabytes=_megabytes(run.rows),
        seconds=float(seconds) if isinstance(seconds, int | float) else math.nan,
        experiment=str(run.config.get("name", "")) if _is_real(run.config) else "",
    )


def _is_real(config: Mapping[str, Any]) -> bool:
    """Whether the run was on the data of the paper, so that its numbers may stand beside."""
    data = config.get("data")
    return isinstance(data, dict) and data.get("source") == "mtfl"


def _task(rows: Sequence[Row], by: Judged) -> TaskSample:
    values: dict[tuple[str, str], float] = {}
    curve: list[tuple[float, float]] = []
    weight = math.nan
    for row in rows:
        weight = row.get("weight", weight)
        if row["split"] == "batch":
            continue
        values |= {(row["split"], k): v for k, v in row.items() if k not in _BESIDE}
        if row["split"] == "train":
            curve.append((row["epoch"], row["loss"]))
    return TaskSample(values, [e for e, _ in curve], [v for _, v in curve], weight, by)


def _megabytes(rows: Sequence[Row]) -> float:
    """What all clients together sent and received."""
    last = {row["client"]: row["bytes"] for row in rows if "bytes" in row}
    return sum(last.values()) / 1e6 if last else math.nan
