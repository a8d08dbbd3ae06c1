"""The history of a run: rows of rounds and evaluations, and quantiles where clients are many.

The cost depends on the clients that participated in a round and on those whose rows are recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fedgradnorm._client import SPLITS, Client
from fedgradnorm._federation.federation import Federation
from fedgradnorm._round.participation import rows_by_owner, some_of
from fedgradnorm._round.reports import SENT
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs.csv_table import Row, Table
from fedgradnorm._runs.history import History
from fedgradnorm._runs.layout import METRICS, SPREAD
from fedgradnorm._runs.spread import recorded as recorded_clients
from fedgradnorm._runs.spread import spread_rows, spread_table, spreads, told_apart
from fedgradnorm._training.accounts import Accounts
from fedgradnorm._training.callbacks import Callback, TrainingState
from fedgradnorm._training.monitor import packed_counts, unpacked_counts

log = logging.getLogger("fedgradnorm")

ALL_AT_END = 1000
"""Clients of a federation whose last evaluation is of all of them, also with ``eval_clients``."""


class Recording(Callback):
    """Writes the tables of a run, and counts the rounds of its clients.

    ``recorded`` names the clients whose rows are recorded, or is None where all are. The first and
    the last evaluation are recorded of everybody who was evaluated. ``tables`` are those that the
    run has, by the name of their file.
    """

    def __init__(
        self,
        clients: Sequence[Client],
        federation: Federation,
        accounts: Accounts,
        settings: Settings,
    ) -> None:
        self.federation, self.accounts, self.settings = federation, accounts, settings
        self.metrics = sorted({key for client in clients for key in client.task.metrics})
        self._private = bool(accounts)
        self.history = History(self.metrics, accounts.names_of_columns())
        self.spread = spread_table()
        self.recorded = recorded_clients(clients, settings)
        self.tables: dict[str, Table] = {METRICS: self.history}
        self.tables |= {} if self.recorded is None else {SPREAD: self.spread}
        self.pending: Sequence[Row] = ()  # of an evaluation: a run may stop here and repeat it
        described = ((client.name, client.task_name, client.task.kind) for client in clients)
        self._groups = {} if self.recorded is None else told_apart(described)
        self._owners = list(dict.fromkeys(client.owner for client in clients))
        self._rows_of = rows_by_owner(clients)
        self.taken = {client.name: 0 for client in clients}
        self._a_round: dict[str, tuple[int, int]] = {}  # samples seen and bytes exchanged
        same: dict[tuple[int, int], tuple[int, int]] = {}  # many clients have the same: one is kept
        steps = settings.local().steps
        for client in clients:
            samples = steps * min(settings.batch_size or client.drawn, client.drawn)
            cost = samples, federation.bytes_per_round(client.name)
            self._a_round[client.name] = same.setdefault(cost, cost)

    def announce(self) -> None:
        if self.recorded is not None:
            words = "%s has the rows of %d of %d clients, and %s quantiles over all"
            log.info(words, METRICS, len(self.recorded), len(self.taken), SPREAD)
        if (some := self.chosen(0)) is not None:
            log.info(
                "evaluation.clients: %d of %d are evaluated at a time", len(some), len(self.taken)
            )

    def on_round(self, state: TrainingState) -> None:
        """Count a round for its clients, and record one in ``log_every``."""
        record = state.record
        assert record is not None
        failed = set(record.failed)
        for name in record.clients:
            self.taken[name] += name not in failed
        if state.round % self.settings.log_every and state.round < state.rounds:
            return
        when = {"round": state.round, "epoch": state.epoch}
        rows = list[Row]()
        columns = record.columns if record.clients else {}
        recorded = self.recorded if self.history.rows else None  # the first rows are everybody's
        for name, *values in zip(record.clients, *columns.values(), strict=True):
            if recorded is not None and name not in recorded:
                continue
            ok = name not in failed
            row: Row = {**when, "client": name, "split": "batch", "active": int(ok)}
            row.update(zip(columns, values, strict=True))
            row["weight_frozen"] = int(row["weight_frozen"])
            row.update(self._meters(name))
            rows.append(row if ok else {k: v for k, v in row.items() if k not in SENT})
        self.history.append(rows)
        if self.recorded is not None:
            tasks: dict[str, list[int]] = {}
            for place, name in enumerate(record.clients):
                if name not in failed and (task := self._groups.get(name)) is not None:
                    tasks.setdefault(task, []).append(place)
            spread = {
                (*when.values(), "batch", task, quantity): [columns[quantity][k] for k in places]
                for task, places in tasks.items()
                for quantity in ("loss", "weight")
            }
            self.spread.append(spreads(spread))

    def on_evaluation(self, state: TrainingState) -> None:
        """Take the rows of an evaluation, to be recorded by :meth:`flush`."""
        self.pending = state.evaluation

    def flush(self, everybody: bool = False) -> None:
        if self.pending:
            self.write(self.pending, everybody)
        self.pending = ()

    def _meters(self, name: str) -> Row:
        """Samples a client has seen, bytes exchanged and privacy spent so far."""
        (samples, traffic), taken = self._a_round[name], self.taken[name]
        found = {"samples": taken * samples, "bytes": taken * traffic}
        return found | self.accounts.columns(name) if self._private else found

    def chosen(self, number: int, last: bool = False) -> list[str] | None:
        """Who is evaluated after round ``number``, drawn from the seed; None: all clients."""
        asked, owners = self.settings.eval_clients, self._owners
        if asked is None or (last and len(owners) <= ALL_AT_END):
            return None
        found = some_of(owners, asked, self.settings.seed, "evaluation", number)
        return [row for owner in found for row in self._rows_of.get(owner, (owner,))]

    def measured(
        self, number: int, epoch: float, before: str = "", last: bool = False
    ) -> list[Row]:
        """Rows of an evaluation on all splits, whose names then begin with ``before``."""
        names, weights = self.chosen(number, last), self.weights()
        rows: list[Row] = []
        for split in SPLITS:
            for name, values in self.federation.evaluate(split, names).items():
                row: Row = {"round": number, "epoch": epoch, "client": name}
                row.update(split=before + split, weight=weights[name], **values)
                rows.append({**row, **self._meters(name)})
        order = {name: place for place, name in enumerate(self.taken if names is None else names)}
        return sorted(rows, key=lambda row: order[row["client"]])

    def weights(self) -> dict[str, float]:
        weights = self.federation.server.weighting.weight.tolist()
        return dict(zip(self.federation.names, weights, strict=True))

    def write(self, rows: Sequence[Row], everybody: bool = False) -> None:
        """Add rows to the history: those of the clients that are recorded, or ``everybody``'s."""
        if self.recorded is not None:
            self.spread.append(spread_rows(rows, self._groups, self.metrics))
        whole = everybody or self.recorded is None or not self.history.rows
        self.history.append(rows if whole else self._of_recorded(rows))

    def news(self) -> tuple[list[Row], list[Row]]:
        """The new rows of the clients that are recorded, and the new quantiles."""
        return self._of_recorded(self.history.news()), self.spread.news()

    def _of_recorded(self, rows: Sequence[Row]) -> list[Row]:
        return [row for row in rows if self.recorded is None or row["client"] in self.recorded]

    def state_dict(self) -> dict[str, Any]:
        """The rounds of each client; the tables are files of their own."""
        return {"taken": packed_counts(self.taken)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.taken = unpacked_counts(state["taken"], list(self.taken), "taken")
