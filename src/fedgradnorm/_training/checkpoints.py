"""Checkpoints: when they are written, and by whom under torchrun (rank 0)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgradnorm._engines import Journal
from fedgradnorm._engines.ranks import World
from fedgradnorm._errors import FedGradNormError
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.checkpoint import Segments
from fedgradnorm._runs.files import CHOOSE, writing
from fedgradnorm._runs.folder import Place, RunFolder
from fedgradnorm._runs.run import Run
from fedgradnorm._training.callbacks import Callback, TrainingState

if TYPE_CHECKING:
    from fedgradnorm._training.trainer import Trainer

SHARE = 0.05
"""A checkpoint is due if the last one took at most this part of the time since."""
LONGEST = 5.0
"""Seconds after which a checkpoint is due at the end of the next epoch, whatever it costs."""


class Follower:
    """The writer of a rank other than 0: it sends the state of its clients to rank 0."""

    def __init__(self, trainer: Trainer, manifest: dict[str, Any]) -> None:
        self.trainer, self.manifest = trainer, manifest

    def save_checkpoint(self) -> None:
        """Help to gather the state, and give rank 0 the rows that it asks for."""
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


Writer = RunFolder | Follower


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
        self.writer, self.world, self.clock = writer, world, clock
        self.exact = trainer.settings.checkpoint_every is not None
        self.every = trainer.settings.checkpoint_every or trainer.whole_epoch
        if writer is None:  # rounds that could run together are not interrupted
            self.every = 0
        self._cost, self._last = 0.0, clock()

    def on_round(self, state: TrainingState) -> None:
        if state.round % self.every and not state.done:
            return
        passed = self.clock() - self._last
        due = self._cost <= SHARE * passed or passed > LONGEST
        if self.exact or state.done or self.world.leaders(due):  # all ranks write, or none
            self.write()

    def write(self) -> None:
        if self.writer is not None:
            began = self.clock()
            self.writer.save_checkpoint()
            self._last = self.clock()
            self._cost = self._last - began


def open_folder(
    place: Place,
    trainer: Trainer,
    manifest: Mapping[str, Any],
    resume: bool,
    world: World,
) -> Writer:
    """Open the run's folder on rank 0; its content, or what is wrong with it, goes to all ranks."""
    folder: RunFolder | None = None
    news, saved = dict[str, Any](), dict[str, Any]()
    if world.leads:
        try:
            with writing(Path(place), CHOOSE):
                folder = RunFolder(place, trainer, manifest, resume)
            if world.size == 1:
                return folder
            rows = {name: table.rows for name, table in trainer.tables.items()}
            news = {"manifest": folder.manifest, "rows": rows, "state": None}
            found = checkpoint.latest(folder.path, folder.identity) if resume else None
            if found is not None:
                saved, news["state"] = found, found["trainer"]
        except FedGradNormError as error:
            news = {"error": error}
    news = world.leaders(news)
    if "error" in news:
        raise news["error"]
    if folder is not None:
        _send_rows(world, trainer.journal, Segments(folder.path, folder.identity).pieces(saved))
        return folder
    for name, table in trainer.tables.items():
        table.rows = news["rows"][name]
    if news["state"] is not None:
        trainer.load_state_dict(news["state"])
    _send_rows(world, trainer.journal, ())
    return Follower(trainer, news["manifest"])


def _send_rows(world: World, journal: Journal | None, pieces: Iterable[Mapping[str, Any]]) -> None:
    """Rank 0 reads the client rows piece by piece; each other rank takes those of its clients."""
    if journal is None:
        return
    if world.leads:
        for piece in chain(pieces, [None]):
            world.leaders(piece)
        return
    while (piece := world.leaders(None)) is not None:
        journal.take(piece)
        journal.settle()
