"""A file locked by one process, with what the system has for that; the lock ends with the process.

Linux and macOS have ``fcntl``, Windows has ``msvcrt``. Elsewhere a second file stands for the lock.
It stays behind when a process is killed, so there ``HINT`` says how to go on.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

from fedgradnorm._runs.layout import LOCK

PAUSE = 0.05
"""Seconds between two tries where the system cannot wait for a lock."""


def _module(name: str) -> ModuleType | None:
    """A module that some systems do not have."""
    with suppress(ImportError):
        return importlib.import_module(name)
    return None


POSIX, WINDOWS = _module("fcntl"), _module("msvcrt")
REMOVABLE = POSIX is not None
"""Whether a locked file can be removed; elsewhere the lock must be let go first."""
TOKEN = ".held"
"""What the name of a lock ends with where a file of its own stands for it."""
HINT = "" if POSIX or WINDOWS else f"; if there is none, remove the file {LOCK}{TOKEN} in it"
"""The way out where a lock can outlive its process, for the end of a message."""
_HELD = PermissionError if WINDOWS else FileExistsError  # how the two ways say: by another process


@contextmanager
def alone(path: Path, *, waiting: bool = False) -> Iterator[None]:
    """Hold the lock file at ``path``; if another process does, wait, or raise BlockingIOError."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        lock(file, path, waiting=waiting)
    except BaseException:
        os.close(file)
        raise
    try:
        yield
    finally:
        unlock(file, path)


def lock(file: int, path: Path, *, waiting: bool = False) -> None:
    """Lock the open file at ``path``; if another process has, wait, or raise BlockingIOError."""
    if POSIX:
        POSIX.flock(file, POSIX.LOCK_EX | (0 if waiting else POSIX.LOCK_NB))
        return
    while True:
        try:
            _lock_byte(WINDOWS, file) if WINDOWS else _create(_token(path))
            return
        except _HELD as error:
            if not waiting:
                raise BlockingIOError(error.errno, "another process holds the lock") from error
        time.sleep(PAUSE)


def unlock(file: int, path: Path) -> None:
    """Close a locked file, and so let go of it."""
    os.close(file)
    if not (POSIX or WINDOWS):
        _token(path).unlink(missing_ok=True)


def _lock_byte(windows: ModuleType, file: int) -> None:
    windows.locking(file, windows.LK_NBLCK, 1)


def _create(token: Path) -> None:
    os.close(os.open(token, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666))


def _token(path: Path) -> Path:
    """The file that stands for the lock where the system has none."""
    return path.with_name(f"{path.name}{TOKEN}")
