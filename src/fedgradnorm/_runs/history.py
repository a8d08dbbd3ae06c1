"""The history of a run: one table of rounds and evaluations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedgradnorm._errors import ConfigError
from fedgradnorm._privacy.noise import NOT_PRIVATE
from fedgradnorm._round.reports import COLUMNS, KEYS
from fedgradnorm._runs.csv_table import Row, Table, columns_of, whole_rows
from fedgradnorm._runs.files import read_file

SPENT = "epsilon"
"""What a private client has spent so far; a column only where there is one."""
NOT_PRIVATE_EPSILON = f"{SPENT}: {NOT_PRIVATE}"
"""The column that stands in its place where noise came from a seed."""
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
        taken = next((name for name in metrics if name in (*KEYS, *signals)), None)
        if taken is not None:
            raise ConfigError(f"metric {taken!r} has the name of another column; rename it")
        super().__init__((*KEYS, *signals, *metrics))


def read_history(path: Path) -> History:
    """A History with the columns and rows of a CSV table."""
    data = read_file(path)
    return history_of(whole_rows(path, data, KEYS), columns_of(data))


def history_of(rows: list[Row], columns: tuple[str, ...]) -> History:
    """A History with these rows."""
    history = History([])
    history.columns, history.rows = columns or history.columns, rows
    return history


def metric_columns(rows: Iterable[Row]) -> set[str]:
    """The columns of a history that are clients' metrics: only evaluations have them."""
    found = {column for row in rows if row["split"] != "batch" for column in row}
    return found - {*KEYS, *COLUMNS, SPENT, NOT_PRIVATE_EPSILON}
