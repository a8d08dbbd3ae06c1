"""Where MTFL's files are read from: the archive, in memory, or an unpacked folder."""

from __future__ import annotations

import hashlib
import lzma
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Protocol

from fedgradnorm._errors import DataError
from fedgradnorm.data._cache import fingerprint
from fedgradnorm.data._paths import ENV, there
from fedgradnorm.data.mtfl._annotations import member_path

ANNOTATIONS = {"train": "training.txt", "test": "testing.txt"}
BOXES = "mtfl_boxes.csv"
OWN_BOXES = Path(__file__).with_name("boxes.csv.xz")
"""Boxes by OpenCV's Haar cascades, from ``tools/face_boxes.py``, for users who have none."""

_LARGEST = 64 << 20  # bytes of one file: MTFL's largest has 1 MB, an archive bomb's has more


class Found(NamedTuple):
    """MTFL in a data folder: the archive or unpacked folder, and the face boxes if any."""

    source: Path
    boxes: Path | None


class Source(Protocol):
    """Files by their path below the folder that holds ``training.txt``."""

    def read(self, path: str) -> bytes:
        """The file's content; ValueError with the reason where that is impossible."""

    def fingerprint(self) -> str:
        """A hash that changes when a file does."""


def find_source() -> Found:
    """MTFL.zip or MTFL/, and mtfl_boxes.csv, in the folder named by FEDGRADNORM_DATA."""
    named = os.environ.get(ENV)
    if not named:
        raise DataError(
            f"no MTFL source given and {ENV} is not set; name MTFL.zip or its unpacked folder, "
            f"or set {ENV} to the folder that holds it"
        )
    folder = Path(named).expanduser()
    source = next(
        (folder / name for name in ("MTFL.zip", "MTFL") if (folder / name).exists()), None
    )
    if source is None:
        raise DataError(f"{folder} ({ENV}): neither MTFL.zip nor MTFL/ is there; download it first")
    return Found(source, find_boxes(source))


def find_boxes(source: Path) -> Path | None:
    """The face boxes beside, or in, an archive or folder."""
    places = (source.parent / BOXES, source / BOXES)
    return next((place for place in places if place.is_file()), None)


def read_boxes(path: Path) -> bytes:
    """The CSV of face boxes, which may be compressed (.xz)."""
    content = path.read_bytes()
    if path.suffix != ".xz":
        return content
    try:
        return lzma.decompress(content)
    except lzma.LZMAError as error:
        raise DataError(f"{path}: not a complete .xz file ({error}); compress it again") from error


@contextmanager
def open_source(path: Path) -> Iterator[Source]:
    """Open an archive, an unpacked folder, or a folder that holds either."""
    if not there(path):
        raise DataError(f"{path}: no such file; give MTFL.zip or its unpacked folder")
    if path.is_dir():
        if (path / ANNOTATIONS["train"]).is_file():
            yield _Folder(path)
            return
        inner = next((path / n for n in ("MTFL", "MTFL.zip") if (path / n).exists()), None)
        if inner is None:
            raise DataError(f"{path}: no training.txt in it; give MTFL.zip or its unpacked folder")
        with open_source(inner) as source:
            yield source
        return
    try:
        archive = zipfile.ZipFile(path)
    except Exception as error:  # zipfile raises many kinds of error on damaged bytes
        raise DataError(
            f"{path}: not a complete zip archive ({error}); download it again"
        ) from error
    with archive:
        yield _Archive(path, archive)


class _Archive:
    """Reads entries in memory; nothing is ever extracted."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self._path, self._archive = path, archive
        self._entries = {self._member(info): info for info in archive.infolist()}
        wanted = ANNOTATIONS["train"]
        found = [name for name in self._entries if PurePosixPath(name).name == wanted]
        if not found:
            raise DataError(f"{path}: no {wanted} in the archive; is this MTFL.zip?")
        self._root = PurePosixPath(min(found, key=lambda name: (name.count("/"), name))).parent

    def _member(self, info: zipfile.ZipInfo) -> str:
        try:
            return member_path(info.filename)
        except ValueError as error:
            raise DataError(
                f"{self._path}: entry refused, {error}; use the official archive"
            ) from None

    def read(self, path: str) -> bytes:
        info = self._entries.get(str(self._root / path))
        if info is None:
            raise ValueError(f"{path} is not in the archive")
        if info.file_size > _LARGEST:
            raise ValueError(f"{path} is {info.file_size} bytes unpacked, too large for this set")
        try:
            return self._archive.read(info)
        except Exception as error:  # zipfile and its decompressors raise many kinds of error
            raise ValueError(f"{path} cannot be read from the archive ({error})") from error

    def fingerprint(self) -> str:
        return fingerprint(self._path)


class _Folder:
    """Reads files below one folder; a link that leads out of it is refused."""

    def __init__(self, path: Path) -> None:
        self._root = path.resolve()

    def read(self, path: str) -> bytes:
        try:
            place = (self._root / path).resolve()
            if not place.is_relative_to(self._root):
                raise ValueError(f"{path} is a link to a place outside {self._root}")
            if place.stat().st_size > _LARGEST:
                raise ValueError(f"{path} is {place.stat().st_size} bytes, too large for this set")
            return place.read_bytes()
        except OSError as error:
            raise ValueError(f"{path} cannot be read ({error.strerror})") from error

    def fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for folder, inner, files in os.walk(self._root):
            inner.sort()
            for name in sorted(files):
                place = Path(folder) / name
                status = place.lstat()
                text = f"{place.relative_to(self._root)}|{status.st_size}|{status.st_mtime_ns}\n"
                digest.update(text.encode(errors="surrogateescape"))
        return digest.hexdigest()
