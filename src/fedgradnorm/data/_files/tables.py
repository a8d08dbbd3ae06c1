"""CSV and Parquet files and DataFrames as one frame of cells, also from inside a zip archive.

Records of a CSV file come from Python's ``csv`` module: pandas fills rows that are too short
without a word, and does not say on which line a row is. What is done with cells is up to the
columns; nothing is guessed here.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedgradnorm._checks import one_of, shown
from fedgradnorm._columns import is_frame
from fedgradnorm._errors import ConfigError, DataError, did_you_mean
from fedgradnorm._extras import needed
from fedgradnorm._memory import check_memory
from fedgradnorm.data._bad_rows import BadRows
from fedgradnorm.data._paths import is_file, there
from fedgradnorm.models._streamed import Streamed

Value = TypeVar("Value")

LARGEST = float(np.finfo(np.float32).max)
"""Training is in single precision, so a larger number is as bad as an infinite one."""

MISSING = ("", "na", "n/a", "nan", "null", "none")
"""Texts that stand for no value, in labels as in numbers, in small or capital letters."""


@dataclass(frozen=True)
class Places:
    """The number of each row, from 1 without the header, and the line where that is known."""

    numbers: Sequence[int]
    lines: Sequence[int] | None
    bad: BadRows[int]

    def report(self, index: int, why: str, way_out: str = "") -> None:
        self.bad.add(self.numbers[index], why, self.name(index), way_out)

    def name(self, index: int) -> str:
        row = f"data row {self.numbers[index]}"
        return row if self.lines is None else f"{row} (line {self.lines[index]})"

    def where(self, index: int) -> str:
        """The same, with the file."""
        return f"{self.bad.source}, {self.name(index)}"

    def good(self) -> NDArray[np.int64]:
        kept = ~np.isin(np.asarray(self.numbers), list(self.bad.reasons))
        return np.flatnonzero(kept).astype(np.int64)

    def at(self, index: Sequence[int]) -> Places:
        lines = None if self.lines is None else [self.lines[i] for i in index]
        return Places([self.numbers[i] for i in index], lines, self.bad)


@dataclass(frozen=True)
class FileRows:
    """What a reader returns: one entry per data row, the bad ones still among them.

    ``x`` is an array, rows that are read batch by batch, or of a table a frame: of each input
    column the numbers or, for categories, the texts. ``y`` has the targets of each task: numbers,
    NaN where nobody labeled, or labels. ``marks`` are the cells of columns that decide the split.
    """

    x: Any
    y: Mapping[str, Any]
    places: Places
    marks: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    inputs: tuple[str, ...] | None = None

    def inputs_at(self, index: NDArray[np.int64]) -> Any:
        if isinstance(self.x, Streamed):  # of which none is read here
            return Streamed(self.x.feed.subset(index))
        return self.x.iloc[index] if isinstance(self.x, pd.DataFrame) else self.x[index]

    def good(self) -> NDArray[np.int64]:
        return self.places.good()


def is_missing(cell: object) -> bool:
    """Whether a cell holds no value: the one rule for labels, inputs and numbers."""
    return cell is None or str(cell).strip().lower() in MISSING


def each(function: Callable[[Any], Value], cells: Sequence[Any]) -> list[Value]:
    """The function of every cell; a text that occurs again is not looked at again."""
    if not all(type(cell) is str for cell in cells):
        return [function(cell) for cell in cells]
    found = {cell: function(cell) for cell in set(cells)}
    return [found[cell] for cell in cells]


def cells_of(column: Any) -> list[Any]:
    """The cells of a column as Python's own, None where there is none."""
    series = pd.Series(column)
    found: list[Any] = series.astype(object).where(series.notna(), None).tolist()
    return found


def text_of(cell: object) -> str:
    """A label or category as a text, empty where there is none."""
    return "" if is_missing(cell) else str(cell).strip()


def coded_labels(labels: NDArray[Any]) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Labels as numbers of distinct texts; NaN where there is none.

    >>> coded_labels(np.array(["b", "NA", "a", "b"]))
    (array([ 0., nan,  1.,  0.]), ('b', 'a'))
    """
    places, distinct = pd.factorize(labels.reshape(-1))
    texts = [text_of(label) for label in distinct.tolist()]
    known = {text: i for i, text in enumerate(dict.fromkeys(text for text in texts if text))}
    codes = np.array([*(known.get(text, np.nan) for text in texts), np.nan], dtype=np.float64)
    return codes[places].reshape(labels.shape), tuple(known)


def number_of(cell: Any) -> float:
    """A cell as a number; NaN where it is none."""
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def numbers_of(column: Any) -> NDArray[np.float64]:
    """A column as numbers; NaN where a cell is none."""
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "fiub":
        return np.array(column, dtype=np.float64)
    try:
        return np.asarray(column.to_numpy(object, na_value=np.nan).astype(np.float64))
    except (TypeError, ValueError, OverflowError):
        return np.array(each(number_of, cells_of(column)), dtype=np.float64)


def usable(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Which numbers are finite and fit single precision."""
    with np.errstate(invalid="ignore"):
        result: NDArray[np.bool_] = np.abs(values) <= LARGEST
    return result


def missing_name(source: str, what: str, name: str, names: Iterable[str]) -> DataError:
    """The error for a column or key that a file does not have, with the nearest that it has."""
    known = list(names)
    hint = did_you_mean(name, known, 0.5)
    listed = ", ".join(map(repr, known[:10])) + (", ..." if len(known) > 10 else "")
    return DataError(f"{source}: no {what} {name!r}{hint} (it has: {listed or 'none'})")


def reason_of(error: Exception) -> str:
    """The first line of what a reader says of a damaged file, or the kind of its error."""
    return " ".join(str(error).splitlines()[:1])[:200] or type(error).__name__


CELL_BYTES = 40  # of memory, at least: a number as an object, the reference to it, and as a float
LONGEST = 1 << 24  # characters of a line: a file with holes has no ends of lines
PARSED = 25  # bytes of memory that a byte of text takes as fields and numbers, about
PARQUET = (".parquet", ".pq")
TABLE_SUFFIXES = (".csv", ".tsv", ".txt", *PARQUET)
FORMATS = {"csv": ".csv", "parquet": ".parquet", "npz": ".npz"}
"""What ``format`` may say of a file, and the ending that says the same."""


@dataclass(frozen=True)
class Form:
    """What is said of a client's tables as files.

    ``format`` replaces the file's ending. ``na`` are texts that mean no value, besides the
    usual ones. ``where`` keeps the rows in which columns have these values. Columns ``free`` may
    be empty where they decide the split. ``read`` are the tables that were read for other clients
    of the same files.
    """

    format: str | None = None
    na: tuple[str, ...] = ()
    where: Mapping[str, str] = field(default_factory=dict)
    free: tuple[str, ...] = ()
    read: dict[Any, tuple[Cells, dict[int, str]]] = field(default_factory=dict)

    @classmethod
    def of(cls, format: str | None, na: Any, where: Any, *more: Any) -> Form:
        """The form, checked."""
        if format is not None:
            one_of("format", format, tuple(FORMATS))
        gaps = (na,) if isinstance(na, str) else na
        if not isinstance(gaps, list | tuple) or not all(isinstance(one, str) for one in gaps):
            raise ConfigError(f"na must be texts, such as ['?'], not {shown(na)}")
        if not isinstance(where, Mapping | None):
            raise ConfigError(f"where must be a table, column = value, not {where!r}")
        kept = {str(column): str(value).strip() for column, value in (where or {}).items()}
        return cls(format, tuple(text.strip() for text in gaps), kept, *more)

    def suffix(self, path: Any) -> str:
        if self.format is not None:
            return FORMATS[self.format]
        return path.suffix.lower() if isinstance(path, Path) else ""


@dataclass(frozen=True)
class Cells:
    """The wanted columns of a table, and where its rows are."""

    frame: pd.DataFrame
    places: Places

    def __getitem__(self, name: str) -> list[Any]:
        return cells_of(self.frame[name])

    def marks(self, names: Sequence[str], free: Sequence[str] = ()) -> dict[str, list[Any]]:
        """The columns that decide the split; an empty cell is a bad row, but for ``free``."""
        found = {name: self[name] for name in names}
        for name in set(names) - set(free):
            for i in np.flatnonzero(each(is_missing, found[name])).tolist():
                self.places.report(i, f"column {name!r}, which decides the split, is empty")
        return found


def numbers(table: Cells, name: str) -> NDArray[np.float64]:
    """A column of targets as numbers; NaN where there is none."""
    values = numbers_of(table.frame[name])
    wrong = np.flatnonzero(~usable(values)).tolist()
    cells = table[name] if wrong else []
    for i in wrong:
        if not is_missing(cells[i]):
            why = "not a number" if np.isnan(number_of(cells[i])) else "too large"
            table.places.report(i, f"column {name!r} is {shown(cells[i])}, {why}")
            values[i] = np.nan
    return values


def read_table(
    path: Any, columns: Sequence[str] | None, bad: BadRows[int], form: Form | None = None
) -> Cells:
    """The named columns of a CSV or Parquet file or of a DataFrame, or all of them."""
    form = form or Form()
    if columns is not None:
        columns = list(dict.fromkeys([*columns, *form.where]))
    key = None if columns is None else tuple(columns), "" if is_frame(path) else str(path)
    if key[1] and key in form.read:
        cells, reasons = form.read[key]
        bad.reasons |= reasons
        cells = replace(cells, places=replace(cells.places, bad=bad))
    else:
        cells = _read(path, columns, bad, form)
        form.read[key] = cells, dict(bad.reasons)
    frame = cells.frame
    wanted = np.ones(len(frame), dtype=bool)
    for name, value in form.where.items():
        if name not in frame:
            raise missing_name(bad.source, "column", name, frame)
        wanted &= np.array(each(text_of, cells_of(frame[name])), dtype=object) == value
    if wanted.all():
        return Cells(frame, cells.places)
    places = cells.places.at(np.flatnonzero(wanted).tolist())
    bad.reasons = {row: bad.reasons[row] for row in places.numbers if row in bad.reasons}
    return Cells(frame[wanted], places)


def _read(path: Any, columns: Sequence[str] | None, bad: BadRows[int], form: Form) -> Cells:
    if is_frame(path):
        cells = frame_cells(path, columns, bad)
    elif form.suffix(path) in PARQUET:
        cells = _read_parquet(path, columns, bad)
    else:
        cells = _read_csv(path, columns, bad)
    if not form.na:
        return cells
    known = {
        name: [None if str(cell).strip() in form.na else cell for cell in cells[name]]
        for name in cells.frame
    }
    return replace(cells, frame=pd.DataFrame(known, columns=cells.frame.columns, dtype=object))


def frame_cells(
    frame: Any, columns: Sequence[str] | None, bad: BadRows[int], source: str = ""
) -> Cells:
    """The named columns of a DataFrame, or all of them."""
    names = [str(name).strip() for name in frame.columns]
    places = _places(source or bad.source, names, columns)
    table = frame if isinstance(frame, pd.DataFrame) else frame.to_pandas()
    found = table.iloc[:, list(places.values())].set_axis(list(places), axis=1)
    return Cells(found.reset_index(drop=True), Places(range(1, len(found) + 1), None, bad))


def _read_csv(path: Path, columns: Sequence[str] | None, bad: BadRows[int]) -> Cells:
    records = _csv_records(path)
    _, header = next(records, (0, []))
    names = [name.strip() for name in header]
    if not names:
        raise DataError(f"{path}: the file is empty; expected a header line and rows")
    places = _places(str(path), names, columns)
    wanted, kept, lines = list(places.values()), list[list[str]](), list[int]()
    for row, (line, fields) in enumerate(records, start=1):
        if len(fields) != len(names):
            why = f"{len(fields)} fields where the header has {len(names)}"
            bad.add(row, why, f"data row {row} (line {line})")
            fields += [""] * (len(names) - len(fields))
        kept.append([fields[place] for place in wanted])
        lines.append(line)
    frame = pd.DataFrame(kept, columns=list(places), dtype=object)
    return Cells(frame, Places(range(1, len(lines) + 1), lines, bad))


def _csv_records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(first line, fields) of each record that is not blank; the first one is the header."""
    line = 0
    try:
        with opened(path) as data:
            file = io.TextIOWrapper(data, encoding="utf-8-sig", newline="")
            header = file.readline(LONGEST)
            # A comma, unless the header has none but is split by tabs or semicolons.
            mark = next((mark for mark in ",\t;" if mark in header), ",")
            file.seek(0)

            def lines() -> Iterator[str]:
                while text := file.readline(LONGEST):
                    if "\0" in text or len(text) == LONGEST:
                        place = f"{path}, line {reader.line_num + 1}"
                        raise DataError(f"{place}: not a text file; export it as CSV")
                    yield text

            reader = csv.reader(lines(), delimiter=mark, strict=True)
            for fields in reader:
                if fields:
                    yield line + 1, fields
                line = reader.line_num
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, after line {line}: not UTF-8 text; export it as UTF-8 CSV"
        ) from error
    except csv.Error as error:
        raise DataError(
            f"{path}, after line {line}: not a CSV file ({error}); repair it"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the file") from error


def _places(source: str, names: list[str], columns: Sequence[str] | None) -> dict[str, int]:
    """Where each wanted column stands."""
    if columns is None and "" in names:
        # pandas writes its row numbers as a column without a name: never what a model should see.
        raise DataError(
            f"{source}: column {names.index('') + 1} has no name; name it, or list the columns to "
            "use as inputs"
        )
    counts, places = Counter(names), {name: place for place, name in enumerate(names)}
    for name in names if columns is None else columns:
        if name not in counts:
            raise missing_name(source, "column", name, names)
        if counts[name] > 1:
            raise DataError(f"{source}: more than one column is named {name!r}; rename them")
    return {name: places[name] for name in (names if columns is None else columns)}


def _read_parquet(path: Path, columns: Sequence[str] | None, bad: BadRows[int]) -> Cells:
    with needed("files", "reading Parquet files"):
        from pyarrow import parquet

    try:
        with opened(path) as file:
            about = parquet.read_metadata(file)
            size = about.num_rows * about.num_columns * CELL_BYTES
            check_memory(size, f"{path}: unpacked, it", DataError)
            texts = text_columns(about.schema.to_arrow_schema())
            file.seek(0)
            read = parquet.read_table(file, read_dictionary=texts, partitioning=None)
            cells = frame_cells(read.to_pandas(), columns, bad, str(path))
            for name in set(texts) & set(cells.frame):
                cells[name]  # some damage shows only when a text is looked at
            return cells
    except DataError:
        raise
    except Exception as error:  # a damaged file surfaces as almost any exception of the reader
        raise DataError(
            f"{path}: not a readable Parquet file ({reason_of(error)}); save it again"
        ) from error


def text_columns(schema: Any) -> list[str]:
    """Columns of texts, to be read as dictionaries: a file may hold a long text once for all."""
    kinds = ("string", "large_string", "binary", "large_binary")
    return [field.name for field in schema if str(field.type) in kinds]


def is_there(path: Path) -> bool:
    """Whether it is a file, or may be one inside an archive."""
    return is_file(path) or _archive(path) is not None


def is_place(path: Path) -> bool:
    """Whether it is a file or a folder, or leads into an archive."""
    return there(path) or _archive(path) is not None


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The file for reading bytes, also one inside an archive: ``data.zip/folder/rows.csv``."""
    archive = None if is_file(path) else _archive(path)
    if archive is None:
        with path.open("rb") as file:
            yield file
    else:
        yield io.BytesIO(_member(archive, path.relative_to(archive).as_posix()))


def _archive(path: Path) -> Path | None:
    return next((p for p in path.parents if p.suffix.lower() == ".zip" and is_file(p)), None)


def _member(archive: Path, name: str) -> bytes:
    """The content of one file of an archive; no more is unpacked than its directory says."""
    try:
        with zipfile.ZipFile(archive) as file:
            names = sorted(info.filename for info in file.infolist() if not info.is_dir())
            if name not in names:
                raise missing_name(str(archive), "file", name, names)
            size = file.getinfo(name).file_size
            check_memory(PARSED * size, f"{archive}, {name}: unpacked, it", DataError)
            return file.read(name)
    except DataError:
        raise
    except Exception as error:  # zipfile and its decompressors raise many kinds of error
        raise DataError(
            f"{archive}, {name}: cannot be read ({reason_of(error)[:100]}); check the archive"
        ) from error
