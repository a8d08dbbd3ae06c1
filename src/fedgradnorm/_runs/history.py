"""The tables of a run: its history, and the conflict between its clients where it was recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedgradnorm._errors import ConfigError, RunFolderError
from fedgradnorm._round.reports import COLUMNS, Pair
from fedgradnorm._runs.csv_table import Row, Table, read_rows
from fedgradnorm._runs.reading import opened

KEYS = ("round", "epoch", "client", "split")
SIGNALS = tuple(COLUMNS)
SPENT = "epsilon"
"""What a private client has spent so far; a column only where there is one."""
UNTUNED = "untuned-"
"""Before the name of a split that was evaluated before clients tuned what they keep."""
PAIRS = ("round", "epoch", "client", "other", "cosine")


class History(Table):
    """One row per round, client and split.

    ``split`` is "batch" for what a client reported of its round and "train", "validation" or
    "test" for an evaluation of the whole split. Where clients tune what they keep, the last
    evaluation before that has the splits "untuned-train" and so on. Where clients are ``private``,
    it says what they have spent.
    """

    def __init__(self, metrics: Sequence[str], private: bool = False) -> None:
        signals = (*SIGNALS, SPENT) if private else SIGNALS
        taken = next((name for name in metrics if name in (*KEYS, *signals)), None)
        if taken is not None:
            raise ConfigError(f"metric {taken!r} has the name of another column; rename it")
        super().__init__((*KEYS, *signals, *metrics))


def conflict_table() -> Table:
    """One row per recorded round and pair of clients: the cosine between their updates."""
    return Table(PAIRS)


def pair_rows(round_number: int, epoch: float, pairs: Iterable[Pair]) -> list[Row]:
    """Rows of the conflict table."""
    here = {"round": round_number, "epoch": epoch}
    return [{**here, "client": one, "other": two, "cosine": cosine} for one, two, cosine in pairs]


def read_history(path: Path) -> History:
    """A History with the columns and rows of a CSV table."""
    rows = read_rows(path)
    if any("split" not in row for row in rows):
        raise RunFolderError(f"{path} is damaged: a row has no split")
    with opened(path) as file:
        columns = file.readline().decode().strip().split(",")
    metrics = [c for c in columns if c and c not in (*KEYS, *SIGNALS, SPENT)]
    history = History(metrics, private=SPENT in columns)
    history.rows = rows
    return history
