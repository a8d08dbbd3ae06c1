"""Locks that end with their process, and a run folder held by one process.

Linux and macOS lock a file with ``fcntl``, Windows with ``msvcrt``. A folder is held from before
anything is written to it until the run lets go.
"""

from __future__ import annotations

import importlib
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

from fedgradnorm._errors import RunFolderError
from fedgradnorm._runs.files import CHOOSE, flags, reason_of
from fedgradnorm._runs.layout import LOCK

PAUSE = 0.05
"""Seconds between two tries on Windows, which cannot wait for a lock."""


def _module(name: str) -> ModuleType | None:
    """A module that one of the systems does not have."""
    with suppress(ImportError):
        return importlib.import_module(name)
    return None


POSIX, WINDOWS = _module("fcntl"), _module("msvcrt")
"""One of them is there; Windows removes no open file, so there the lock must be let go first."""


@contextmanager
def alone(path: Path, *, waiting: bool = False) -> Iterator[None]:
    """Hold the lock file at ``path``; if another process does, wait, or raise BlockingIOError."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        lock(file, waiting=waiting)
        yield
    finally:
        os.close(file)  # which lets go of it


def lock(file: int, *, waiting: bool = False) -> None:
    """Lock an open file; if another process has, wait, or raise BlockingIOError."""
    if POSIX:
        POSIX.flock(file, POSIX.LOCK_EX | (0 if waiting else POSIX.LOCK_NB))
        return
    assert WINDOWS is not None
    while True:
        try:
            WINDOWS.locking(file, WINDOWS.LK_NBLCK, 1)
            return
        except PermissionError as error:
            if not waiting:
                raise BlockingIOError(error.errno, "another process holds the lock") from error
        time.sleep(PAUSE)


ATTEMPTS = 100
"""How often a folder may vanish under our hands before that is an error."""


class FolderLock:
    """A folder made where there was none, and locked.

    Until a run is begun in it, nothing else is written: ``release`` then takes away what is new.
    ``config``, ``log`` and ``dropped`` are what the run puts into the folder once it begins.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: str = "",
        log: Sequence[str] = (),
        dropped: Sequence[str] = (),
    ) -> None:
        self.path, self.config, self.log, self.dropped = Path(path), config, log, dropped
        self.begun = False
        self._made: list[Path] = []
        self._lock, self._new = self._take()

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Let go; where no run was begun, leave everything as it was found."""
        if self._lock < 0:
            return
        if POSIX:  # while nobody else can hold it
            self._remove()
        os.close(self._lock)
        if not POSIX:
            self._remove()
        self._lock = -1

    def check(self) -> None:
        """Refuse to write once another folder, perhaps with another run, is in its place."""
        try:
            same = os.path.samestat(os.fstat(self._lock), (self.path / LOCK).lstat())
        except FileNotFoundError:
            same = False
        if not same and self.path.is_dir():
            raise RunFolderError(
                f"{self.path} was replaced by another folder while the run was training, so "
                "nothing more is written to it; restore the run's folder and resume it"
            )

    def _take(self) -> tuple[int, bool]:
        """The lock, held, and whether its file is new."""
        reason = ""
        for _ in range(ATTEMPTS):
            try:
                new = [p for p in (self.path, *self.path.parents) if not p.exists()]
                self._made += [p for p in new if p not in self._made]
                self.path.mkdir(parents=True, exist_ok=True)
                if (taken := _taken(self.path)) is not None:
                    return taken
            except FileNotFoundError as error:  # whoever made the folder may have removed it
                reason = str(error.strerror)
            except (OSError, ValueError) as error:
                reason = reason_of(error)
                break
        raise RunFolderError(f"{self.path} cannot be written: {reason}; {CHOOSE}")

    def _remove(self) -> None:
        """Take away our lock file and the folders we made, unless a run or others filled them."""
        if self.begun:
            return
        with suppress(OSError):
            if self._new:
                (self.path / LOCK).unlink()
            for folder in self._made:
                folder.rmdir()


def _taken(folder: Path) -> tuple[int, bool] | None:
    """The folder's lock, held, and whether its file is new; None if its name is another's by now.

    The file is never followed elsewhere, cut or waited for.
    """
    path, new = folder / LOCK, True
    how = os.O_RDWR | flags("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC")
    try:
        file = os.open(path, how | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        file, new = os.open(path, how), False
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise RunFolderError(f"{path} is not a regular file; remove it")
        lock(file)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), path.lstat()):
                return file, new
    except BlockingIOError as error:
        os.close(file)
        raise RunFolderError(f"{folder} is in use by another process") from error
    except BaseException:
        os.close(file)
        raise
    os.close(file)
    return None
