"""``benefit.csv``: the gain of every client, as a file that a report page can read again."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from fedgradnorm._benefit.benefit import COLUMNS, Benefit
from fedgradnorm._benefit.client_gain import ClientGain
from fedgradnorm._errors import ConfigError, RunFolderError
from fedgradnorm._runs.checkpoint import write_atomically
from fedgradnorm._runs.reading import read_file

_NUMBERS = ("alone", "joined", "gain", "low", "high")
_FILE = (*COLUMNS, "method", "seeds")


def write_benefit(benefit: Benefit, path: Path, method: str, seeds: int) -> None:
    """A row a client, with all digits; which method was joined, and from how many seeds."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, _FILE, lineterminator="\n")
    writer.writeheader()
    for one in benefit.gains:
        row = {key: getattr(one, key) for key in COLUMNS}
        row |= {key: repr(row[key]) for key in _NUMBERS}
        writer.writerow({**row, "method": method, "seeds": seeds})
    try:
        write_atomically(path, buffer.getvalue().encode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error


def read_benefit(path: Path) -> tuple[str, int, list[ClientGain]]:
    """Method, seeds and gains that :func:`write_benefit` wrote; a RunFolderError if it did not."""
    try:
        rows = list(csv.DictReader(io.StringIO(read_file(path).decode())))
        (named,) = {(row["method"], int(row["seeds"])) for row in rows}
        return *named, [_read(row) for row in rows]
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise RunFolderError(f"{path.name} is damaged: {error}") from error


def _read(row: dict[str, Any]) -> ClientGain:
    alone, joined, gain, low, high = (float(row[key]) for key in _NUMBERS)
    who, what = (row["client"], row["task"]), (row["metric"], row["unit"])
    return ClientGain(*who, *what, int(row["rows"]), alone, joined, gain, low, high)
