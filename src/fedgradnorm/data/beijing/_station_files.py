"""The stations' CSV files: in the archive, in memory, or in its unpacked folder."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from fedgradnorm._errors import DataError
from fedgradnorm._memory import check_memory
from fedgradnorm.data._cache import fingerprint

STATIONS = (
    "Aotizhongxin", "Changping", "Dingling", "Dongsi", "Guanyuan", "Gucheng", "Huairou",
    "Nongzhanguan", "Shunyi", "Tiantan", "Wanliu", "Wanshouxigong",
)  # fmt: skip
"""The stations of the published set."""

_PERIOD = "20130301-20170228"
FILES = tuple(
    f"{name}_Data_{_PERIOD}{end}" for end in (".zip", "") for name in ("PRSA", "PRSA2017")
)
"""Names under which the set lies in a data folder: the archive's, and its unpacked folder's."""

_NAME = re.compile(r"PRSA_Data_([A-Za-z]+)_(\d{8})-(\d{8})\.csv")
_LARGEST = 64 << 20  # bytes of one file: a station's has 3 MB, an archive bomb's has more
_File = tuple[str, int, Callable[[], bytes], Callable[[], str]]  # name, size, content and hash
_PARSED = 25  # bytes of memory that a byte of text takes as fields and numbers, about


class StationFile(NamedTuple):
    """One CSV file: the days that its name tells, its size, how to read it, and its hash."""

    name: str
    first: str
    last: str
    size: int
    open: Callable[[], bytes]
    fingerprint: Callable[[], str]

    def read(self) -> bytes:
        """The content; a DataError where it is too large or cannot be read."""
        if self.size > _LARGEST:
            raise DataError(f"{self.name}: {self.size} bytes are too many; use the official file")
        check_memory(_PARSED * self.size, self.name, DataError)
        try:
            return self.open()
        except Exception as error:  # zipfile and its decompressors raise many kinds of error
            raise DataError(f"{self.name}: cannot be read ({error}); download it again") from error


@contextmanager
def station_files(path: Path) -> Iterator[dict[str, StationFile]]:
    """The files by station, in the order of their names; nothing is ever extracted to disk."""
    if path.is_dir():
        yield _by_station(path, map(_in_folder, _csvs(path)))
        return
    try:
        archive = zipfile.ZipFile(path)
    except Exception as error:  # zipfile raises many kinds of error on damaged bytes
        raise DataError(
            f"{path}: not a complete zip archive ({error}); download it again"
        ) from error
    with archive:
        yield _by_station(path, [_in_archive(archive, entry) for entry in archive.infolist()])


def _in_folder(file: Path) -> _File:
    return file.name, file.stat().st_size, file.read_bytes, partial(fingerprint, file)


def _in_archive(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> _File:
    """An entry; its CRC is its hash, because zipfile compares them when it reads."""
    name = PurePosixPath(entry.filename).name
    return name, entry.file_size, partial(archive.read, entry), lambda: f"crc {entry.CRC}"


def _csvs(folder: Path) -> list[Path]:
    """The folder's CSV files, also where they lie one folder deeper, as in the archive."""
    return [p for p in (*folder.glob("*.csv"), *folder.glob("PRSA*/*.csv")) if p.is_file()]


def _by_station(path: Path, files: Iterable[_File]) -> dict[str, StationFile]:
    found: dict[str, StationFile] = {}
    for name, size, read, digest in files:
        told = _NAME.fullmatch(name)
        if told is None:
            continue
        station, first, last = told.groups()
        if station in found:
            raise DataError(f"{path}: station {station!r} has two files; remove one of them")
        found[station] = StationFile(f"{path}, {name}", first, last, size, read, digest)
    if not found:
        raise DataError(
            f"{path}: no file PRSA_Data_STATION_{_PERIOD}.csv in it; give the archive of these "
            "files or its unpacked folder (UCI packs that archive into another one)"
        )
    return dict(sorted(found.items()))
