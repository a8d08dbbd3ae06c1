"""A tidy table of a run: in memory and, append-only and exact to the bit, in a CSV file."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgradnorm.errors import RunFolderError
from fedgradnorm.experiments.writing import writing

if TYPE_CHECKING:
    import pandas as pd

_WHOLE = {"round", "active", "held", "samples", "bytes"}
_TEXT = {"client", "other", "split"}

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

    def append(self, rows: Iterable[Row]) -> None:
        """Add rows, to the file too if there is one."""
        new = list(rows)
        self.rows += new
        if self._file is not None:
            with writing(self._folder):
                self._file.write(self._text(new))
                self._file.flush()

    def attach(self, path: Path) -> None:
        """Write everything to ``path`` from now on, starting with what is here already."""
        self._file, self._folder = path.open("w", newline="", encoding="utf-8"), path.parent
        self._file.write(self.text())
        self._file.flush()

    def reattach(self, path: Path, size: int) -> None:
        """Go on with a file as it was at ``size`` bytes; later rows are of rounds not kept."""
        if not path.exists() or path.stat().st_size < size:
            raise RunFolderError(f"{path} is shorter than its checkpoint says: it was damaged")
        self._file, self._folder = path.open("r+", newline="", encoding="utf-8"), path.parent
        self._file.truncate(size)
        self.rows = read_rows(path)
        self._told = len(self.rows)
        self._file.seek(0, io.SEEK_END)

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
        """Let go of the file."""
        if self._file is not None:
            with suppress(OSError):  # what was refused when it was written is refused here again
                self._file.close()
            self._file = None

    def frame(self) -> pd.DataFrame:
        """The table as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(self.rows, columns=list(self.columns))

    def text(self) -> str:
        """The whole table as CSV."""
        return ",".join(self.columns) + "\n" + self._text(self.rows)

    def _text(self, rows: Iterable[Row]) -> str:
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        for row in rows:
            writer.writerow([_cell(row.get(column)) for column in self.columns])
        return buffer.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return repr(float(value)) if isinstance(value, float) else str(value)


def read_rows(path: Path) -> list[Row]:
    """Rows of a CSV file that :class:`Table` wrote; an unfinished last line is left out."""
    rows, damage = salvage_rows(path)
    if damage:
        raise RunFolderError(damage)
    return rows


def salvage_rows(path: Path) -> tuple[list[Row], str]:
    """The rows before the first damaged line, and what is wrong there: "" if nothing is."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunFolderError(f"{path}: {error.strerror}") from error
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


def _value(key: str, cell: str) -> Any:
    if key in _TEXT:
        return cell
    return int(cell) if key in _WHOLE else float(cell)
