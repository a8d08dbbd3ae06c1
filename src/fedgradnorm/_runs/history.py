"""The history of a run: one table of rounds and evaluations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedgradnorm._errors import ConfigError, RunFolderError
from fedgradnorm._privacy.noise import NOT_PRIVATE
from fedgradnorm._round.reports import COLUMNS, KEYS
from fedgradnorm._runs.csv_table import TEXT, WHOLE, Row, Table, columns_of, whole_rows
from fedgradnorm._runs.files import read_file
from fedgradnorm._runs.layout import METRICS
from fedgradnorm._runs.manifest import read_manifest
from fedgradnorm.weighting import Static

SPENT = "epsilon"
"""What a private client has spent so far; a column only where there is one."""
NOT_PRIVATE_EPSILON = f"{SPENT}: {NOT_PRIVATE}"
"""The column used instead where noise came from a seed."""
UNTUNED = "untuned-"
"""Before the name of a split that was evaluated before clients tuned what they keep."""


class History(Table):
    """One row per round, client and split.

    ``split`` is "batch" for what a client reported of its round and "train", "validation" or
    "test" for an evaluation of the whole split. Where clients tune what they keep, the last
    evaluation before that has the splits "untuned-train" and so on. ``spent`` are the columns of
    what private clients have spent.
    """

    def __init__(self, metrics: Sequence[str], spent: Sequence[str] = ()) -> None:
        signals = (*COLUMNS, *spent)
        taken = next((name for name in metrics if name in {*KEYS, *signals, *TEXT, *WHOLE}), None)
        if taken is not None:
            raise ConfigError(f"metric {taken!r} has the name of another column; rename it")
        super().__init__((*KEYS, *signals, *metrics))


def read_history(path: Path) -> History:
    data = read_file(path)
    return history_of(whole_rows(path, data, KEYS), columns_of(data))


def history_of(rows: list[Row], columns: tuple[str, ...]) -> History:
    history = History([])
    history.columns, history.rows = columns or history.columns, rows
    return history


def metric_columns(rows: Iterable[Row]) -> set[str]:
    """The columns of a history that are clients' metrics: only evaluations have them."""
    found = {column for row in rows if row["split"] != "batch" for column in row}
    return found - {*KEYS, *COLUMNS, SPENT, NOT_PRIVATE_EPSILON}


def averaged_weights(folder: str | Path) -> dict[str, float]:
    """Each client's mean weight over its active rounds, of the finished run there."""
    path = Path(folder)
    manifest = read_manifest(path)
    if not manifest["finished"]:
        raise RunFolderError(f"{path} is not finished; resume it before its weights are averaged")
    seen: dict[str, list[float]] = {name: [] for name in manifest["clients"]}
    for row in read_history(path / METRICS).rows:
        if row["split"] != "batch" or not row.get("active"):
            continue
        if row["client"] not in seen or "weight" not in row:
            raise RunFolderError(f"{path / METRICS} is damaged: {row} is no row of this run")
        seen[row["client"]].append(row["weight"])
    return {name: sum(weights) / len(weights) for name, weights in seen.items() if weights}


def static_from_run(folder: str) -> Static:
    """A run's time-averaged weights, kept constant: is it the moving that helps, or the level?

    Chen et al., "GradNorm" (2018), ask the same of their weights: "GradNorm static" in their
    tables, section 5.3.

    Args:
        folder: folder of a finished run, whose mean weights are used.
    """
    return Static(averaged_weights(folder))
