"""What the server's log says of its clients: who is silent, refused, frozen or diverging."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedgradnorm._round.settings import Settings
from fedgradnorm._runs.csv_table import Row
from fedgradnorm._training.monitor import ClientWarnings, Monitor


class Notices:
    """One line when a client's problem begins, and counts at the end; see ``monitor``."""

    def __init__(self, names: Sequence[str], settings: Settings) -> None:
        left_out = "client {name!r} left out: {why}"
        refused = "answer of {name!r} refused: {why}"
        self.silent = ClientWarnings(names, left_out, "left out")
        self.refused = ClientWarnings(names, refused, "refused")
        self.monitor = Monitor(names, settings)

    def collected(
        self, round_number: int, silent: Mapping[str, str], refused: Mapping[str, str]
    ) -> None:
        """Note which orders of a round had no answer, and which a refused one."""
        self.silent.note(round_number, silent)
        self.refused.note(round_number, refused)

    def recorded(self, round_number: int, rows: Sequence[Row]) -> None:
        """Note whose weight was frozen in a round, and whose loss has grown."""
        active = {row["client"]: row for row in rows if row["active"]}
        frozen = {name: row["weight_frozen"] for name, row in active.items()}
        losses, ratios = (
            {name: row[key] for name, row in active.items() if row.get(key) is not None}
            for key in ("loss", "loss_ratio")
        )
        self.monitor.note(round_number, [], frozen, losses, ratios)

    def sum_up(self, rounds: int) -> None:
        """Log the counts of the whole run."""
        for warnings in (self.silent, self.refused, self.monitor.frozen):
            warnings.sum_up(rounds)

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
