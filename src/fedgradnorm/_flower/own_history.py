"""A client's own history of a run: what it measured, and the weight that the server gave it.

One line of JSON is appended per order. Each names the client's state, its number of completed
rounds, so a round that the server repeats replaces the lines of the attempt that did not count.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgradnorm._runs.csv_table import Row
from fedgradnorm._runs.layout import OWN_HISTORY


class OwnHistory:
    """The lines of one run, in a file that only its owner reads."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / OWN_HISTORY

    @property
    def begun(self) -> bool:
        return self.path.exists()

    def add(self, state: int, rows: Sequence[Row]) -> None:
        """What was measured on the way to the state after so many rounds."""
        if rows:
            self._append({"state": state, "rows": list(rows)})

    def settle(self, state: int, weight: float | None) -> None:
        """The last state that counts, and the weight that it had, as the next order says."""
        self._append({"state": state, "weight": weight})

    def _append(self, line: Mapping[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(handle, "ab") as file:
            file.write(json.dumps(line).encode() + b"\n")

    def rows(self) -> list[Row]:
        """The rows of all rounds that counted, with their weights."""
        rows, weights = dict[tuple[int, str], list[Row]](), dict[int, float | None]()
        last = math.inf
        text = self.path.read_text(encoding="utf-8") if self.begun else ""
        for line in text.splitlines():
            try:
                one = json.loads(line)
            except ValueError:
                continue  # half a line, of a process that was killed
            if "rows" in one:
                rows[one["state"], one["rows"][0]["split"]] = one["rows"]
            else:
                weights[last := one["state"]] = one["weight"]
        found = [
            row if row["split"] != "batch" or known is None else {**row, "weight": known}
            for (state, _), measured in sorted(rows.items(), key=lambda one: one[0])
            if state <= last
            for known in [weights.get(state)]
            for row in measured
        ]
        return sorted(found, key=lambda row: row["round"])
