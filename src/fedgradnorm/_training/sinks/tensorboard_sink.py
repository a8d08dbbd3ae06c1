"""A run in TensorBoard: event files in the run folder, one step a round.

Look at them with ``tensorboard --logdir``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedgradnorm._runs.layout import EVENTS
from fedgradnorm._training.callbacks import Progress
from fedgradnorm._training.sinks import flat, scalars


class TensorBoard:
    """Writes every number of the history as a scalar, and the config as a text."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.folder, self.config = folder / EVENTS, config
        self._writer: Any = None

    def __call__(self, event: Progress) -> None:
        """Write the rows of a round."""
        if self._writer is None:
            self._writer = self._open(event)
        for row in (*event.rows, *event.spread):
            for name, value in scalars(row):
                self._writer.add_scalar(name, value, row["round"])

    def close(self, status: str) -> None:
        """Flush and close; an unfinished run goes on in a file of its own."""
        if self._writer is not None:
            self._writer.add_text("status", status or "failed")
            self._writer.close()

    def _open(self, event: Progress) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        first = min((row["round"] for row in event.rows), default=event.round)
        # Steps that an interrupted run wrote after its last checkpoint are written again.
        writer: Any = SummaryWriter(str(self.folder), purge_step=first)
        lines = (f"| {key} | {value} |" for key, value in flat(self.config).items())
        writer.add_text("config", "\n".join(("| key | value |", "| --- | --- |", *lines)), first)
        return writer
