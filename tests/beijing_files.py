"""Small files in the layout of Beijing's stations, for tests."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

COLUMNS = "No year month day hour PM2.5 PM10 SO2 NO2 CO O3 TEMP PRES DEWP RAIN wd WSPM station"
HEADER = ",".join(f'"{name}"' for name in COLUMNS.split())
FIRST = datetime(2013, 3, 1)
WINDS = ("N", "ENE", "SW", "NNW")


def row(number: int, station: str) -> list[str]:
    """One hour, all of its cells there; ``number`` counts from 0."""
    at = FIRST + timedelta(hours=number)
    air = [5 + number % 7, 9 + number % 5, 3, 20 + number % 11, 100 * (number % 9 + 1), 40]
    weather = [number % 24 - 3.5, 1020.3 - number % 10, -20.7 + number % 8, float(number % 5 == 0)]
    cells = [number + 1, at.year, at.month, at.day, at.hour, *air, *weather]
    wind = [f'"{WINDS[number % len(WINDS)]}"', number % 3 + 0.5]
    return [*map(str, [*cells, *wind]), f'"{station}"']


def rows_of(station: str, days: int = 4) -> list[list[str]]:
    return [row(number, station) for number in range(24 * days)]


def text(rows: list[list[str]], header: str = HEADER) -> bytes:
    return "".join(f"{line}\r\n" for line in [header, *map(",".join, rows)]).encode()


def name(station: str, days: int = 4) -> str:
    last = FIRST + timedelta(days=days - 1)
    return f"PRSA_Data_{station}_{FIRST:%Y%m%d}-{last:%Y%m%d}.csv"


def beijing_files(*stations: str, days: int = 4) -> dict[str, bytes]:
    return {name(each, days): text(rows_of(each, days)) for each in stations}


def write_beijing(path: Path, files: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for each, content in files.items():
            archive.writestr(f"PRSA_Data_20130301-20170228/{each}", content)
    return path
