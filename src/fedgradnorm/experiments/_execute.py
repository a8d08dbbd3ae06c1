"""Train a config into a run folder, or resume the run there."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from fedgradnorm._client import Client
from fedgradnorm._errors import ModelError, RunFolderError, TrainingError
from fedgradnorm._launched import is_leader
from fedgradnorm._round.settings import FIELDS, Settings, completed, key_of, keywords
from fedgradnorm._runs.files import check_file, present
from fedgradnorm._runs.folder import Place, listen
from fedgradnorm._runs.layout import CHECKPOINT, CONFIG, DROPPED, MANIFEST
from fedgradnorm._runs.loading import load
from fedgradnorm._runs.locking import FolderLock
from fedgradnorm._runs.manifest import difference, read_manifest
from fedgradnorm._runs.run import Run
from fedgradnorm._runs.starting import taken_over
from fedgradnorm._training.callbacks import Callback, Progress, ShowProgress
from fedgradnorm._training.trackers import Show, open_sink
from fedgradnorm._training.train import resume as continue_run
from fedgradnorm._training.train import train
from fedgradnorm.data._sources import DataProgress
from fedgradnorm.experiments._config.config_file import Config, build, clients_of, load_config
from fedgradnorm.weighting import Weighting


@dataclass(frozen=True)
class LoadedData:
    """A config's clients, what was logged while they were loaded, and the rows left out."""

    clients: list[Client]
    log: list[str]
    dropped: list[str]


def load_data(config: Config, progress: DataProgress | None = None) -> LoadedData:
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
    """Train what ``config`` describes, and save everything in ``folder``.

    Bad input leaves no folder behind. With ``resume``, the run in the folder continues; one that
    was stopped before it wrote anything starts. ``start`` is the folder of a run to start from: its
    network and the heads of its clients. ``data`` is the config's, if it is already loaded.
    """
    folder = Path(folder)
    if not is_leader():  # under torchrun: rank 0 keeps the folder, and says what is in it
        network, clients, weighting, _ = build(config, clients_of(config))
        return _trained(config, _begin(start, network), clients, weighting, folder, resume, [])
    if not resume:
        _refuse_taken(folder)  # before time is spent on data
    data = data or load_data(config, data_progress)
    network, clients, weighting, _ = build(config, data.clients)
    begin = _begin(start, network)
    with FolderLock(folder, config.text(), data.log, data.dropped) as folder_lock:
        if not resume:
            _refuse_taken(folder)  # another process may have been faster
        try:
            with open_sink(config.output.tracking, folder, config.table()) as sink:
                show = [ShowProgress(None if progress is True else progress)] if progress else []
                begun = resume and present(folder / MANIFEST)
                own: list[Callback | Callable[[Progress], None]] = [sink, *show]
                return _trained(config, begin, clients, weighting, folder_lock, begun, own)
        except TrainingError as error:
            raise TrainingError(f"{error}; checkpoint: {folder / CHECKPOINT}") from error


def _trained(
    config: Config,
    network: nn.Module | Run,
    clients: Sequence[Client],
    weighting: Weighting,
    folder: Place,
    begun: bool,
    callbacks: Sequence[Callback | Callable[[Progress], None]],
) -> Run:
    """The run of a config: from its start, or where it was stopped."""
    if begun:
        _check_settings(Path(folder), config)
        return continue_run(folder, network, clients, weighting=weighting, callbacks=callbacks)
    how = keywords(config.said)
    how["callbacks"] += callbacks
    return train(
        network, clients, method=config.method, weighting=config.weighting, folder=folder, **how
    )


def _check_settings(folder: Path, config: Config) -> None:
    """Refuse a config that was changed since: a run continues with the settings it stores."""
    there, here = Settings(**completed(read_manifest(folder)["settings"])), config.settings
    # A stored schedule is filled in with the length of the run.
    schedules = {n for n in FIELDS if n.endswith("_schedule") and getattr(here, n)}
    names = [n for n in FIELDS if n not in schedules or not getattr(there, n)]
    tables = [{key_of(n): getattr(one, n) for n in names} for one in (there, here)]
    if found := difference(*tables):
        raise RunFolderError(
            f"{folder}: cannot resume with other settings ({found}); undo the change, or start "
            "again in another folder"
        )


def _begin(folder: str | Path | None, network: nn.Module) -> nn.Module | Run:
    """The network to start with, or the run; of a custom class, the config's is an instance."""
    if folder is None:
        return network
    try:
        run = load(folder)
    except ModelError:
        run = load(folder, network)
    if run.shared is not None:
        taken_over(run.shared, network)  # which refuses a network of another shape
    return run


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
    return load_config(path, allow=allow, foreign=True)


def new_folder(config: Config) -> Path:
    """``<output>/<name>-<method>-seed<seed>``, with a number where that is taken."""
    name = f"{config.name}-{config.method}-seed{config.seed}"
    return free_folder(output_folder(config), name)


def output_folder(config: Config) -> Path:
    return Path(config.output.folder).expanduser()


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
