"""CSV and Parquet files with named columns.

CSV is read with the standard library rather than pandas: it tells the line of every record and
never guesses at rows that have too few or too many fields.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgradnorm._checks import one_of, shown
from fedgradnorm._columns import is_frame
from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm._extras import needed
from fedgradnorm._memory import check_memory
from fedgradnorm.data._bad_rows import BadRows
from fedgradnorm.data._encoding.column_kinds import (
    CategoryColumn,
    Column,
    NumberColumn,
    StepColumn,
)
from fedgradnorm.data._encoding.column_plan import ColumnPlan
from fedgradnorm.data._files.in_archive import opened
from fedgradnorm.data._files.read_rows import (
    FileRows,
    each,
    is_missing,
    label_text,
    missing_name,
    row_place,
    usable,
)
from fedgradnorm.data._files.step_rows import joined_steps
from fedgradnorm.tasks._labels.label_map import LabelMap

if TYPE_CHECKING:
    from numpy.typing import NDArray

CELL_BYTES = 40  # of memory, at least: a number as an object, the reference to it, and as a float
TABLE_SUFFIXES = (".csv", ".tsv", ".txt", ".parquet", ".pq")


FORMATS = {"csv": ".csv", "parquet": ".parquet", "npz": ".npz", "h5": ".h5"}
"""What ``format`` may say of a file, and the ending that says the same."""


@dataclass(frozen=True)
class Form:
    """What is said of a client's tables as files.

    ``format`` replaces the file's ending. ``na`` are texts that stand for no value, beside the
    usual ones. ``where`` keeps the rows in which columns have these values. Columns ``free`` may
    be empty where they decide the split.
    """

    format: str | None = None
    na: tuple[str, ...] = ()
    where: Mapping[str, str] = field(default_factory=dict)
    free: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.format is not None:
            one_of("format", self.format, tuple(FORMATS))

    def suffix(self, path: Any) -> str:
        """The ending that decides how a file is read."""
        if self.format is not None:
            return FORMATS[self.format]
        return path.suffix.lower() if isinstance(path, Path) else ""

    def applied(self, table: Table) -> Table:
        """The table with its gaps as gaps, and of its rows those that are wanted."""
        columns = table.columns
        if self.na:
            columns = {name: [self._cell(c) for c in cells] for name, cells in columns.items()}
        if not self.where:
            return replace(table, columns=columns)
        at = [i for i in range(len(table.rows)) if self._wanted(columns, i)]
        return Table(
            table.source,
            {name: [cells[i] for i in at] for name, cells in columns.items()},
            [table.rows[i] for i in at],
            None if table.lines is None else [table.lines[i] for i in at],
        )

    def _cell(self, cell: Any) -> Any:
        return None if str(cell).strip() in self.na else cell

    def _wanted(self, columns: Mapping[str, Sequence[Any]], row: int) -> bool:
        return all(_text(columns[name][row]) == value for name, value in self.where.items())


@dataclass(frozen=True)
class Table:
    """Columns by name, with the data row (and the line, for CSV) of each entry."""

    source: str
    columns: dict[str, list[Any]]
    rows: list[int]
    lines: list[int] | None = None


def read_table(
    path: Path, columns: Sequence[str] | None, bad: BadRows[int], form: Form | None = None
) -> Table:
    """The named columns of a CSV or Parquet file or of a DataFrame, or all of them."""
    form = form or Form()
    if columns is not None:
        columns = list(dict.fromkeys([*columns, *form.where]))
    if is_frame(path):
        table = frame_table(bad.source, path, columns)
    elif form.suffix(path) in (".parquet", ".pq"):
        table = _read_parquet(path, columns)
    else:
        table = _read_csv(path, columns, bad)
    for name in form.where:
        if name not in table.columns:
            raise missing_name(table.source, "column", name, list(table.columns))
    return form.applied(table)


def rows_from_table(
    path: Path,
    inputs: Sequence[str] | None,
    targets: Sequence[str],
    labels: bool,
    bad: BadRows[int],
    plan: ColumnPlan | None = None,
    marks: Sequence[str] = (),
    *,
    aside: Sequence[str] = (),
    form: Form | None = None,
) -> FileRows:
    """Inputs and targets of a table; without ``inputs``, every column but the targets is one.

    ``plan`` says what the inputs are; columns of ``marks``, which decide the split, are no inputs
    unless they are named. Columns ``aside``, the targets of other tasks, are never inputs.
    """
    plan, form = plan or ColumnPlan(), form or Form()
    wanted = None
    if inputs is not None:
        wanted = list(dict.fromkeys([*_there(inputs, plan), *plan.steps, *targets, *marks]))
    table = read_table(path, wanted, bad, form)
    for name in (*targets, *marks, *plan.steps):
        if name not in table.columns:
            raise missing_name(table.source, "column", name, list(table.columns))
    beside = {*targets, *aside, *form.where, *(name for name in marks if name not in plan.named())}
    names = [n for n in table.columns if n not in beside] if inputs is None else list(inputs)
    names = [name for name in names if name not in plan.steps]
    if not names:
        raise DataError(f"{table.source}: no input columns beside the targets {list(targets)}")
    plan.check(names, table.source)
    names += plan.steps
    found = [_input(table, plan.column(name), bad) for name in names]
    x = np.stack([codes for codes, _ in found], axis=1)
    y = table_targets(table, targets, labels, bad)
    texts = {name: known for name, (_, known) in zip(names, found, strict=True) if known}
    cells = mark_cells(table, marks, bad, form.free)
    found_rows = FileRows(x, y, table.rows, table.lines, bad, tuple(names), texts, cells)
    return joined_steps(found_rows, plan) if plan.sequence else found_rows


def _there(inputs: Sequence[str], plan: ColumnPlan) -> list[str]:
    return [name for name in inputs if name not in plan.without]


def mark_cells(
    table: Table, marks: Sequence[str], bad: BadRows[int], free: Sequence[str] = ()
) -> dict[str, list[Any]]:
    """The cells of columns that decide the split; an empty one is a bad row, but for ``free``."""
    for name in marks:
        if name in free:
            continue
        for i, empty in enumerate(each(is_missing, table.columns[name])):
            if empty:
                _report(table, i, f"column {name!r}, which decides the split, is empty", bad)
    return {name: table.columns[name] for name in marks}


def _input(
    table: Table, column: Column, bad: BadRows[int]
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """The codes of an input column, and for categories the texts that they stand for."""
    if column.absent:
        return np.full(len(table.rows), np.nan), ()
    cells = table.columns[column.name]
    known: tuple[str, ...] = ()
    if isinstance(column, StepColumn) and column.role == "sequence":
        return _sequences(table, column.name, bad), ()
    if isinstance(column, CategoryColumn):
        texts = {text for text in each(_text, cells) if text}
        known = LabelMap.seen(texts).names
        # By the file's own list: which rows train, and so which categories are known, comes later.
        column = replace(column, categories=known)
    codes = _codes(column, cells)
    for i in np.flatnonzero(~usable(codes)):
        if not is_missing(cells[i]):
            _report(table, int(i), f"column {column.name!r} {_wrong(column, cells[i])}", bad)
        elif not column.allows_gaps:
            why = f"column {column.name!r} is empty or NaN"
            filled = "fill such cells with missing='mean'"
            _report(table, int(i), why, bad, filled if column.fillable else "")
    return codes, known


def _sequences(table: Table, name: str, bad: BadRows[int]) -> NDArray[np.float64]:
    """Which sequence each row is a step of, numbered as they appear."""
    texts = each(_text, table.columns[name])
    numbers = {text: float(place) for place, text in enumerate(dict.fromkeys(texts))}
    for i, text in enumerate(texts):
        if not text:
            _report(table, i, f"column {name!r}, which tells sequences apart, is empty", bad)
    return np.array([numbers[text] if text else np.nan for text in texts])


def _codes(column: Column, cells: Sequence[Any]) -> NDArray[np.float64]:
    """The code of each cell; NaN where there is none."""

    def code(cell: Any) -> float:
        try:
            return np.nan if is_missing(cell) else column.code(cell)
        except ValueError:
            return np.nan

    number = isinstance(column, NumberColumn)
    return np.array(each(_number if number else code, cells), dtype=np.float64)


def _text(cell: Any) -> str:
    """A category; empty where there is none."""
    return "" if is_missing(cell) else str(cell).strip()


def _wrong(column: Column, cell: object) -> str:
    """What is wrong with a cell that is not empty."""
    try:
        column.code(cell)
    except ValueError as error:
        return f"is {shown(cell)}, {error}"
    return f"is {shown(cell)}"


def table_targets(
    table: Table, targets: Sequence[str], labels: bool, bad: BadRows[int]
) -> NDArray[np.float64] | list[str]:
    """Label texts of the one target column, or the numbers of all of them.

    A missing one is no label: an empty text, or NaN.
    """
    if labels:
        return [label_text(cell) for cell in table.columns[targets[0]]]
    return np.stack([numbers(table, name, bad, gaps=True) for name in targets], axis=1)


def numbers(
    table: Table, column: str, bad: BadRows[int], *, gaps: bool = False
) -> NDArray[np.float64]:
    """A column as numbers; cells that are none are reported as bad, but for missing ones."""
    cells = table.columns[column]
    values = np.array(each(_number, cells), dtype=np.float64)
    for i in np.flatnonzero(~usable(values)):
        if gaps and is_missing(cells[i]):
            continue
        _report(table, int(i), f"column {column!r} {_complaint(cells[i])}", bad)
    return values


def _number(cell: Any) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def _complaint(cell: object) -> str:
    if is_missing(cell):
        return "is empty or NaN"
    is_number = not np.isnan(_number(cell))
    return f"is {shown(cell)}, {'too large' if is_number else 'not a number'}"


def _report(table: Table, index: int, why: str, bad: BadRows[int], way_out: str = "") -> None:
    row, line = table.rows[index], None if table.lines is None else table.lines[index]
    bad.add(row, why, row_place(row, line), way_out)


def _read_csv(path: Path, columns: Sequence[str] | None, bad: BadRows[int]) -> Table:
    records = _csv_records(path)
    _, header = next(records, (0, []))
    names = [name.strip() for name in header]
    if not names:
        raise DataError(f"{path}: the file is empty; expected a header line and rows")
    places = _places(str(path), names, columns)
    pick: Any = itemgetter(*places.values()) if len(places) > 1 else None
    kept, rows, lines = list[Sequence[str]](), list[int](), list[int]()
    for row, (line, fields) in enumerate(records, start=1):
        if len(fields) != len(names):
            why = f"{len(fields)} fields where the header has {len(names)}"
            bad.add(row, why, row_place(row, line))
            fields += [""] * (len(names) - len(fields))
        rows.append(row)
        lines.append(line)
        kept.append(pick(fields) if pick else [fields[place] for place in places.values()])
    cells = {name: [one[i] for one in kept] for i, name in enumerate(places)}
    return Table(str(path), cells, rows, lines)


def _csv_records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(first line, fields) of each record that is not blank; the first one is the header."""
    line = 0
    try:
        with opened(path) as data:
            file = io.TextIOWrapper(data, encoding="utf-8-sig", newline="")
            reader = csv.reader(file, delimiter=_delimiter(file.readline()), strict=True)
            file.seek(0)
            for fields in reader:
                if "\0" in "".join(fields):
                    raise DataError(f"{path}, line {line + 1}: not a text file; export it as CSV")
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


def _delimiter(header: str) -> str:
    """A comma, unless the header has none but is split by tabs or semicolons."""
    return next((mark for mark in ",\t;" if mark in header), ",")


def _places(source: str, names: list[str], columns: Sequence[str] | None) -> dict[str, int]:
    """Where each wanted column stands."""
    if columns is None and "" in names:
        # pandas writes its row numbers as a column without a name: never what a model should see.
        raise DataError(
            f"{source}: column {names.index('') + 1} has no name; name it, or list the columns to "
            "use as inputs"
        )
    wanted = names if columns is None else columns
    for name in wanted:
        if name not in names:
            raise missing_name(source, "column", name, names)
        if names.count(name) > 1:
            raise DataError(f"{source}: more than one column is named {name!r}; rename them")
    return {name: names.index(name) for name in wanted}


def _read_parquet(path: Path, columns: Sequence[str] | None) -> Table:
    with needed("files", "reading Parquet files"):
        import pyarrow  # noqa: F401

    try:
        return _parquet_table(path, columns)
    except DataError:
        raise
    # A damaged file surfaces as almost any exception of the Parquet reader, some of them only
    # when a text is looked at.
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path}: not a readable Parquet file ({reason}); save it again") from error


def _parquet_table(path: Path, columns: Sequence[str] | None) -> Table:
    from pyarrow import parquet

    with opened(path) as file:
        about = parquet.read_metadata(file)
        needed = about.num_rows * about.num_columns * CELL_BYTES
        check_memory(needed, f"{path}: unpacked, it", DataError)
        names = text_columns(about.schema.to_arrow_schema())
        file.seek(0)
        read = parquet.read_table(file, read_dictionary=names, partitioning=None)
        return frame_table(str(path), read.to_pandas(), columns)


def text_columns(schema: Any) -> list[str]:
    """Columns of texts, to be read as dictionaries: a file may hold a long text once for all."""
    kinds = ("string", "large_string", "binary", "large_binary")
    return [field.name for field in schema if str(field.type) in kinds]


def frame_table(source: str, frame: Any, columns: Sequence[str] | None) -> Table:
    """The named columns of a pandas DataFrame, or all of them."""
    places = _places(source, [str(name).strip() for name in frame.columns], columns)
    cells = {}
    for name, place in places.items():
        series = frame.iloc[:, place]
        cells[name] = series.astype(object).where(series.notna(), None).tolist()
    return Table(source, cells, list(range(1, len(frame) + 1)))


def check_columns(
    inputs: Sequence[str] | None,
    targets: Sequence[str],
    labels: bool,
    without: Sequence[str] = (),
) -> None:
    """Refuse column lists that cannot be meant: no target, a target among inputs, doubles."""
    if not targets:
        raise ConfigError("targets must name at least one column")
    if labels and len(targets) > 1:
        raise ConfigError(f"a classification has one target column, not {list(targets)}")
    for what, names in (("inputs", inputs or ()), ("targets", targets)):
        doubles = [name for name in names if list(names).count(name) > 1]
        if doubles:
            raise ConfigError(f"{what} names column {doubles[0]!r} more than once")
    both = [name for name in inputs or () if name in targets and name not in without]
    if both:
        raise ConfigError(
            f"column {both[0]!r} is both an input and a target; leave it out of one, or say "
            f"without = [{both[0]!r}] where other clients have it as an input"
        )
