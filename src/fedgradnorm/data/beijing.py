"""Beijing's air: pollutants and weather of each hour at 12 stations (Chen 2019, UCI, CC BY 4.0).

A client is a station, each with a task of its own, on the same inputs and split in time. A gap is a
cell ``NA``, or an empty one: both occur in the published files.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedgradnorm._checks import shown, whole
from fedgradnorm._client import SPLITS, Client
from fedgradnorm._errors import ConfigError, DataError, choose
from fedgradnorm.data._arrays import How, chosen, client_of, random_generator, scaled, split_shares
from fedgradnorm.data._bad_rows import BadRows, OnBad, tell_dropped
from fedgradnorm.data._files.tables import Cells, each, numbers, read_table, text_of
from fedgradnorm.data._paths import find_data, opened_zip
from fedgradnorm.data._source import Source
from fedgradnorm.tasks._making import classification, regression
from fedgradnorm.tasks._measures import auc
from fedgradnorm.tasks._task import Task

__all__ = ["clients"]

STATIONS = (
    "Aotizhongxin", "Changping", "Dingling", "Dongsi", "Guanyuan", "Gucheng", "Huairou",
    "Nongzhanguan", "Shunyi", "Tiantan", "Wanliu", "Wanshouxigong",
)  # fmt: skip
"""The stations of the published set."""

_PERIOD = "20130301-20170228"
FILES = (f"PRSA_Data_{_PERIOD}.zip", f"PRSA2017_Data_{_PERIOD}.zip")
"""Names of the archive in a data folder."""

POLLUTANTS = {"pm25": "PM2.5", "pm10": "PM10", "so2": "SO2", "no2": "NO2", "co": "CO", "o3": "O3"}
"""Tasks by regression, in micrograms per cubic meter, and their columns."""

TASKS = (*POLLUTANTS, "wind", "rain")
"""What a station can predict."""

INPUTS = ("TEMP", "PRES", "DEWP", "WSPM", "hour_sin", "hour_cos", "year_sin", "year_cos")
"""Temperature, pressure, dew point, wind speed, and the place in the day and in the year.

Rain and wind direction are no inputs, because they are some clients' targets.
"""

DIRECTIONS = (
    "N", "NNE", "NE", "ENE", "E", "ESE", "SE", "SSE",
    "S", "SSW", "SW", "WSW", "W", "WNW", "NW", "NNW",
)  # fmt: skip
"""The 16 wind directions, clockwise; the place in this list is the class."""

_LABELS = {"wind": DIRECTIONS, "rain": ("dry", "rain")}
_COLUMNS = {**POLLUTANTS, "wind": "wd", "rain": "RAIN"}
_TIME = ("year", "month", "day", "hour")
_NAME = re.compile(r"PRSA_Data_([A-Za-z]+)_(\d{8})-(\d{8})\.csv")

Times = NDArray[np.datetime64]

logger = logging.getLogger(__name__)


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
    progress: Callable[[int, int], None] | None = None,
) -> list[Client]:
    """A client a station: a pollutant by regression, the wind's direction (16), or rain (2).

    The period's last ``test_share`` is for testing, what lies before it for validation; every
    station is cut at the same hours.

    Args:
        source: the archive. In a config: path.
        stations: the stations to load, by name; all by default.
        tasks: a list, assigned to the stations in turn, or the task of each station by its name.
        rows: how many hours to draw for each client; by default all without a gap.
        test_share, validation_share: the shares of examples to hold out, each from 0 to 1.
        scaling: standardize inputs with statistics of all clients' training examples ("pooled"), of
            each client's own ("own"), or not at all ("none").
        seed: draws splits and shares of examples; by default the seed of the run.
        loss_scale: a factor on a task's loss, by the task's name.
        on_bad: "error" stops at an unusable value, "drop" leaves out its example.
        progress: called with (done, total) now and then; not for configs.
    """
    shares = split_shares("beijing", test_share, validation_share)
    rows = None if rows is None else whole("beijing: rows", rows, 1)
    random_generator(seed)
    scales = dict(loss_scale or {})
    for name in scales:
        choose(name, TASKS, "task in loss_scale")
    choose(on_bad, ("error", "drop"), "on_bad")
    files = _station_files(find_data(source, FILES, "beijing"))
    plan, made = _plan(stations, tasks, list(files)), list[Client]()
    for station, name in plan.items():
        bad = BadRows[int](on_bad, str(files[station]))
        time, x, y = _hours(files[station], name, bad)
        tell_dropped(bad.messages, bad.source)
        good = ~(np.isnan(x).any(axis=1) | np.isnan(y))
        logger.info("beijing: station %s, task %s: %d of %d hours have a gap and are left out",
                    station, name, len(good) - int(good.sum()), len(good))  # fmt: skip
        # A station's own draw does not depend on who else participates.
        rng = np.random.default_rng([seed, *station.encode()])
        who = f"client {station!r}, task {name!r}"
        parts = _drawn(who, time, good, rows, shares, rng)
        target = y.astype(np.float32) if name in POLLUTANTS else np.nan_to_num(y).astype(np.int64)
        pairs = {split: (x[at], target[at]) for split, at in parts.items()}
        task = _task(name, scales.get(name, 1.0))
        made.append(client_of(station, task, pairs, labels=_LABELS.get(name), columns=INPUTS))
        if progress:
            progress(len(made), len(plan))
    return scaled(made, scaling)


def _plan(
    stations: Sequence[str] | None, tasks: Sequence[str] | Mapping[str, str], known: Sequence[str]
) -> dict[str, str]:
    """The task of each participating station."""
    if stations is None and isinstance(tasks, Mapping):
        stations = list(tasks)
    stations = chosen("stations", stations, known)
    if not isinstance(tasks, Mapping):
        if isinstance(tasks, str) or not isinstance(tasks, Sequence) or not tasks:
            raise ConfigError(f"beijing: tasks must name at least one, not {tasks!r}")
        tasks = {station: tasks[i % len(tasks)] for i, station in enumerate(stations)}
    for station in stations:
        if station not in tasks:
            raise ConfigError(f"beijing: station {station!r} has no task; name one in tasks")
        choose(tasks[station], TASKS, "task")
    return {station: tasks[station] for station in stations}


def _station_files(path: Path) -> dict[str, Path]:
    """The files by station."""
    with opened_zip(path) as archive:
        files = [path / name for name in archive.namelist()]
    found: dict[str, Path] = {}
    for file in files:
        if told := _NAME.fullmatch(file.name):
            if told[1] in found:
                raise DataError(f"{path}: station {told[1]!r} has two files; remove one of them")
            found[told[1]] = file
    if not found:
        raise DataError(
            f"{path}: no file PRSA_Data_STATION_{_PERIOD}.csv in it; give the archive of these "
            "files (UCI packs that archive into another one)"
        )
    return dict(sorted(found.items()))


def _hours(
    file: Path, task: str, bad: BadRows[int]
) -> tuple[Times, NDArray[np.float64], NDArray[np.float64]]:
    """A station's hours in order of time, the inputs and the target; a gap is NaN."""
    weather = INPUTS[:4]
    table, column = read_table(file, [*_TIME, *weather, _COLUMNS[task]], bad), _COLUMNS[task]
    parts = pd.DataFrame({name: numbers(table, name) for name in _TIME})
    time = pd.to_datetime(parts, errors="coerce").to_numpy("M8[h]")
    time = np.where(parts["hour"].between(0, 23), time, np.datetime64("NaT"))
    for at in np.flatnonzero(np.isnat(time)).tolist():
        table.places.report(at, f"{parts.iloc[at].to_dict()} is no hour")
    columns = [numbers(table, name) for name in weather]
    if task == "wind":
        known, texts = dict(zip(DIRECTIONS, range(16), strict=True)), each(text_of, table[column])
        for at, text in enumerate(texts):
            if text and text not in known:
                table.places.report(at, f"column {column!r} is {shown(text)}, not a wind direction")
        y = np.array([known.get(text, np.nan) for text in texts], dtype=np.float64)
    else:
        y = numbers(table, column)
        y = np.where(np.isnan(y), np.nan, y > 0) if task == "rain" else y
    kept = table.places.good()
    if not len(kept):
        raise DataError(f"{file}: no rows left to use; download it again")
    _check_order(file, table, time, kept)
    time, y = time[kept], y[kept]
    # Day and year are points on a circle, so midnight is no jump.
    day = time.astype("M8[D]")
    of_day = (time - day).astype(np.float64) / 24
    of_year = (day - day.astype("M8[Y]")).astype(np.float64) / 365.25
    turns = [turn(2 * np.pi * part) for part in (of_day, of_year) for turn in (np.sin, np.cos)]
    return time, np.stack([*(column[kept] for column in columns), *turns], axis=1), y


def _check_order(file: Path, table: Cells, time: Times, kept: NDArray[np.int64]) -> None:
    """A DataError unless hours ascend and, where none was left out, are all the name says."""
    hours = time[kept]
    late = np.flatnonzero(np.diff(hours) <= np.timedelta64(0, "h"))
    if len(late):
        at = int(late[0]) + 1
        raise DataError(
            f"{table.places.where(int(kept[at]))}: {hours[at]}h does not come after "
            f"{hours[at - 1]}h; sort the rows by time and remove doubles"
        )
    told = _NAME.fullmatch(file.name)
    assert told is not None
    first, last = (f"{day[:4]}-{day[4:6]}-{day[6:]}" for day in told.groups()[1:])
    begins, ends = str(hours[0].astype("M8[D]")), str(hours[-1])
    if len(kept) == len(time) and (begins, ends) != (first, f"{last}T23"):
        raise DataError(
            f"{file}: it goes from {hours[0]}h to {hours[-1]}h, its name says {first} to {last}; "
            "the file is cut off, download it again"
        )


def _drawn(
    who: str,
    time: Times,
    good: NDArray[np.bool_],
    rows: int | None,
    shares: Mapping[str, float],
    rng: np.random.Generator,
) -> dict[str, NDArray[np.int64]]:
    """Positions of each split's hours, ascending.

    The period is cut, not the hours without a gap, so that stations with other gaps are cut at the
    same hours: no hour that one client trains on is another one's test. Each part then gives
    its share of ``rows``, drawn at random.
    """
    since = (time - time[0]).astype(np.int64)
    ends = np.rint(np.cumsum(list(shares.values())) * (int(since[-1]) + 1)).astype(np.int64)
    part = np.searchsorted(ends, since, side="right")
    counts = {split: round(shares[split] * (rows or 0)) for split in SPLITS[1:]}
    counts["train"] = (rows or 0) - sum(counts.values())
    found = {}
    for place, split in enumerate(SPLITS):
        if not shares[split]:
            continue
        usable, count = np.flatnonzero(good & (part == place)), counts[split]
        if not len(usable):
            raise DataError(
                f"{who}: {split} has no hour without a gap; change the shares or the task"
            )
        if rows is not None:
            if count < 1:
                raise DataError(f"{who}: {split} gets no row; raise rows or its share")
            if count > len(usable):
                raise DataError(
                    f"{who}: {split} asks for {count} hours, {len(usable)} have no gap; lower "
                    "rows, or leave it out to take them all"
                )
            usable = np.sort(rng.choice(usable, count, replace=False))
        found[split] = usable
    return found


def _task(name: str, scale: float) -> Task:
    if name in POLLUTANTS:
        return regression(1, loss_scale=scale, name=name)
    metrics: Any = {"auc": auc} if name == "rain" else None
    return classification(len(_LABELS[name]), metrics=metrics, loss_scale=scale, name=name)


Source("beijing", clients, "air and weather: 12 stations", ("path",)).register()
