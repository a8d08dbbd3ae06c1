"""One station's CSV file as arrays, its gaps marked.

A gap is a cell ``NA``, or an empty one: both occur in the published files. Any other cell that is
not a number is a mistake, and is named.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedgradnorm._checks import shown
from fedgradnorm._errors import DataError
from fedgradnorm.data._bad_rows import BadRows
from fedgradnorm.data._files.rows import is_missing, missing_name, usable
from fedgradnorm.data.beijing._station_files import StationFile

TIME = ("year", "month", "day", "hour")
NUMBERS = ("PM2.5", "PM10", "SO2", "NO2", "CO", "O3", "TEMP", "PRES", "DEWP", "RAIN", "WSPM")
WIND = "wd"
DIRECTIONS = (
    "N", "NNE", "NE", "ENE", "E", "ESE", "SE", "SSE",
    "S", "SSW", "SW", "WSW", "W", "WNW", "NW", "NNW",
)  # fmt: skip
"""The 16 wind directions, clockwise; the place in this list is the class."""

_HOUR = "datetime64[h]"

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Hours:
    """A station's hours in order of time. A gap is NaN in ``columns`` and -1 in ``wind``."""

    time: NDArray[np.datetime64]
    columns: dict[str, Numbers]
    wind: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.time)


def parse(file: StationFile, bad: BadRows[str]) -> Hours:
    """Read one file. Under ``on_bad="drop"`` a bad cell is a gap, and a bad row is left out."""
    lines, cells = _cells(file, bad)
    column = _Column(file.name, lines, bad)
    hours = _hours([column.numbers(name, cells[name], needed=True) for name in TIME], column)
    kept = np.flatnonzero(~np.isnat(hours))
    columns = {name: column.numbers(name, cells[name])[kept] for name in NUMBERS}
    wind = column.directions(cells[WIND])[kept]
    _check_order(file, hours[kept], np.asarray(lines)[kept], whole=not bad.messages)
    return Hours(hours[kept], columns, wind)


def _cells(file: StationFile, bad: BadRows[str]) -> tuple[list[int], dict[str, Sequence[str]]]:
    """The line of each row, and the cells of the columns that are needed."""
    try:
        text = file.read().decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        names = [name.strip() for name in next(reader, [])]
        for name in (*TIME, *NUMBERS, WIND):
            if name not in names:
                raise missing_name(file.name, "column", name, names)
        lines, rows = [], []
        for fields in reader:
            if len(fields) == len(names):
                lines.append(reader.line_num)
                rows.append(fields)
            elif fields:
                why = f"{len(fields)} fields where the header has {len(names)}"
                bad.add(f"{file.name}, line {reader.line_num}", why)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file.name}: not a CSV file ({error}); download it again") from error
    if not rows:
        raise DataError(f"{file.name}: no rows; download it again")
    return lines, dict(zip(names, zip(*rows, strict=True), strict=True))


@dataclass(frozen=True)
class _Column:
    """Turns the cells of a file's columns into numbers, and reports those that are none."""

    name: str
    lines: Sequence[int]
    bad: BadRows[str]

    def numbers(self, column: str, cells: Sequence[str], needed: bool = False) -> Numbers:
        """A column as numbers, gaps as NaN; a gap is reported where the number is ``needed``."""
        values = np.array([_number(cell) for cell in cells])
        for at in np.flatnonzero(~usable(values)).tolist():
            if needed or not is_missing(cells[at]):
                self.report(at, f"column {column!r} is {shown(cells[at])}, not a number")
                values[at] = np.nan
        return values

    def directions(self, cells: Sequence[str]) -> NDArray[np.int64]:
        """The wind's classes, gaps as -1."""
        known = {name: number for number, name in enumerate(DIRECTIONS)}
        values = np.array([known.get(cell, -1) for cell in cells], dtype=np.int64)
        for at in np.flatnonzero(values < 0).tolist():
            if not is_missing(cells[at]):
                self.report(at, f"column {WIND!r} is {shown(cells[at])}, not a wind direction")
        return values

    def report(self, at: int, why: str) -> None:
        self.bad.add(f"{self.name}, line {self.lines[at]}", why)


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")


def _hours(parts: Sequence[Numbers], column: _Column) -> NDArray[np.datetime64]:
    """Year, month, day and hour as one time; what is no hour is reported and is NaT."""
    numbers = np.stack(parts, axis=1)
    year, month, day, hour = np.nan_to_num(numbers, nan=-1).astype(np.int64).T
    sane = (np.abs(year - 2000) < 1000) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    sane &= (hour >= 0) & (hour <= 23) & (numbers == np.floor(numbers)).all(axis=1)
    first = ((np.where(sane, year, 1970) - 1970) * 12 + np.where(sane, month, 1) - 1).astype(
        "M8[M]"
    )
    days = first.astype("M8[D]") + np.where(sane, day - 1, 0)
    sane &= days.astype("M8[M]") == first  # not the 31st of June
    result: NDArray[np.datetime64] = days.astype(_HOUR) + np.where(sane, hour, 0)
    result[~sane] = np.datetime64("NaT")
    for at in np.flatnonzero(~sane & ~np.isnan(numbers).any(axis=1)).tolist():
        column.report(at, f"{dict(zip(TIME, numbers[at].tolist(), strict=True))} is no hour")
    return result


def _check_order(
    file: StationFile, hours: NDArray[np.datetime64], lines: NDArray[np.int64], whole: bool
) -> None:
    """A DataError unless hours ascend and, where none was left out, are all the name says."""
    if not len(hours):
        raise DataError(f"{file.name}: no rows left to use; check the file")
    late = np.flatnonzero(np.diff(hours) <= np.timedelta64(0, "h"))
    if len(late):
        at = int(late[0]) + 1
        raise DataError(
            f"{file.name}, line {lines[at]}: {hours[at]}h does not come after {hours[at - 1]}h; "
            "sort the rows by time and remove doubles"
        )
    first, last = (f"{day[:4]}-{day[4:6]}-{day[6:]}" for day in (file.first, file.last))
    found = (str(hours[0].astype("M8[D]")), str(hours[-1].astype("M8[D]")))
    if whole and (found != (first, last) or hours[-1] != np.datetime64(f"{last}T23")):
        raise DataError(
            f"{file.name}: it goes from {hours[0]}h to {hours[-1]}h, its name says {first} to "
            f"{last}; the file is cut off, download it again"
        )
