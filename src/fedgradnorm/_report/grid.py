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

from rich import box
from rich.table import Table
from rich.text import Text

from fedgradnorm._errors import ConfigError
from fedgradnorm._runs.checkpoint import write_atomically


@dataclass(frozen=True)
class Cell:
    """What is shown, and the plain numbers behind it by a suffix of the column's name.

    ``variant`` and ``task`` say what it is about, for a page that can hide it; ``higher``, for one
    that sorts, that more is better; ``scale`` is the scale of a small plot of the
    interval; ``dots`` are the places and names of points in another.
    """

    text: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    bold: bool = False
    variant: str = ""
    task: str = ""
    higher: bool = False
    scale: tuple[float, float] | None = None
    dots: tuple[tuple[float, str], ...] = ()


BLANK = Cell("-")
"""Nothing to say here."""


@dataclass(frozen=True)
class Grid:
    """A table with a name, column titles, rows in groups, and notes that say how to read it.

    Columns in ``minor`` are left out where there is little room: on phones and on paper.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    groups: tuple[tuple[tuple[Cell, ...], ...], ...]
    notes: tuple[str, ...] = ()
    minor: tuple[str, ...] = ()

    @property
    def rows(self) -> list[tuple[Cell, ...]]:
        """All rows, one group after the other."""
        return [row for group in self.groups for row in group]

    def right(self, column: int) -> bool:
        """Whether a column is of numbers and so stands to the right."""
        return any(row[column].numbers for row in self.rows)

    def without_blank(self) -> Grid:
        """The grid without columns in which nothing stands."""
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
        """What stands in these CSV columns: numbers with twelve digits, or the text."""
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


def to_terminal(grid: Grid) -> Table:
    """For a terminal; a name that repeats the one above it is left out."""
    table = Table(
        title=grid.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False,
        caption="\n".join(grid.notes) or None, caption_justify="left",
    )  # fmt: skip
    for number, title in enumerate(grid.columns):
        table.add_column(
            Text(title, overflow="fold"),
            justify="right" if grid.right(number) else "left",
            min_width=_width(grid, number),
        )
    apart = len(grid.groups) > 1 and any(len(group) > 1 for group in grid.groups)
    for group in grid.groups:
        for number in range(len(group)):
            end = apart and number + 1 == len(group)
            table.add_row(*_texts(group, number), end_section=end)
    return table


def _width(grid: Grid, column: int) -> int:
    """Titles may be wrapped, what stands below them not."""
    return max((len(row[column].text) for row in grid.rows), default=0)


def _texts(group: Sequence[Sequence[Cell]], number: int) -> list[Text]:
    row = group[number]
    repeats = number > 0 and row[0] == group[number - 1][0]
    shown = [Text(cell.text, style="bold" if cell.bold else "") for cell in row]
    return [Text(""), *shown[1:]] if repeats else shown


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
    """For a README or a forge's page."""
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
    """A tabular with booktabs' rules and a caption."""
    kinds = "".join("r" if grid.right(number) else "l" for number in range(len(grid.columns)))
    groups = [
        "".join(f"{' & '.join(_latex_cell(cell) for cell in row)} \\\\\n" for row in group)
        for group in grid.groups
    ]
    head = " & ".join(_latex(title) for title in grid.columns)
    caption = _latex(" ".join((f"{grid.title}.", *(f"{note}." for note in grid.notes))))
    return (
        "% needs \\usepackage{booktabs}\n"
        f"\\begin{{table}}\n\\caption{{{caption}}}\n\\begin{{tabular}}{{{kinds}}}\n\\toprule\n"
        f"{head} \\\\\n\\midrule\n" + "\\midrule\n".join(groups) + "\\bottomrule\n"
        "\\end{tabular}\n\\end{table}\n"
    )


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}",
    "±": r"$\pm$", "Δ": r"$\Delta$", "≥": r"$\geq$", "≤": r"$\leq$", "·": r"$\cdot$",
}  # fmt: skip


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))


def _latex_cell(cell: Cell) -> str:
    text = _latex(cell.text)
    return f"\\textbf{{{text}}}" if cell.bold else text


FORMS = {"csv": to_csv, "md": to_markdown, "tex": to_latex}
"""The forms that are files, by their ending."""


def write_grids(grids: Sequence[Grid], folder: Path) -> list[Path]:
    """Every grid in every form, as ``folder/NAME.ENDING``."""
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
