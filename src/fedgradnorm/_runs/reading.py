"""Files of a run folder as they are found: whatever is wrong with one is a RunFolderError."""

from __future__ import annotations

import functools
import operator
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from fedgradnorm._errors import RunFolderError


def present(path: Path) -> bool:
    """Whether anything has this name, a link that leads nowhere included."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:  # a null byte in a path is a ValueError
        raise RunFolderError(f"{path} cannot be read: {_reason(error)}") from error
    return True


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The file, open for reading; a pipe, a device or a folder in its place is refused."""
    try:
        with open(path, "rb", opener=_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise RunFolderError(f"{path} is no ordinary file; put the run's own file back")
            yield file
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path}: {_reason(error)}") from error


def check_file(path: Path) -> None:
    """Refuse what cannot be read as an ordinary file."""
    with opened(path):
        pass


def read_file(path: Path) -> bytes:
    """All bytes of an ordinary file."""
    with opened(path) as file:
        return file.read()


def _at_once(path: str, given: int) -> int:
    """Open without waiting: a pipe would wait for somebody to write into it."""
    return os.open(path, given | flags("O_NONBLOCK"))


def flags(*names: str) -> int:
    """Those of these flags of ``os.open`` that the system has, as one number."""
    return functools.reduce(operator.or_, (getattr(os, name, 0) for name in names))


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
