"""A run folder while its run is trained: locked, checked, written; ``layout`` names its files."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from fedgradnorm._engines import Journal
from fedgradnorm._errors import FedGradNormError, RunFolderError, listed
from fedgradnorm._round.settings import completed
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.checkpoint import Segments
from fedgradnorm._runs.csv_table import Table
from fedgradnorm._runs.files import check_file, check_folder, opened_to_write, present, writing
from fedgradnorm._runs.layout import (
    CHECKPOINT,
    CONFIG,
    DROPPED,
    EVENTS,
    FILES,
    HEADS,
    LOG,
    MANIFEST,
    PREVIOUS,
    ROWS,
    TEMPORARY,
)
from fedgradnorm._runs.locking import FolderLock
from fedgradnorm._runs.manifest import (
    UNCOMPARED,
    difference,
    identity,
    read_manifest,
    write_manifest,
)
from fedgradnorm._runs.run import Run
from fedgradnorm._runs.trained import write_models

Place = str | os.PathLike[str]
"""Where a run is saved: a folder, or the lock of one that this process already holds."""

SAME = {
    "settings": "settings",
    "weighting": "weighting",
    "blueprints": "network or heads",
}
"""What must be unchanged when a run is resumed: keys of run.json, in words."""


class Saved(Protocol):
    """What a run folder saves: a trainer, or the server of a federation."""

    @property
    def tables(self) -> Mapping[str, Table]:
        """The tables of the run, by file name."""

    @property
    def journal(self) -> Journal | None:
        """What is written incrementally, if anything is."""

    def state_dict(self, rows: bool = True) -> dict[str, Any]:
        """Everything needed to continue; without ``rows``, all but what the journal holds."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state saved by ``state_dict``."""


class RunFolder:
    """Saves a trainer's progress to disk; one process at a time.

    Everything is checked before anything is written: a refused run leaves the folder as it was.
    With ``go_back``, the checkpoint before the last is kept too, in case the last is damaged.
    """

    def __init__(
        self,
        path: Place,
        trainer: Saved,
        manifest: Mapping[str, Any],
        resume: bool,
        go_back: bool = True,
    ):
        self._go_back = go_back
        if resume:
            read_manifest(Path(path))  # what is no run folder is not even locked
        self._folder_lock = path if isinstance(path, FolderLock) else FolderLock(path)
        self.path, self.trainer = self._folder_lock.path, trainer
        self.manifest: dict[str, Any] = dict(manifest)
        self._began, self._before = time.perf_counter(), 0.0
        self._kept, self._segments = True, Segments(self.path)
        self._end_log: Callable[[], None] = lambda: None
        try:
            self._start(manifest, resume)
        except OSError as error:
            self.close()
            raise RunFolderError(f"{self.path} cannot be written to: {error}") from error
        except BaseException:
            self.close()
            raise
        self._kept = bool(self.manifest.get("finished"))

    def _start(self, manifest: Mapping[str, Any], resume: bool) -> None:
        if not resume and present(self.path / MANIFEST):
            raise RunFolderError(
                f"{self.path} already holds a run; resume it, remove it, or choose another folder"
            )
        # Refuse a folder in which something else stands where a file of the run is or will be.
        for name in FILES:
            if present(self.path / name):
                check_file(self.path / name)
        for name in (ROWS, EVENTS):
            check_folder(self.path / name)
        self._begin(self._resumed(manifest) if resume else None, resume)

    def _resumed(self, now: Mapping[str, Any]) -> dict[str, Any] | None:
        """What the checkpoint holds, taken over by the trainer; None where the run starts over."""
        self.manifest = read_manifest(self.path)
        self._before = float(self.manifest.get("seconds", 0.0))
        _check_same(self.path, self.manifest, json.loads(json.dumps(now)))
        self._segments.run = identity(self.manifest)
        state = checkpoint.latest(self.path, self._segments.run, self._go_back)
        if state is None:  # starts over, but only if it never had a checkpoint
            begun = self.manifest.get("checkpoint") or self.manifest["finished"]
            if begun or present(self.path / HEADS):
                raise RunFolderError(
                    f"{self.path} has lost its {CHECKPOINT}, so it cannot be resumed; restore it "
                    "from a copy, or start the run again in another folder"
                )
            if "start" in self.manifest and "start" not in now:
                raise RunFolderError(
                    f"{self.path} was stopped before its first checkpoint, so it needs the run "
                    f"that it started from ({self.manifest['start'].get('fingerprint')}) once "
                    "more; give it as the network, or start again in another folder"
                )
            return None
        try:
            self.trainer.load_state_dict(state["trainer"])
            if self.trainer.journal is not None:
                self._segments.restore(state, self.trainer.journal)
            for name, table in self.trainer.tables.items():
                table.recall(self.path / name, *state["tables"][name])
        except FedGradNormError:
            raise
        except Exception as error:  # a state of another shape may fail anywhere, in any way
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise RunFolderError(f"{self.path}: its checkpoint does not fit: {reason}") from error
        return state

    def _begin(self, state: Mapping[str, Any] | None, resume: bool) -> None:
        """Write to the folder for the first time: from here on it is this run's."""
        self._folder_lock.begun = True
        self._segments.run = identity(self.manifest)
        for left_by_a_kill in filter(Path.is_file, self.path.rglob(TEMPORARY)):
            left_by_a_kill.unlink()
        if (
            not resume and "start" in self.manifest
        ):  # before a config that could be resumed without it
            write_manifest(self.path, self.manifest)
        if self._folder_lock.config and not present(self.path / CONFIG):
            checkpoint.write_atomically(self.path / CONFIG, self._folder_lock.config.encode())
        if self._folder_lock.dropped:
            lines = "".join(f"{line}\n" for line in self._folder_lock.dropped)
            checkpoint.write_atomically(self.path / DROPPED, lines.encode())
        self._end_log = start_log(self.path / LOG, self._folder_lock.log)
        for name, table in self.trainer.tables.items():
            if state is None:
                table.attach(self.path / name)
            else:
                table.reattach(self.path / name, *state["tables"][name])
        if not resume:
            write_manifest(self.path, self.manifest)
        elif state is not None:
            self._mark()

    def save_checkpoint(self, whole: bool = False) -> None:
        """Write everything needed to continue; of many clients, changed rows go to more files.

        With ``whole`` they are in the one file, too: it then does not depend on those before it.
        """
        journal = self.trainer.journal
        state = self.trainer.state_dict(rows=journal is None)  # under torchrun by all ranks
        tables, run = self.trainer.tables, self._segments.run
        with writing(self.path):
            self._folder_lock.check()
            ends = {name: [table.sync(), table.checksum] for name, table in tables.items()}
            rows = {} if journal is None else self._segments.add(journal, whole)
            found = {"trainer": state, "tables": ends, **rows}
            before = self.path / PREVIOUS if self._go_back else None
            checkpoint.save(found, self.path / CHECKPOINT, run, before)
            if journal is not None:
                self._segments.settle(journal)
            self._mark()

    @property
    def identity(self) -> str:
        return self._segments.run

    def _mark(self) -> None:
        """Note in run.json that there is a checkpoint: one that is missing later was lost."""
        if not self.manifest.get("checkpoint"):
            self.manifest["checkpoint"] = True
            write_manifest(self.path, self.manifest)

    def finish(self, run: Run) -> None:
        if self.trainer.journal is not None:
            self.save_checkpoint(whole=True)
        with writing(self.path):
            self._folder_lock.check()
            write_models(run.shared, run.clients, self.path, self._segments.run)
            self.manifest = run.manifest
            self.manifest["finished"] = True
            tables = self.trainer.tables.items()
            self.manifest["tables"] = {name: table.checksum for name, table in tables}
            self._keep_time()
            (self.path / PREVIOUS).unlink(missing_ok=True)
            self._segments.finish()

    def _keep_time(self) -> None:
        """Write how long the run has taken, the parts before an interruption included."""
        seconds = self._before + time.perf_counter() - self._began
        self.manifest["seconds"] = round(seconds, 3)
        write_manifest(self.path, self.manifest)
        self._kept = True

    def close(self) -> None:
        if not self._kept:  # interrupted, or training failed
            with suppress(OSError, RunFolderError):
                self._folder_lock.check()
                self._keep_time()
        for table in self.trainer.tables.values():
            table.close()
        self._end_log()
        self._folder_lock.release()


def _check_same(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to continue with anything but the run that was started."""
    given = {**before, "settings": completed(before["settings"])}
    if others := _other_clients(before["clients"], now["clients"]):
        raise RunFolderError(f"{path}: cannot resume with other {others}")
    # No start is needed, because the checkpoint holds it; another one than the run had is refused.
    then, start = (manifest.get("start", {}).get("fingerprint") for manifest in (before, now))
    if start is not None and start != then:
        began = "without another run" if then is None else f"with what run {then} had trained"
        raise RunFolderError(
            f"{path}: cannot resume with another start: the run began {began}, start is run "
            f"{start}; leave start out, the checkpoint holds what the run began with"
        )
    for key, what in SAME.items():
        if given.get(key) != now[key]:
            raise RunFolderError(
                f"{path}: cannot resume with other {what} than the run was started with "
                f"({difference({key: given.get(key)}, {key: now[key]})}); undo the change, or "
                "start again in another folder"
            )


def _other_clients(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """In what the clients differ from those that the run was started with; empty if in nothing."""
    if list(before) != list(now):
        were, are = listed(list(before)), listed(list(now))
        return f"clients: it was started with {were}, not {are}"
    for name, then in before.items():
        given = now[name]
        keys = [k for k in {**then, **given} if k not in UNCOMPARED and then.get(k) != given.get(k)]
        if keys == ["fingerprint"]:
            return f"data: client {name!r} has as many rows as before, but other values in them"
        if keys:
            tables = [{k: t.get(k) for k in keys if k != "fingerprint"} for t in (then, given)]
            return f"clients: client {name!r} has changed ({difference(*tables)})"
    return ""


class _Upward(logging.Handler):
    """Hands records to the root logger's handlers, which do not look at the loggers' levels.

    Without any, Python prints warnings itself. It must not where ``heard``: another handler of
    ours, such as the command line's, has shown them.
    """

    def __init__(self, level: int, heard: bool) -> None:
        super().__init__(level)
        self.heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        """Pass it on, as propagation would."""
        root = logging.getLogger()
        if root.handlers or not self.heard:
            root.callHandlers(record)


def listen(handler: logging.Handler) -> Callable[[], None]:
    """Let ``handler`` have all lines from INFO on, and nobody else more than before; the undoing.

    A logger's level counts for its own records only: with INFO here, a root logger at WARNING
    would show INFO lines.
    """
    logger = logging.getLogger("fedgradnorm")
    level, before, propagate = logger.level, logger.getEffectiveLevel(), logger.propagate
    heard = bool(logger.handlers)
    logger.addHandler(handler)
    if before <= logging.INFO:
        return lambda: logger.removeHandler(handler)
    logger.setLevel(logging.INFO)
    others = [one for one in logger.handlers if one is not handler and one.level < before]
    levels = [one.level for one in others]
    for one in others:
        one.setLevel(before)
    upward = _Upward(before, heard)
    if propagate:
        logger.addHandler(upward)
        logger.propagate = False

    def undo() -> None:
        logger.removeHandler(handler)
        logger.removeHandler(upward)
        logger.setLevel(level)
        logger.propagate = propagate
        for one, own in zip(others, levels, strict=True):
            one.setLevel(own)

    return undo


def start_log(path: Path, before: Sequence[str]) -> Callable[[], None]:
    """Write ``before``, and from now on all that the library logs, to a file; the end of it."""
    with opened_to_write(path, "a") as file:
        file.writelines(f"{line}\n" for line in before)
    handler = _Log(path, encoding="utf-8")
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(message)s"))
    undo = listen(handler)

    def end() -> None:
        undo()
        with suppress(OSError):  # what it still holds cannot be written
            handler.close()

    return end


class _OneLine(logging.Formatter):
    """Escapes control characters: a name with a line break must not look like another line."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        text = super().formatMessage(record)
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class _Log(logging.FileHandler):
    """A log file; where it cannot be written, training continues without a word on the terminal."""

    def _open(self) -> Any:
        return opened_to_write(Path(self.baseFilename), "a")

    def handleError(self, record: logging.LogRecord) -> None:
        """Nothing: the run's tables and checkpoints meet the same disk, and say so."""
