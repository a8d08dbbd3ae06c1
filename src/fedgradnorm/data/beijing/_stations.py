"""A client a station, each with a task of its own, on the same inputs and split in time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError, choose
from fedgradnorm.data._arrays import random_generator
from fedgradnorm.data._bad_rows import OnBad, tell_dropped
from fedgradnorm.data._metrics import auc
from fedgradnorm.data._paths import find_data
from fedgradnorm.data._pooled import How, scaled
from fedgradnorm.data.beijing._hours import DIRECTIONS, Hours, Numbers
from fedgradnorm.data.beijing._kept import station_hours
from fedgradnorm.data.beijing._splits import check_shares, pick
from fedgradnorm.data.beijing._station_files import FILES, station_files
from fedgradnorm.tasks._making import classification, regression
from fedgradnorm.tasks._task import Task

logger = logging.getLogger(__name__)

POLLUTANTS = {"pm25": "PM2.5", "pm10": "PM10", "so2": "SO2", "no2": "NO2", "co": "CO", "o3": "O3"}
"""Tasks by regression, in micrograms per cubic metre, and their columns."""

TASKS = (*POLLUTANTS, "wind", "rain")
"""What a station can predict."""

INPUTS = ("TEMP", "PRES", "DEWP", "WSPM", "hour_sin", "hour_cos", "year_sin", "year_cos")
"""Temperature, pressure, dew point, wind speed, and the place in the day and in the year.

Rain and wind direction are no inputs, because they are some clients' targets.
"""

_LABELS = {"wind": DIRECTIONS, "rain": ("dry", "rain")}


def clients(
    *,
    source: str | Path | None = None,
    stations: Sequence[str] | None = None,
    tasks: Sequence[str] | Mapping[str, str] = TASKS,
    rows: int | None = None,
    test_share: float = 0.2,
    validation_share: float = 0.0,
    scaling: How = "pooled",
    seed: int = 0,
    loss_scale: Mapping[str, float] | None = None,
    on_bad: OnBad = "error",
    cache: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Client]:
    """A client a station: a pollutant by regression, the wind's direction (16), or rain (2).

    ``source`` is the archive or its folder (default: in the folder named by FEDGRADNORM_DATA).
    ``tasks`` are dealt to the ``stations`` in turn, or given by station. ``rows`` hours are drawn
    by ``seed`` for each client, None means all without a gap. The period's last ``test_share`` is
    for testing, what lies before it for validation; every station is cut at the same hours.
    ``on_bad="drop"`` takes a cell that is no number for a gap; ``cache`` is the cache's folder.

    Args:
        source: the archive or its folder. In a config: path.
        stations: some of them, by name; None is all.
        tasks: dealt to the stations in turn, or one for each, by name.
        rows: hours drawn for each client; None is all.
        test_share, validation_share: parts of the rows that are held out, each from 0 to 1.
        scaling: of the inputs: "pooled" learns mean and deviation on everybody's training rows,
            "own" on each client's, "none" changes nothing.
        seed: decides which rows go where; the run's own unless given.
        loss_scale: a factor on a task's loss, by the task's name.
        on_bad: "error" stops at a row that cannot be used, "drop" leaves it out.
        cache: folder of the prepared arrays; the user's cache folder by default.
        progress: called with (done, total) now and then; not for configs.
    """
    check_shares(rows, test_share, validation_share)
    random_generator(seed)
    scales = _scales(loss_scale)
    choose(on_bad, ("error", "drop"), "on_bad")
    path = find_data(source, FILES, "beijing")
    made: list[Client] = []
    with station_files(path) as files:
        plan = _plan(stations, tasks, list(files))
        for station, name in plan.items():
            hours, messages = station_hours(files[station], on_bad, cache)
            tell_dropped(messages, files[station].name)
            parts = _parts(station, name, hours, rows, (validation_share, test_share), seed)
            made.append(_client(station, name, hours, parts, scales.get(name, 1.0)))
            if progress:
                progress(len(made), len(plan))
    return scaled(made, scaling)


def _plan(
    stations: Sequence[str] | None, tasks: Sequence[str] | Mapping[str, str], known: Sequence[str]
) -> dict[str, str]:
    """The task of each station that takes part."""
    by_station = isinstance(tasks, Mapping)
    if stations is None:
        stations = list(tasks) if by_station else known
    for what, names in (("stations", stations), ("tasks", tasks)):
        listed = isinstance(names, Sequence | Mapping) and not isinstance(names, str)
        if not listed or not all(isinstance(name, str) for name in names) or not names:
            raise ConfigError(f"beijing: {what} must name at least one, not {names!r}")
    for station in stations:
        choose(station, known, "station")
    if len(set(stations)) < len(stations):
        raise ConfigError(f"beijing: a station stands twice in {list(stations)}; name each once")
    if isinstance(tasks, Mapping):
        without = [station for station in stations if station not in tasks]
        if without:
            raise ConfigError(f"beijing: station {without[0]!r} has no task; name one in tasks")
        plan = {station: tasks[station] for station in stations}
    else:
        plan = {station: tasks[i % len(tasks)] for i, station in enumerate(stations)}
    for name in plan.values():
        choose(name, TASKS, "task")
    return plan


def _scales(loss_scale: Mapping[str, float] | None) -> dict[str, float]:
    scales = dict(loss_scale or {})
    for name in scales:
        choose(name, TASKS, "task in loss_scale")
    return scales


def _parts(
    station: str,
    name: str,
    hours: Hours,
    rows: int | None,
    shares: tuple[float, float],
    seed: int,
) -> dict[str, NDArray[np.int64]]:
    """The hours of each split. A station's own draw does not depend on who else takes part."""
    good = ~np.isnan(_inputs(hours)).any(axis=1) & ~_gaps(hours, name)
    rng = np.random.default_rng([seed, *station.encode()])
    logger.info("beijing: station %s, task %s: %d of %d hours have a gap and are left out",
                station, name, len(hours) - int(good.sum()), len(hours))  # fmt: skip
    return pick(f"client {station!r}, task {name!r}", hours.time, good, rows, shares, rng)


def _client(
    station: str, name: str, hours: Hours, parts: Mapping[str, NDArray[np.int64]], scale: float
) -> Client:
    x, y = _inputs(hours), _target(hours, name)
    pairs = {split: (x[at], y[at]) for split, at in parts.items()}
    return Client(
        station, _task(name, scale), pairs["train"], pairs.get("test"), pairs.get("validation"),
        labels=_LABELS.get(name), columns=INPUTS,
    )  # fmt: skip


def _task(name: str, scale: float) -> Task:
    if name in POLLUTANTS:
        return regression(1, loss_scale=scale, name=name)
    metrics = {"auc": auc} if name == "rain" else None
    return classification(len(_LABELS[name]), metrics=metrics, loss_scale=scale, name=name)


def _inputs(hours: Hours) -> Numbers:
    """The columns of ``INPUTS``; day and year are points on a circle, so midnight is no jump."""
    day = hours.time.astype("M8[D]")
    of_day = (hours.time - day).astype(np.float64) / 24
    of_year = (day - day.astype("M8[Y]")).astype(np.float64) / 365.25
    turns = [turn(2 * np.pi * part) for part in (of_day, of_year) for turn in (np.sin, np.cos)]
    return np.stack([*(hours.columns[name] for name in INPUTS[:4]), *turns], axis=1)


def _gaps(hours: Hours, name: str) -> NDArray[np.bool_]:
    if name == "wind":
        return hours.wind < 0
    return np.isnan(hours.columns["RAIN" if name == "rain" else POLLUTANTS[name]])


def _target(hours: Hours, name: str) -> NDArray[Any]:
    """What the client is to predict; where there is a gap, any number."""
    if name == "wind":
        return hours.wind
    if name == "rain":
        return (hours.columns["RAIN"] > 0).astype(np.int64)
    return hours.columns[POLLUTANTS[name]].astype(np.float32)
