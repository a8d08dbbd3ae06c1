"""A config into a run folder, and a run folder on to its end."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from fedgradnorm.client import Client
from fedgradnorm.data.sources import DataProgress
from fedgradnorm.engines.ranks import is_leader
from fedgradnorm.errors import ConfigError, FedGradNormError, RunFolderError, TrainingError
from fedgradnorm.experiments.checkpoint import write_atomically
from fedgradnorm.experiments.config import Config, build, clients_of, load_config
from fedgradnorm.experiments.folder import CHECKPOINT, LOG
from fedgradnorm.experiments.run import ABOUT, Run
from fedgradnorm.experiments.sinks import Show, tracked
from fedgradnorm.experiments.train import train

CONFIG = "config.toml"


@dataclass(frozen=True)
class LoadedData:
    """A config's clients, and what was logged while they were loaded."""

    clients: list[Client]
    log: list[str]


def load_data(config: Config, progress: DataProgress | None = None) -> LoadedData:
    """Load the clients of a config."""
    with _collected_log() as lines:
        return LoadedData(clients_of(config, progress), lines)


def execute(
    config: Config,
    folder: str | Path,
    *,
    resume: bool = False,
    progress: Show = False,
    data: LoadedData | None = None,
    data_progress: DataProgress | None = None,
) -> Run:
    """Train what ``config`` describes, keeping everything in ``folder``.

    Bad input leaves no folder behind. With ``resume`` the run there goes on; one that was stopped
    before it wrote anything starts. ``data`` is the config's, where it is loaded already.
    """
    folder = Path(folder)
    if not is_leader():  # under torchrun: rank 0 keeps the folder, and says what is in it
        network, clients, weighting, settings = build(config, clients_of(config))
        return train(
            network, clients, weighting=weighting, folder=folder, resume=resume, **asdict(settings)
        )
    if not resume and any((folder / name).exists() for name in (CONFIG, ABOUT)):
        raise RunFolderError(f"{folder} already holds a run; resume it or choose another folder")
    data = data or load_data(config, data_progress)
    network, clients, weighting, settings = build(config, data.clients)
    with _folder(folder):
        if not resume or not (folder / CONFIG).exists():
            write_atomically(folder / CONFIG, config.text().encode())
        with (folder / LOG).open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in data.log)
        try:
            with tracked(config.output.tracking, folder, config.table(), progress) as show:
                return train(
                    network,
                    clients,
                    weighting=weighting,
                    folder=folder,
                    resume=resume and (folder / ABOUT).exists(),
                    progress=show,
                    **asdict(settings),
                )
        except TrainingError as error:
            raise TrainingError(f"{error}; checkpoint: {folder / CHECKPOINT}") from error


def resume_config(folder: str | Path, *, allow: Sequence[str] = ()) -> Config:
    """The config that the run in ``folder`` was started with; ``allow`` as for a config's file."""
    path = Path(folder) / CONFIG
    if not path.is_file():
        what = "was started from Python" if (Path(folder) / ABOUT).is_file() else "is no run folder"
        raise RunFolderError(
            f"{folder} {what}: it has no {CONFIG}; runs made by fgn.train resume with "
            "fgn.train(..., folder=..., resume=True)"
        )
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
def _folder(path: Path) -> Iterator[None]:
    """Make the folder; on bad input take away whatever of it is new, unless a run began there."""
    new = [p for p in (path, *path.parents) if not p.exists()]
    before = set(path.iterdir()) if not new and path.is_dir() else set()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"{path}: cannot make this folder ({error.strerror})") from error
    try:
        yield
    except FedGradNormError:
        if not (path / ABOUT).exists():
            for file in set(path.iterdir()) - before:
                file.unlink()
            with suppress(OSError):  # a parent may have been filled by somebody else meanwhile
                for folder in new:
                    folder.rmdir()
        raise


@contextmanager
def _collected_log() -> Iterator[list[str]]:
    """What the library logs before there is a folder to log into."""
    logger, lines = logging.getLogger("fedgradnorm"), list[str]()
    handler = _ListHandler(lines)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    level = logger.level
    if logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _ListHandler(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the formatted line."""
        self.lines.append(self.format(record))
