"""A run folder on disk: what the run is, how it goes, and where it can go on from.

run.json                 settings, seed, clients, versions, command
metrics.csv              the history, append-only
conflict.csv             cosines between clients' updates, where they are recorded
log.txt                  warnings and milestones with their time
checkpoint.safetensors   everything needed to go on, replaced atomically
network.safetensors      the trained shared network, once finished
clients/NAME.safetensors each client's head, once finished
"""

from __future__ import annotations

import fcntl
import json
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Protocol

from fedgradnorm.errors import RunFolderError
from fedgradnorm.experiments import checkpoint
from fedgradnorm.experiments.run import ABOUT, Run, read_about, write_about, write_models
from fedgradnorm.experiments.table import Table
from fedgradnorm.experiments.writing import writing
from fedgradnorm.settings import Settings

CHECKPOINT, LOG, LOCK = "checkpoint.safetensors", "log.txt", ".lock"
SAME = {
    "settings": "settings",
    "weighting": "weighting",
    "blueprints": "network or heads",
}
"""What a resumed run must share with the run it goes on with: keys of run.json, in words."""


class Kept(Protocol):
    """Whatever can be kept in a run folder: a trainer, or the server of a federation."""

    @property
    def tables(self) -> Mapping[str, Table]:
        """The tables of the run, by the name of their file."""

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned."""


class RunFolder:
    """Keeps a trainer's progress on disk; one process at a time."""

    def __init__(self, path: Path, trainer: Kept, about: Mapping[str, Any], resume: bool):
        if not resume and (path / ABOUT).exists():
            raise RunFolderError(
                f"{path} already holds a run; resume it, remove it, or choose another folder"
            )
        before = read_about(path) if resume else None
        path.mkdir(parents=True, exist_ok=True)
        self.path, self.trainer, self.about = path, trainer, dict(before or about)
        self._began, self._before = time.perf_counter(), float(self.about.get("seconds", 0.0))
        self._kept = True
        self._lock = _locked(path / LOCK)
        self._handler = self._start_log()
        try:
            self._start(before, about)
        except BaseException:
            self.close()
            raise
        self._kept = bool(self.about.get("finished"))

    def _start(self, before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> None:
        for left_by_a_kill in self.path.rglob(".*.tmp"):
            left_by_a_kill.unlink()
        if before is not None:
            self._restore(before, now)
            return
        self._attach()
        write_about(self.path, self.about)

    def _attach(self) -> None:
        for name, table in self.trainer.tables.items():
            table.attach(self.path / name)

    def _restore(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        now = json.loads(json.dumps(now))  # as it would be read back: tuples are lists
        # A setting that came later than the run stands as it is when nobody asks for it.
        given = {**before, "settings": {**asdict(Settings()), **before["settings"]}}
        if difference := _other_clients(before["clients"], now["clients"]):
            raise RunFolderError(f"{self.path}: cannot resume with other {difference}")
        for key, what in SAME.items():
            if given[key] != now[key]:
                raise RunFolderError(
                    f"{self.path}: cannot resume with other {what} than the run was started with"
                )
        if not (self.path / CHECKPOINT).exists():  # stopped before its first checkpoint: start over
            self._attach()
            return
        state = checkpoint.load(self.path / CHECKPOINT)
        try:
            self.trainer.load_state_dict(state["trainer"])
        except (KeyError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise RunFolderError(f"{self.path}: its checkpoint does not fit: {reason}") from error
        for name, table in self.trainer.tables.items():
            table.reattach(self.path / name, state[_size_of(name)])

    def save_checkpoint(self) -> None:
        """Put everything needed to go on into one file, atomically."""
        state = self.trainer.state_dict()  # under torchrun all ranks take part in this
        with writing(self.path):
            sizes = {_size_of(name): table.sync() for name, table in self.trainer.tables.items()}
            checkpoint.save({"trainer": state, **sizes}, self.path / CHECKPOINT)

    def finish(self, run: Run) -> None:
        """Write the trained network and heads."""
        with writing(self.path):
            write_models(run, self.path)
            self.about = run.about
            self.about["finished"] = True
            self._keep_time()

    def _keep_time(self) -> None:
        """Write how long the run has taken, the parts before an interruption included."""
        seconds = self._before + time.perf_counter() - self._began
        self.about["seconds"] = round(seconds, 3)
        write_about(self.path, self.about)
        self._kept = True

    def close(self) -> None:
        """Let go of the folder."""
        if not self._kept:  # interrupted, or training failed
            with suppress(OSError):
                self._keep_time()
        for table in self.trainer.tables.values():
            table.close()
        logging.getLogger("fedgradnorm").removeHandler(self._handler)
        with suppress(OSError):  # what it still holds cannot be written
            self._handler.close()
        self._lock.close()

    def _start_log(self) -> logging.Handler:
        handler = _Log(self.path / LOG, encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger = logging.getLogger("fedgradnorm")
        logger.addHandler(handler)
        if logger.getEffectiveLevel() > logging.INFO:
            logger.setLevel(logging.INFO)
        return handler


class _Log(logging.FileHandler):
    """A log file; where it cannot be written the run goes on, and says nothing on the terminal."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Nothing: the run's tables and checkpoints meet the same disk, and say so."""


def _other_clients(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """In what the clients differ from those that the run was started with; empty if in nothing.

    What an older version did not store is not compared.
    """
    if list(before) != list(now):
        return f"clients: it was started with {', '.join(before)}, not {', '.join(now)}"
    for name, then in before.items():
        keys = [key for key in then if then[key] != now[name].get(key)]
        if keys == ["fingerprint"]:
            return f"data: client {name!r} has as many rows as before, but other values in them"
        if keys:
            was = ", ".join(f"{key} was {then[key]}, is {now[name].get(key)}" for key in keys)
            return f"clients: client {name!r} has changed ({was})"
    return ""


def _size_of(name: str) -> str:
    """What a checkpoint calls the size that the table of this file had."""
    return f"{Path(name).stem}_size"


def _locked(path: Path) -> IO[str]:
    lock = path.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise RunFolderError(f"{path.parent} is in use by another process") from error
    return lock
