"""A tidy table of a run: in memory and, append-only and bit-exact, in a CSV file."""

from __future__ import annotations

import copy
import csv
import hashlib
import io
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fedgradnorm._errors import ConfigError, RunFolderError
from fedgradnorm._runs.files import opened_to_write, present, read_file, writing

if TYPE_CHECKING:
    import pandas as pd

TEXT = {"client", "other", "split", "task", "quantity"}
WHOLE = {"round", "active", "weight_frozen", "samples", "bytes", "clients"}
"""Columns that are no floats; no metric may have such a name."""
_ALWAYS = ("round", "epoch", "client")
"""Columns in which no row of a table has a gap, where rows are clients'."""

_QUOTED = re.compile('[,"\r\n]')

Row = dict[str, Any]


class Table:
    """Rows in memory and, once :meth:`attach` is called, in a CSV file as well.

    Floats are written with all their digits; what a row does not have is a gap.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self.rows: list[Row] = []
        self._told = 0
        self._file: Any = None
        self._folder = Path()
        self._sum = _digest()

    @property
    def always(self) -> tuple[str, ...]:
        """Columns in which no row has a gap."""
        return tuple(column for column in _ALWAYS if column in self.columns)

    @property
    def checksum(self) -> str:
        """A hash of all that was written to the file so far."""
        return self._sum.hexdigest()

    def append(self, rows: Iterable[Row]) -> None:
        new = list(rows)
        self.rows += new
        if self._file is not None:
            with writing(self._folder):
                self._write(self._text(new))

    def copy(self) -> Self:
        """A copy of the rows in a new table without a file."""
        other = copy.copy(self)
        other.rows, other._file = list(self.rows), None
        return other

    def attach(self, path: Path) -> None:
        """Write everything to ``path`` from now on, starting with what is here already."""
        self._file, self._folder = opened_to_write(path, "w"), path.parent
        self._sum = _digest()
        self._write(self.text())

    def recall(self, path: Path, size: int, checksum: str) -> None:
        """Take the rows of the file's first ``size`` bytes; the file is only read."""
        data = read_file(path) if present(path) else b""
        if len(data) < size:
            raise RunFolderError(f"{path} is shorter than its checkpoint says: it was damaged")
        data = data[:size]
        self._sum = _digest(data)
        if self.checksum != checksum:
            raise RunFolderError(
                f"{path} is damaged: its rows are not those that its checkpoint recorded; "
                "restore the file from a copy"
            )
        if size and (theirs := columns_of(data)) != self.columns:
            odd = next(iter({*theirs} ^ {*self.columns}), "")
            way = "import the module that registers it" if odd in theirs else "do not register it"
            raise ConfigError(
                f"{path}: the run was started with other columns in its history ({odd!r} differs); "
                f"{way} before you resume the run"
            )
        self.rows = whole_rows(path, data, self.always)
        self._told = len(self.rows)

    def reattach(self, path: Path, size: int, checksum: str) -> None:
        """Continue a file as it was at ``size`` bytes; later rows are of rounds not kept."""
        self.recall(path, size, checksum)
        self._file, self._folder = opened_to_write(path, "r+"), path.parent
        self._file.truncate(size)
        self._file.seek(0, io.SEEK_END)

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()
        self._sum.update(text.encode())

    def news(self) -> list[Row]:
        """The rows that came since the last call, or since the run was resumed."""
        new, self._told = self.rows[self._told :], len(self.rows)
        return new

    def sync(self) -> int:
        """Make the file durable; its size in bytes."""
        if self._file is None:
            return 0
        self._file.flush()
        os.fsync(self._file.fileno())
        return int(self._file.tell())

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # what was refused when it was written is refused here again
                self._file.close()
            self._file = None

    def frame(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(self.rows, columns=list(self.columns))

    def text(self) -> str:
        return ",".join(self.columns) + "\n" + self._text(self.rows)

    def _text(self, rows: Iterable[Row]) -> str:
        lines = (",".join(_cell(row.get(column)) for column in self.columns) for row in rows)
        return "".join(f"{line}\n" for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(float(value))
    text = str(value)
    # csv.writer leaves a carriage return bare before Python 3.13, and its reader then refuses it.
    return '"' + text.replace('"', '""') + '"' if _QUOTED.search(text) else text


def columns_of(data: bytes) -> tuple[str, ...]:
    return tuple(filter(None, data.partition(b"\n")[0].decode().strip().split(",")))


def checksum_of(data: bytes) -> str:
    return _digest(data).hexdigest()


def whole_rows(path: Path, data: bytes, always: Sequence[str]) -> list[Row]:
    """The rows of a table without its unfinished last line; no gap in a column of ``always``."""
    rows, damage = salvaged(path, data)
    if damage:
        raise RunFolderError(damage)
    for number, row in enumerate(rows, start=1):
        if missing := [key for key in always if key not in row]:
            raise RunFolderError(f"{path} is damaged: row {number} has no {missing[0]}")
    return rows


def salvaged(path: Path, data: bytes) -> tuple[list[Row], str]:
    """The rows before the first damaged line, and what is wrong there: "" if nothing is."""
    damage = ""
    try:
        whole = data[: data.rfind(b"\n") + 1].decode()
    except UnicodeDecodeError as error:
        damage = f"{path} is damaged: {error}"
        whole = data[: data.rfind(b"\n", 0, error.start) + 1].decode()
    reader = csv.DictReader(io.StringIO(whole))
    rows: list[Row] = []
    try:
        for row in reader:
            rows.append({key: _value(key, cell) for key, cell in row.items() if cell != ""})
    except (ValueError, TypeError, csv.Error) as error:
        damage = f"{path}, line {reader.line_num} is damaged: {error}"
    return rows, damage


def _digest(data: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(data, digest_size=16)


def _value(column: str, cell: str) -> Any:
    return cell if column in TEXT else int(cell) if column in WHOLE else float(cell)
