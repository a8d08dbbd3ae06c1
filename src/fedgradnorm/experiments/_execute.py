"""A config into a run folder, and a run folder on to its end."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError, ModelError, RunFolderError, TrainingError
from fedgradnorm._launched import is_leader
from fedgradnorm._runs.folder_lock import FolderLock
from fedgradnorm._runs.layout import CHECKPOINT, CONFIG, DROPPED, MANIFEST
from fedgradnorm._runs.loading import load
from fedgradnorm._runs.log_lines import listen
from fedgradnorm._runs.reading import check_file, present
from fedgradnorm._runs.run import Run
from fedgradnorm._training.callbacks import ShowProgress
from fedgradnorm._training.trackers import Show, open_sink
from fedgradnorm._training.train import train_with
from fedgradnorm.data._sources import DataProgress
from fedgradnorm.experiments._config.config_file import Config, build, clients_of, load_config


@dataclass(frozen=True)
class LoadedData:
    """A config's clients, what was logged while they were loaded, and the rows left out."""

    clients: list[Client]
    log: list[str]
    dropped: list[str]


def load_data(config: Config, progress: DataProgress | None = None) -> LoadedData:
    """Load the clients of a config."""
    with _collected_log() as handler:
        return LoadedData(clients_of(config, progress), handler.lines, handler.dropped)


def execute(
    config: Config,
    folder: str | Path,
    *,
    start: str | Path | None = None,
    resume: bool = False,
    progress: Show = False,
    data: LoadedData | None = None,
    data_progress: DataProgress | None = None,
) -> Run:
    """Train what ``config`` describes, keeping everything in ``folder``.

    Bad input leaves no folder behind. With ``resume`` the run there goes on; one that was stopped
    before it wrote anything starts. ``start`` is the folder of a run to go on from: its network and
    the heads of clients that it knows. ``data`` is the config's, where it is loaded already.
    """
    folder = Path(folder)
    if not is_leader():  # under torchrun: rank 0 keeps the folder, and says what is in it
        network, clients, weighting, settings = build(config, clients_of(config))
        begin = _begin(start, network)
        return train_with(
            network, clients, weighting, settings, start=begin, folder=folder, resume=resume
        )
    if not resume:
        _refuse_taken(folder)  # before time is spent on data
    data = data or load_data(config, data_progress)
    network, clients, weighting, settings = build(config, data.clients)
    begin = _begin(start, network)
    with FolderLock(folder, config.text(), data.log, data.dropped) as folder_lock:
        if not resume:
            _refuse_taken(folder)  # another process may have been faster
        try:
            with open_sink(config.output.tracking, folder, config.table()) as sink:
                show = [ShowProgress(None if progress is True else progress)] if progress else []
                return train_with(
                    network,
                    clients,
                    weighting,
                    settings,
                    start=begin,
                    folder=folder_lock,
                    resume=resume and present(folder / MANIFEST),
                    callbacks=[sink, *show],
                )
        except TrainingError as error:
            raise TrainingError(f"{error}; checkpoint: {folder / CHECKPOINT}") from error


def _begin(folder: str | Path | None, network: nn.Module) -> Run | None:
    """The run to start from; of a class of its own, the config's network is an instance."""
    if folder is None:
        return None
    try:
        return load(folder)
    except ModelError:
        return load(folder, network)


def _refuse_taken(folder: Path) -> None:
    if any(present(folder / name) for name in (CONFIG, MANIFEST)):
        raise RunFolderError(f"{folder} already holds a run; resume it or choose another folder")


def resume_config(folder: str | Path, *, allow: Sequence[str] = ()) -> Config:
    """The config that the run in ``folder`` was started with; ``allow`` as for a config's file."""
    path = Path(folder) / CONFIG
    if not present(path):
        what = "was started from Python" if present(Path(folder) / MANIFEST) else "is no run folder"
        raise RunFolderError(
            f"{folder} {what}: it has no {CONFIG}; runs made by fgn.train resume with "
            "fgn.resume(folder, network, clients)"
        )
    check_file(path)
    return load_config(path, allow=allow)


def new_folder(config: Config) -> Path:
    """``<output>/<name>-<method>-seed<seed>``, with a number where that is taken."""
    return free_folder(
        output_folder(config),
        f"{config.name}-{config.method}-seed{config.seed}",
    )


def output_folder(config: Config) -> Path:
    """Where ``[output]`` wants its runs; a ConfigError if no folder can be there."""
    named = config.output.folder
    try:
        folder = Path(named).expanduser()
        places = (folder, *folder.absolute().parents)
        there = next(place for place in places if place.is_symlink() or place.exists())
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"output.folder = {named!r}: {reason}") from None
    if not there.is_dir():
        raise ConfigError(
            f"output.folder = {named!r}: cannot make this folder, {there} is none; choose another"
        )
    return folder


def free_folder(parent: Path, name: str) -> Path:
    """``parent/name``, or with -2, -3, ... the first that does not exist."""
    names = itertools.chain([name], (f"{name}-{n}" for n in itertools.count(2)))
    return next(parent / name for name in names if not (parent / name).exists())


@contextmanager
def _collected_log() -> Iterator[_ListHandler]:
    """What the library logs before there is a folder to log into."""
    handler = _ListHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    undo = listen(handler)
    try:
        yield handler
    finally:
        undo()


class _ListHandler(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.dropped: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the formatted line, and the rows that it sums up."""
        rows = getattr(record, "dropped", [])
        self.lines.append(self.format(record) + (f"; every row is in {DROPPED}" if rows else ""))
        self.dropped += rows
