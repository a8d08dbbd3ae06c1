"""A run in the numbers that a comparison needs, its losses freed of the factor they were given."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedgradnorm.experiments.entries import own_name
from fedgradnorm.experiments.history import KEYS, SIGNALS, Row
from fedgradnorm.experiments.summary import MAIN_METRICS
from fedgradnorm.experiments.sweep import point_name
from fedgradnorm.report.page_runs import PageRun

HELD_OUT = ("test", "validation", "train")
"""Where a task's metric is taken from: the first of these that it has."""

_BESIDE = {*KEYS, *SIGNALS} - {"loss"}


@dataclass(frozen=True)
class TaskSample:
    """How one client did in one run.

    ``values`` are the last ones by split and metric; ``epochs`` and ``losses`` the training curve.
    """

    values: Mapping[tuple[str, str], float]
    epochs: Sequence[float]
    losses: Sequence[float]
    weight: float

    @property
    def split(self) -> str:
        """The split that the task is judged on."""
        return next((s for s in HELD_OUT if any(key[0] == s for key in self.values)), "train")

    @property
    def metric(self) -> str:
        """The metric that the task is judged by."""
        return next((m for m in MAIN_METRICS if (self.split, m) in self.values), "loss")

    @property
    def score(self) -> float:
        """The metric's last value."""
        return self.values.get((self.split, self.metric), math.nan)

    @property
    def loss(self) -> float:
        """The last training loss."""
        return self.losses[-1] if self.losses else math.nan


@dataclass(frozen=True)
class Sample:
    """One run: what it is, how its clients did, and what it cost."""

    method: str
    seed: int
    tasks: Mapping[str, TaskSample]
    point: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict)
    finished: bool = True
    epoch: float = math.nan
    megabytes: float = math.nan
    seconds: float = math.nan
    experiment: str = ""

    @property
    def label(self) -> str:
        """The method, what it has for itself, and the point of a sweep."""
        return " ".join(filter(None, (self.method, own_name(self.own), point_name(self.point))))


def sample_of(run: PageRun) -> Sample:
    """The numbers of a run, as far as it got."""
    clients = run.part("clients")
    names = list(dict.fromkeys(row["client"] for row in run.rows))
    seconds = run.about.get("seconds")
    return Sample(
        method=run.method,
        seed=run.seed,
        tasks={name: _task(run.rows, name, _scale(clients, name)) for name in names},
        point=run.part("point"),
        own=run.part("own"),
        finished=run.finished,
        epoch=max((row["epoch"] for row in run.rows), default=math.nan),
        megabytes=_megabytes(run.rows),
        seconds=float(seconds) if isinstance(seconds, int | float) else math.nan,
        experiment=str(run.config.get("name", "")) if _is_real(run.config) else "",
    )


def _is_real(config: Mapping[str, Any]) -> bool:
    """Whether the run was on the data of the paper, so that its numbers may stand beside."""
    data = config.get("data")
    return isinstance(data, dict) and data.get("source") == "mtfl"


def _scale(clients: Mapping[str, Any], name: str) -> float:
    about = clients.get(name)
    scale = about.get("loss_scale", 1.0) if isinstance(about, dict) else 1.0
    return float(scale) if isinstance(scale, int | float) and scale > 0 else 1.0


def _task(rows: Sequence[Row], name: str, scale: float) -> TaskSample:
    values: dict[tuple[str, str], float] = {}
    curve: list[tuple[float, float]] = []
    weight = math.nan
    for row in rows:
        if row["client"] != name:
            continue
        weight = row.get("weight", weight)
        if row["split"] == "batch":
            continue
        plain = {**row, "loss": row["loss"] / scale}
        values |= {(row["split"], k): v for k, v in plain.items() if k not in _BESIDE}
        if row["split"] == "train":
            curve.append((row["epoch"], plain["loss"]))
    return TaskSample(values, [e for e, _ in curve], [v for _, v in curve], weight)


def _megabytes(rows: Sequence[Row]) -> float:
    """What all clients together sent and received."""
    last = {row["client"]: row["bytes"] for row in rows if "bytes" in row}
    return sum(last.values()) / 1e6 if last else math.nan
