"""One table, four forms: terminal, CSV, Markdown and LaTeX.

Names are text in every form: whatever a client is called, it cannot become markup.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from fedgradnorm._errors import ConfigError


@dataclass(frozen=True)
class Cell:
    """What is shown, and the plain numbers behind it by a suffix of the column's name.

    ``variant`` and ``task`` say what it is about, for a page that can hide it; ``higher``, for one
    that sorts, that more is better; ``scale`` is the scale of a small plot of the interval.
    """

    text: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    bold: bool = False
    variant: str = ""
    task: str = ""
    higher: bool = False
    scale: tuple[float, float] | None = None


BLANK = Cell("-")
"""Nothing to say here."""


@dataclass(frozen=True)
class Grid:
    """A table with a name, column titles, rows in groups, and notes that say how to read it.

    Columns in ``minor`` are left out where there is little room: on phones and on paper. Of a
    ``whole`` grid, such as a sweep, no column is left out in a terminal either.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    groups: tuple[tuple[tuple[Cell, ...], ...], ...]
    notes: tuple[str, ...] = ()
    minor: tuple[str, ...] = ()
    whole: bool = False

    @property
    def rows(self) -> list[tuple[Cell, ...]]:
        return [row for group in self.groups for row in group]

    def right(self, column: int) -> bool:
        """Whether a column is of numbers and so stands to the right."""
        return any(row[column].numbers for row in self.rows)

    def without_blank(self) -> Grid:
        kept = [n for n in range(len(self.columns)) if any(row[n] != BLANK for row in self.rows)]
        groups = tuple(tuple(tuple(row[n] for n in kept) for row in group) for group in self.groups)
        return replace(self, columns=tuple(self.columns[n] for n in kept), groups=groups)

    @cached_property
    def csv_columns(self) -> list[list[str]]:
        """The names of the CSV columns that each column becomes: one for each of its numbers."""
        names = []
        for number, title in enumerate(self.columns):
            plain = re.sub(r"[^\w.]+", "_", title.lower()).strip("_")
            suffixes = dict.fromkeys(s for row in self.rows for s in row[number].numbers)
            names.append([f"{plain}{suffix}" for suffix in suffixes] or [plain])
        return names

    def csv_cells(self, row: Sequence[Cell], column: int) -> list[str]:
        """The contents of these CSV columns: numbers with twelve digits, or the text."""
        suffixes = dict.fromkeys(s for other in self.rows for s in other[column].numbers)
        if not suffixes:
            return [spreadsheet_text(row[column].text)]
        values = [row[column].numbers.get(suffix, math.nan) for suffix in suffixes]
        return ["" if math.isnan(value) else f"{value:.12g}" for value in values]


def spreadsheet_text(text: str) -> str:
    """Text for a CSV cell; a spreadsheet takes it for text, too, and not for a formula.

    >>> spreadsheet_text("=1+1"), spreadsheet_text("fedrep"), spreadsheet_text("-0.5")
    ("'=1+1", 'fedrep', '-0.5')
    """
    if not text.startswith(("=", "+", "-", "@", "\t", "\r")) or text == "-":
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


GAP = 2
"""Spaces between two columns of a terminal."""

SENTENCE = 30
"""Text in a column to the right of numbers is wrapped if it is longer."""


def to_terminal(grid: Grid, width: int = 120) -> list[Table | Text]:
    """One table that fits into ``width``, with its notes, for a terminal.

    No name and no number is cut: labels are wrapped between words, and the last columns that do not
    fit are only named. Of a ``whole`` grid they follow in further tables. A name that repeats the
    one above it is left out.
    """
    numbers = [place for place in range(len(grid.columns)) if grid.right(place)]
    labels = range(numbers[0] if numbers else len(grid.columns))
    widths = [_width(grid, place) for place in range(len(grid.columns))]
    for place in labels:
        texts = (grid.columns[place], *(row[place].text for row in grid.rows))
        least = max(12, *(cell_len(word) for text in texts for word in text.split()))
        widths[place] = min(widths[place], max(least, width // 3 - GAP))
    blocks: list[list[int]] = [[]]
    free = full = width - sum(widths[place] + GAP for place in labels)
    for place in range(len(labels), len(grid.columns)):
        if not grid.right(place) and widths[place] > SENTENCE:  # it can be wrapped
            widths[place] = max(SENTENCE, min(widths[place], free))
        if blocks[-1] and widths[place] > free:
            blocks.append([])
            free = full
        blocks[-1].append(place)
        free -= widths[place] + GAP
    drawn = blocks if grid.whole else blocks[:1]
    rest = [grid.columns[place] for block in blocks[len(drawn) :] for place in block]
    more = [f"more in the files and on the page: {', '.join(rest)}"] if rest else []
    shown: list[Table | Text] = [Text(grid.title, style="bold")]
    for block in drawn:
        shown += [_table(grid, [*labels, *block], widths), Text()]
    return [*shown, *map(Text, (*grid.notes, *more)), *([Text()] if grid.notes or more else ())]


def _table(grid: Grid, places: Sequence[int], widths: Sequence[int]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, GAP - 1, 0, 0), show_edge=False)
    for place in places:
        side: Literal["left", "right"] = "right" if grid.right(place) else "left"
        title = Text(grid.columns[place], overflow="fold")
        table.add_column(title, justify=side, min_width=widths[place], max_width=widths[place])
    apart = len(grid.groups) > 1 and any(len(group) > 1 for group in grid.groups)
    for group in grid.groups:
        for number, row in enumerate(group):
            cells = [Text(row[p].text, style="bold" if row[p].bold else "") for p in places]
            if number > 0 and row[0] == group[number - 1][0]:
                cells[0] = Text("")
            table.add_row(*cells, end_section=apart and number + 1 == len(group))
    return table


def _width(grid: Grid, column: int) -> int:
    """What a column needs: titles may be wrapped between words, what stands below them not."""
    texts = (*grid.columns[column].split(), *(row[column].text for row in grid.rows))
    return max(map(cell_len, texts), default=0)


def to_csv(grid: Grid) -> str:
    """Numbers with twelve digits, one column for each; texts where a column has no numbers."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([name for names in grid.csv_columns for name in names])
    for row in grid.rows:
        places = range(len(grid.columns))
        writer.writerow([text for place in places for text in grid.csv_cells(row, place)])
    return buffer.getvalue()


def to_markdown(grid: Grid) -> str:
    marks = ["---:" if grid.right(number) else "---" for number in range(len(grid.columns))]
    lines = [[_markdown(title) for title in grid.columns], marks]
    for row in grid.rows:
        texts = [_markdown(cell.text) for cell in row]
        lines.append([f"**{t}**" if c.bold else t for t, c in zip(texts, row, strict=True)])
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = "".join(f"\n{_markdown(note)}\n" for note in grid.notes)
    return f"**{_markdown(grid.title)}**\n\n{body}\n{notes}"


def _markdown(text: str) -> str:
    plain = " ".join(text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").split())
    return re.sub(r"([\\`*_|\[\]~])", r"\\\1", plain)


def to_latex(grid: Grid) -> str:
    """A tabular for the package booktabs; its title and notes are comments."""
    from pandas import DataFrame  # which takes a second; a terminal does not need it

    kinds = "".join("r" if grid.right(number) else "l" for number in range(len(grid.columns)))
    frame = DataFrame([[cell.text for cell in row] for row in grid.rows], columns=grid.columns)
    text: str = frame.to_latex(index=False, escape=True, column_format=kinds)
    told = "".join(f"% {' '.join(note.split())}\n" for note in (grid.title, *grid.notes))
    return told + text.replace("±", r"$\pm$").replace("Δ", r"$\Delta$")


FORMS = {"csv": to_csv, "md": to_markdown, "tex": to_latex}
"""The forms that are files, by their ending."""


def write_grids(grids: Sequence[Grid], folder: Path) -> list[Path]:
    """Every grid in every form, as ``folder/NAME.ENDING``."""
    from fedgradnorm._runs.checkpoint import write_atomically  # which needs torch; a table does not

    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for grid in grids:
            for ending, form in FORMS.items():
                path = folder / f"{grid.name}.{ending}"
                write_atomically(path, form(grid).encode())
                written.append(path)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from error
    return written
