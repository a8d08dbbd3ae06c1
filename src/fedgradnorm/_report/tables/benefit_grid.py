"""What joining is worth, as a table for the terminal and as a file that a page can read again."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

from fedgradnorm._benefit.benefit import COLUMNS, Benefit, folded
from fedgradnorm._benefit.client_gain import ClientGain
from fedgradnorm._errors import ConfigError, RunFolderError
from fedgradnorm._report.grid import Cell, Grid
from fedgradnorm._runs.checkpoint import write_atomically
from fedgradnorm._runs.reading import read_file

_NUMBERS = ("alone", "joined", "gain", "low", "high")
_FILE = (*COLUMNS, "method", "seeds")


def benefit_grid(benefit: Benefit, title: str) -> Grid:
    """A row a client, or of many clients some: the worst, the median ones and the best."""
    places = folded([one.gain for one in benefit.gains])
    rows = tuple(_cells(benefit.gains[place]) for place in places)
    left = len(benefit.gains) - len(places)
    notes = ["gain: of errors in percent of what they are alone, of accuracies in points"]
    if left:
        notes += [f"the worst, the median and the best clients; {left} between them left out"]
    columns = ("client", "metric", "alone", "joined", "gain", "95 % interval", "verdict")
    return Grid("benefit", title, columns, (rows,), tuple(notes))


def _cells(one: ClientGain) -> tuple[Cell, ...]:
    told = one.verdict != "level"
    return (
        Cell(one.client),
        Cell(one.metric),
        Cell(metric_text(one.alone, one.metric), {"": one.alone}),
        Cell(metric_text(one.joined, one.metric), {"": one.joined}),
        Cell(gain_text(one.gain, one.unit), {"": one.gain}, bold=told),
        Cell(interval_text(one)),
        Cell(one.verdict, bold=told),
    )


def metric_text(value: float, metric: str) -> str:
    """A metric: an accuracy in percent, an error with four digits."""
    return f"{100 * value:.1f} %" if metric == "accuracy" else f"{value:.4g}"


def gain_text(gain: float, unit: str) -> str:
    """A gain with its sign and unit."""
    return f"{gain:+.1f} {unit}"


def interval_text(one: ClientGain) -> str:
    """Both ends of an interval, or that there is none."""
    return "-" if math.isnan(one.low) else f"{one.low:+.1f} to {one.high:+.1f}"


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
