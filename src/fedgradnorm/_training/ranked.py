"""A run under torchrun: rank 0 keeps the folder and speaks, the others only train along."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from fedgradnorm._engines import Journal, ranks
from fedgradnorm._engines.ranks import World
from fedgradnorm._errors import ConfigError, FedGradNormError
from fedgradnorm._launched import asked_for
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.csv_table import Row
from fedgradnorm._runs.folder import Place, RunFolder
from fedgradnorm._runs.layout import CHECKPOINT
from fedgradnorm._runs.many.segments import Segments
from fedgradnorm._runs.reading import present
from fedgradnorm._runs.run import Run
from fedgradnorm._runs.writing import CHOOSE, writing
from fedgradnorm._training.trainer import Trainer


class Keeper(Protocol):
    """Who keeps a run on disk."""

    about: dict[str, Any]

    def save_checkpoint(self) -> None:
        """Put everything needed to go on into one file, atomically."""

    def finish(self, run: Run) -> None:
        """Write the trained network and heads."""

    def close(self) -> None:
        """Let go of the folder."""


class Follower:
    """Writes nothing, but hands its clients' state to rank 0 when a checkpoint is due."""

    def __init__(self, trainer: Trainer, about: dict[str, Any]) -> None:
        self.trainer, self.about = trainer, about

    def save_checkpoint(self) -> None:
        """Take part in gathering the state, and the rows that changed."""
        journal = self.trainer.journal
        self.trainer.state_dict(rows=journal is None)
        if journal is not None:
            journal.count()
            journal.changed()
            journal.settle()

    def finish(self, run: Run) -> None:  # noqa: ARG002
        """Give rank 0 all rows, where it writes them; the rest is its own."""
        if self.trainer.journal is not None:
            self.save_checkpoint()

    def close(self) -> None:
        """Nothing: rank 0 holds the folder."""


def meet(engine: str) -> World:
    """The ranks of this run; a ConfigError if the engine would train everything on each of them."""
    if engine == "auto":
        return ranks.world()
    if asked_for() > 1:
        raise ConfigError(
            f"engine {engine!r} runs in one process, but torchrun started {asked_for()}; "
            "use engine='auto', or leave torchrun out"
        )
    return World()


def open_folder(
    place: Place,
    trainer: Trainer,
    about: Mapping[str, Any],
    resume: bool,
    world: World,
) -> Keeper:
    """Open the run's folder on rank 0; what it holds, or what is wrong with it, goes to all."""
    if world.size == 1:
        with writing(Path(place), CHOOSE):
            return RunFolder(place, trainer, about, resume)
    keeper: RunFolder | None = None
    news, held = dict[str, Any](), dict[str, Any]()
    if world.leads:
        try:
            with writing(Path(place), CHOOSE):
                keeper = RunFolder(place, trainer, about, resume)
            news = {"about": keeper.about, "rows": _rows(trainer), "state": None}
            if resume and present(keeper.path / CHECKPOINT):
                held = checkpoint.load(keeper.path / CHECKPOINT)
                news["state"] = held["trainer"]
        except FedGradNormError as error:
            news = {"trouble": error}
    news = world.leaders(news)
    if "trouble" in news:
        raise news["trouble"]
    if keeper is not None:
        _tell_rows(world, trainer.journal, Segments(keeper.path).pieces(held))
        return keeper
    for name, table in trainer.tables.items():
        table.rows = news["rows"][name]
    if news["state"] is not None:
        trainer.load_state_dict(news["state"])
    _tell_rows(world, trainer.journal, ())
    return Follower(trainer, news["about"])


def _tell_rows(world: World, journal: Journal | None, pieces: Iterable[Mapping[str, Any]]) -> None:
    """Rank 0 reads the rows of clients piece by piece; each other rank takes its own of them."""
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


def _rows(trainer: Trainer) -> dict[str, list[Row]]:
    return {name: table.rows for name, table in trainer.tables.items()}


def agreed(world: World, let_through: Callable[[], None]) -> Callable[[], None]:
    """Ctrl-C on any rank stops all of them, after the same round."""
    if world.size == 1:
        return let_through

    def check() -> None:
        asked = False
        try:
            let_through()
        except KeyboardInterrupt:
            asked = True
        if world.anyone(asked):
            raise KeyboardInterrupt

    return check
