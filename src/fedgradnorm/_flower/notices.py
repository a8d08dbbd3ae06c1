"""What the server's log says of its clients: who is silent, refused, held or diverging."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedgradnorm._round.settings import Settings
from fedgradnorm._runs.csv_table import Row
from fedgradnorm._training.monitor import ClientWarnings, Monitor


class Notices:
    """One line when a client's trouble begins, one when it ends; see ``monitor``."""

    def __init__(self, names: Sequence[str], rows: Sequence[str], settings: Settings) -> None:
        left_out = "client {name!r} left out: {why}"
        refused = "answer of {name!r} refused: {why}"
        self.silent = ClientWarnings(names, left_out, "answers again", "left out")
        self.refused = ClientWarnings(names, refused, "sends good answers again", "refused")
        self.monitor = Monitor(rows, settings)

    def collected(
        self,
        round_number: int,
        good: Sequence[str],
        silent: Mapping[str, str],
        refused: Mapping[str, str],
    ) -> None:
        """Note what came of the orders of a round: good answers, none, and refused ones."""
        self.silent.note(round_number, [*good, *refused], silent)
        self.refused.note(round_number, good, refused)

    def recorded(self, round_number: int, rows: Sequence[Row]) -> None:
        """Note whose weight was frozen in a round, and whose loss has grown."""
        active = {row["client"]: row for row in rows if row["active"]}
        frozen = {name: row["held"] for name, row in active.items()}
        losses, ratios = (
            {name: row[key] for name, row in active.items() if row.get(key) is not None}
            for key in ("loss", "loss_ratio")
        )
        self.monitor.note(round_number, frozen, losses, ratios)

    def sum_up(self) -> None:
        """Log the counts of the whole run."""
        for warnings in (self.silent, self.refused, self.monitor.frozen):
            warnings.sum_up()

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart."""
        return {
            "silent": self.silent.state_dict(),
            "refused": self.refused.state_dict(),
            "monitor": self.monitor.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state saved by :meth:`state_dict`."""
        self.silent.load_state_dict(state["silent"])
        self.refused.load_state_dict(state["refused"])
        self.monitor.load_state_dict(state["monitor"])
