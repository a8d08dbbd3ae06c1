"""Files on disk, and files inside a zip archive: ``data.zip/folder/rows.csv``.

Nothing is ever unpacked to disk.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fedgradnorm._errors import DataError
from fedgradnorm._memory import check_memory
from fedgradnorm.data._paths import is_file, there

PARSED = 25  # bytes of memory that a byte of text takes as fields and numbers, about


def is_there(path: Path) -> bool:
    """Whether it is a file, or may be one inside an archive."""
    return is_file(path) or _archive(path) is not None


def is_place(path: Path) -> bool:
    """Whether it is a file or a folder, or leads into an archive."""
    return there(path) or _archive(path) is not None


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The file for reading bytes; a DataError where an archive has no such file."""
    archive = None if is_file(path) else _archive(path)
    if archive is None:
        with path.open("rb") as file:
            yield file
    else:
        yield io.BytesIO(_member(archive, path.relative_to(archive).as_posix()))


def _archive(path: Path) -> Path | None:
    """The archive that a path leads into."""
    return next((p for p in path.parents if p.suffix.lower() == ".zip" and is_file(p)), None)


def _member(archive: Path, name: str) -> bytes:
    """The content of one file of an archive; no more is unpacked than its directory says."""
    try:
        with zipfile.ZipFile(archive) as file:
            names = [info.filename for info in file.infolist() if not info.is_dir()]
            if name not in names:
                some = ", ".join(map(repr, sorted(names)[:5]))
                more = ", ..." if len(names) > 5 else ""
                raise DataError(f"{archive}: no file {name!r} in it; it has {some}{more}")
            size = file.getinfo(name).file_size
            check_memory(PARSED * size, f"{archive}, {name}: unpacked, it", DataError)
            return file.read(name)
    except DataError:
        raise
    except Exception as error:  # zipfile and its decompressors raise many kinds of error
        reason = " ".join(str(error).split())[:100] or type(error).__name__
        raise DataError(
            f"{archive}, {name}: cannot be read ({reason}); check the archive"
        ) from error
