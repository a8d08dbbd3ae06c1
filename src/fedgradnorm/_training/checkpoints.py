"""Checkpoints: when they are written, and by whom under torchrun (rank 0)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedgradnorm._engines import Journal
from fedgradnorm._engines.ranks import World
from fedgradnorm._errors import FedGradNormError
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.folder import Place, RunFolder
from fedgradnorm._runs.layout import CHECKPOINT
from fedgradnorm._runs.many.segments import Segments
from fedgradnorm._runs.reading import present
from fedgradnorm._runs.run import Run
from fedgradnorm._runs.writing import CHOOSE, writing
from fedgradnorm._training.callbacks import Callback, TrainingState

if TYPE_CHECKING:
    from fedgradnorm._training.trainer import Trainer

SHARE = 0.05
"""A checkpoint is due if the last one took at most this part of the time since."""
LONGEST = 5.0
"""Seconds after which a checkpoint is due at the end of the next epoch, whatever it costs."""


class Writer(Protocol):
    """Writes the folder of a run."""

    about: dict[str, Any]

    def save_checkpoint(self) -> None:
        """Put everything needed to continue into one file, atomically."""

    def finish(self, run: Run) -> None:
        """Write the trained network and heads."""

    def close(self) -> None:
        """Release the folder."""


class Checkpoints(Callback):
    """Writes the checkpoints of a run that has a folder.

    ``checkpoint_every`` is obeyed exactly. By default a checkpoint is due at the end of an epoch,
    unless the last one took more than ``SHARE`` of the time since: an epoch of a few examples takes
    less time than a disk does. When a checkpoint is written has no influence on what it holds.
    """

    def __init__(
        self,
        writer: Writer | None,
        trainer: Trainer,
        world: World,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.writer, self.trainer, self.world, self.clock = writer, trainer, world, clock
        # 0 without a folder, so that rounds which could run together are not interrupted.
        self.every = 0 if writer is None else trainer.interval(trainer.settings.checkpoint_every)
        self._cost, self._last = 0.0, clock()

    def on_round(self, state: TrainingState) -> None:
        """Write one if it is due."""
        if self.writer is None:
            return
        if self.trainer.done or (state.round % self.every == 0 and self._due()):
            self.write()

    def on_end(self, state: TrainingState) -> None:  # noqa: ARG002
        """Write the last one."""
        self.write()

    def write(self) -> None:
        """Write one now."""
        if self.writer is None:
            return
        began = self.clock()
        self.writer.save_checkpoint()
        self._last = self.clock()
        self._cost = self._last - began

    def _due(self) -> bool:
        if self.trainer.settings.checkpoint_every is not None:
            return True
        passed = self.clock() - self._last
        due = self._cost <= SHARE * passed or passed > LONGEST
        return bool(self.world.leaders(due))  # all ranks take part in writing, or none


class Follower:
    """The writer of a rank other than 0: it sends the state of its clients to rank 0."""

    def __init__(self, trainer: Trainer, about: dict[str, Any]) -> None:
        self.trainer, self.about = trainer, about

    def save_checkpoint(self) -> None:
        """Take part in gathering the state, and give rank 0 the rows that it asks for."""
        journal = self.trainer.journal
        self.trainer.state_dict(rows=journal is None)
        if journal is not None:
            journal.count()
            journal.changed()
            journal.settle()

    def finish(self, run: Run) -> None:  # noqa: ARG002
        """Give rank 0 all rows, where it writes them."""
        if self.trainer.journal is not None:
            self.save_checkpoint()

    def close(self) -> None:
        """Nothing: rank 0 has the folder."""


def open_folder(
    place: Place,
    trainer: Trainer,
    about: Mapping[str, Any],
    resume: bool,
    world: World,
) -> Writer:
    """Open the run's folder on rank 0; its content, or what is wrong with it, goes to all ranks."""
    if world.size == 1:
        with writing(Path(place), CHOOSE):
            return RunFolder(place, trainer, about, resume)
    writer: RunFolder | None = None
    news, saved = dict[str, Any](), dict[str, Any]()
    if world.leads:
        try:
            with writing(Path(place), CHOOSE):
                writer = RunFolder(place, trainer, about, resume)
            rows = {name: table.rows for name, table in trainer.tables.items()}
            news = {"about": writer.about, "rows": rows, "state": None}
            if resume and present(writer.path / CHECKPOINT):
                saved = checkpoint.load(writer.path / CHECKPOINT)
                news["state"] = saved["trainer"]
        except FedGradNormError as error:
            news = {"error": error}
    news = world.leaders(news)
    if "error" in news:
        raise news["error"]
    if writer is not None:
        _send_rows(world, trainer.journal, Segments(writer.path).pieces(saved))
        return writer
    for name, table in trainer.tables.items():
        table.rows = news["rows"][name]
    if news["state"] is not None:
        trainer.load_state_dict(news["state"])
    _send_rows(world, trainer.journal, ())
    return Follower(trainer, news["about"])


def _send_rows(world: World, journal: Journal | None, pieces: Iterable[Mapping[str, Any]]) -> None:
    """Rank 0 reads the client rows piece by piece; each other rank takes those of its clients."""
    if journal is None:
        return
    if world.leads:
        for piece in pieces:
            world.leaders(piece)
        world.leaders(None)
        return
    while (piece := world.leaders(None)) is not None:
        journal.take(piece)
        journal.settle()
