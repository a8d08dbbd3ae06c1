"""What clients gain over training alone: the file that the command ``benefit`` writes, a table."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from fedgradnorm._benefit.benefit import COLUMNS, Benefit, folded
from fedgradnorm._benefit.client_gain import UNCLEAR, ClientGain
from fedgradnorm._errors import ConfigError, RunFolderError
from fedgradnorm._report import words
from fedgradnorm._report.frame import Report
from fedgradnorm._report.grid import Cell, Grid
from fedgradnorm._runs.checkpoint import write_atomically
from fedgradnorm._runs.files import read_file
from fedgradnorm._runs.layout import BENEFIT
from fedgradnorm.experiments._statistics import Estimate

TITLE = "Benefit over training alone"


def write_benefit(benefit: Benefit, path: Path, method: str, seeds: int) -> None:
    """Write ``benefit.csv``: a row per client, with the method and the number of seeds."""
    table = benefit.table.assign(method=method, seeds=seeds)
    try:
        write_atomically(path, table.to_csv(index=False).encode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error


def read_benefit(path: Path) -> tuple[str, int, Benefit]:
    """Method, seeds and gains that :func:`write_benefit` wrote; a RunFolderError if it did not."""
    try:
        table = pd.read_csv(io.BytesIO(read_file(path)), dtype=str, keep_default_na=False)
        ((method, seeds),) = set(zip(table.method, table.seeds, strict=True))
        names = [name for name in COLUMNS if name != "verdict"]
        rows = []
        for client, task, metric, unit, count, *cells in table[names].itertuples(index=False):
            alone, joined, gain, low, high = (float(cell or "nan") for cell in cells)
            about = client, task, metric, unit, int(count)
            rows.append(ClientGain(*about, alone, joined, gain, low, high))
        return method, int(seeds), Benefit(tuple(rows))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(f"{path.name} is damaged: {error}") from error


def measured_grids(report: Report, places: Sequence[Path]) -> tuple[list[Grid], list[str]]:
    """Tables of the benefit files next to these runs, and which of them cannot be read.

    What was measured of other methods, seeds or clients is left out.
    """
    grids, problems = [], []
    for path in (place / BENEFIT for place in places):
        if path.is_file():
            try:
                method, seeds, found = read_benefit(path)
            except RunFolderError as error:
                problems.append(str(error))
                continue
            clients = {one.client for one in found.gains}
            for one in report.everybody:
                here = {client for run in one.whole for client in run.clients}
                if (one.label, len(one.seeds)) == (method, seeds) and clients == here:
                    grid = client_grid(found, f"{TITLE}: {one.label}")
                    grids.append(grid)
                    break
    return grids, problems


def client_grid(benefit: Benefit, title: str) -> Grid:
    """A row per client; of many clients, the worst, the median and the best ones."""
    places = folded([one.gain for one in benefit.gains])
    rows = tuple(_client_row(benefit.gains[place]) for place in places)
    notes = ["gain: of errors in percent of what they are alone, of accuracies in points"]
    if left := len(benefit.gains) - len(places):
        notes.append(f"the worst, the median and the best clients; {left} between them left out")
    columns = ("client", "metric", "alone", "joined", "gain", "verdict", "95 % interval")
    return Grid("benefit-clients", title, columns, (rows,), tuple(notes))


def _client_row(one: ClientGain) -> tuple[Cell, ...]:
    told = one.verdict != UNCLEAR
    return (
        Cell(one.client, task=one.client), Cell(one.metric),
        Cell(metric_text(one.alone, one.metric), {"": one.alone}),
        Cell(metric_text(one.joined, one.metric), {"": one.joined}),
        Cell(words.gain(Estimate(one.gain, math.nan, 1), one.unit),
             {"": one.gain, "_low": one.low, "_high": one.high}, bold=told, higher=True),
        Cell(one.verdict, bold=told),
        Cell("-" if math.isnan(one.low) else f"{one.low:+.1f} to {one.high:+.1f}"),
    )  # fmt: skip


def metric_text(value: float, metric: str) -> str:
    """A metric: an accuracy in percent, an error with four digits."""
    return f"{100 * value:.1f} %" if metric == "accuracy" else f"{value:.4g}"
