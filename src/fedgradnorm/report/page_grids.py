"""The comparison's further tables on the page: tests, gains, spread and cost, all sortable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from fedgradnorm.errors import RunFolderError
from fedgradnorm.report.comparison import comparison_of
from fedgradnorm.report.comparison_grids import shown_grids
from fedgradnorm.report.grid import Cell, Grid
from fedgradnorm.report.page_runs import PageRun


def grids_html(runs: Sequence[PageRun]) -> str:
    """The tables that ``compare`` shows, where there is anything to compare."""
    try:
        comparison = comparison_of([run for run in runs if run.rows])
    except RunFolderError:
        return ""
    if len(comparison.arms) < 2:
        return ""
    tables = "".join(_table(grid) for grid in shown_grids(comparison))
    return f'<section id="tests"><h2>Tests, gains and cost</h2>{tables}</section>'


def _table(grid: Grid) -> str:
    head = "".join(
        f'<th scope="col" aria-sort="none"{_kind(grid, number)}>'
        f'<button type="button">{escape(title)}</button></th>'
        for number, title in enumerate(grid.columns)
    )
    places = {row[0].text: place for place, row in reversed(list(enumerate(grid.rows)))}
    body = "".join(
        f"<tr{' class=first' if number == 0 and place else ''}>"
        + "".join(_cell(cell, _kind(grid, n), places) for n, cell in enumerate(row))
        + "</tr>"
        for place, group in enumerate(grid.groups)
        for number, row in enumerate(group)
    )
    notes = "".join(f"<p>{escape(note)}.</p>" for note in grid.notes)
    return (
        f"<details open><summary>{escape(grid.title)}</summary>"
        f'<div class="scroll"><table class="sortable-table"><thead><tr>{head}</tr></thead>'
        f'<tbody>{body}</tbody></table></div><div class="notes">{notes}</div></details>'
    )


def _kind(grid: Grid, column: int) -> str:
    return ' class="num"' if grid.right(column) else ""


def _cell(cell: Cell, kind: str, places: dict[str, int]) -> str:
    """A cell with the number it sorts by; a name in the first column sorts by where it stood."""
    first = next(iter(cell.numbers.values()), math.nan)
    value = f"{first:.8g}" if math.isfinite(first) else str(places.get(cell.text, ""))
    text = f"<strong>{escape(cell.text)}</strong>" if cell.bold else escape(cell.text)
    return f'<td{kind} data-value="{value}">{text}</td>'
