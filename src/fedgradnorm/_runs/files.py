"""Files of a run folder, opened without following links; every failure is a RunFolderError.

A folder may come from elsewhere: a link in it could lead a reader or a writer out of it, and a pipe
would keep a reader waiting.
"""

from __future__ import annotations

import errno
import functools
import operator
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

from fedgradnorm._checks import shortened
from fedgradnorm._errors import RunFolderError
from fedgradnorm._memory import check_memory

GO_ON = (
    "fix this, then resume the run (fgn.resume, or fedgradnorm resume): it continues from its last "
    "checkpoint, or from the start if it has none"
)
CHOOSE = "fix this, or choose another folder"


def present(path: Path) -> bool:
    """Whether anything has this name, a link that leads nowhere included."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:  # a null byte in a path is a ValueError
        where = shortened(str(path), 300)
        raise RunFolderError(f"{where} cannot be read: {reason_of(error)}") from error
    return True


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The file, open for reading; a link, a pipe, a device or a folder in its place is refused.

    A link is not followed, and nobody is waited for who could write into a pipe.
    """
    try:
        how = flags("O_NONBLOCK", "O_NOFOLLOW")
        with open(path, "rb", opener=lambda name, given: os.open(name, given | how)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise RunFolderError(f"{path} is not a regular file; restore the run's own file")
            yield file
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path}: {reason_of(error)}") from error


def check_file(path: Path) -> None:
    """Refuse what cannot be read as an ordinary file."""
    with opened(path):
        pass


def read_file(path: Path) -> bytes:
    with opened(path) as file:
        check_memory(os.fstat(file.fileno()).st_size, f"{path}: reading it", RunFolderError)
        return file.read()


def check_folder(path: Path) -> None:
    """Refuse a link, or anything else, where a folder of the run is."""
    if present(path) and not stat.S_ISDIR(path.lstat().st_mode):
        raise RunFolderError(f"{path} is not a folder of the run but a link or a file; remove it")


def flags(*names: str) -> int:
    """Those of these flags of ``os.open`` that the system has, as one number."""
    return functools.reduce(operator.or_, (getattr(os, name, 0) for name in names))


def reason_of(error: OSError | ValueError) -> str:
    """What the system says, in words; of a link what is wrong with it."""
    if isinstance(error, OSError) and error.errno == errno.ELOOP:
        return "is a symbolic link, which could lead out of the folder; restore the run's own file"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


@contextmanager
def writing(folder: Path, way_out: str = GO_ON) -> Iterator[None]:
    """Turn what the system raises into a RunFolderError with a way out."""
    try:
        yield
    except (OSError, ValueError) as error:  # a null byte in a path is a ValueError
        reason = reason_of(error)
        if way_out is GO_ON and not folder.is_dir():
            reason, way_out = "it was removed while the run was training", "start the run again"
        where = shortened(str(folder), 300)
        raise RunFolderError(f"{where} cannot be written: {reason}; {way_out}") from error


def opened_to_write(path: Path, mode: str) -> IO[Any]:
    """Open a file of a run folder; where it is a link, nothing is written through it."""
    form: dict[str, Any] = {} if "b" in mode else {"newline": "", "encoding": "utf-8"}
    how = flags("O_NOFOLLOW")
    return open(path, mode, opener=lambda n, given: os.open(n, given | how, 0o666), **form)
