"""The comparison's further tables on the page: tests, gains, spread and cost, all sortable."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from fedgradnorm._errors import RunFolderError
from fedgradnorm._report.cells import blank
from fedgradnorm._report.colours import Look, key
from fedgradnorm._report.comparison import Comparison, comparison_of
from fedgradnorm._report.grid import Cell, Grid
from fedgradnorm._report.page.ranking_table import is_many
from fedgradnorm._report.tables.comparison_grids import shown_grids
from fedgradnorm._stored.groups import Group
from fedgradnorm._stored.reader import StoredRun

Row = Sequence[Cell]
Places = Mapping[tuple[int, str], int]
"""The first row in which a text stands in a column."""

LONG = 30
"""A table of more rows than this starts folded."""

_ABOUT = "The switches above leave lines out; means over tasks and tests are of all that took part."


def compared(runs: Sequence[StoredRun]) -> Comparison | None:
    """The comparison that these runs make, where there is anything to compare."""
    try:
        comparison = comparison_of([run for run in runs if run.rows])
    except RunFolderError:
        return None
    return comparison if len(comparison.arms) > 1 else None


def grids_html(
    comparison: Comparison | None,
    groups: Sequence[Group],
    tasks: Sequence[str],
    looks: Sequence[Look],
) -> str:
    """The tables that ``compare`` shows, where there is anything to compare; long ones folded."""
    if comparison is None:
        return ""
    drawn = _Drawn(_switches(comparison, groups), tasks, looks, fold=is_many(comparison))
    tables = "".join(drawn.table(grid) for grid in shown_grids(comparison))
    about = f'<div class="about sortable"><p>{_ABOUT}</p></div>'
    return f'<section id="tests"><h2>Tests, gains and cost</h2>{about}{tables}</section>'


def crowd_html(
    grid: Grid | None, groups: Sequence[Group], tasks: Sequence[str], looks: Sequence[Look]
) -> str:
    """The table of many clients, where there are many."""
    if grid is None:
        return ""
    places = {one.label: [number] for number, one in enumerate(groups)}
    table = _Drawn(places, tasks, looks, fold=False).table(grid)
    return f'<section id="crowd"><h2>Many clients</h2>{table}</section>'


def _switches(comparison: Comparison, groups: Sequence[Group]) -> dict[str, list[int]]:
    """The page's methods, by number, that an arm of the comparison holds the runs of."""
    return {
        arm.label: [i for i, one in enumerate(groups) if one.label == arm.name]
        for arm in comparison.arms
    }


class _Drawn:
    """Grids as HTML; rows and cells know by which switches they come and go."""

    def __init__(
        self,
        methods: Mapping[str, list[int]],
        tasks: Sequence[str],
        looks: Sequence[Look],
        *,
        fold: bool,
    ) -> None:
        self.methods, self.tasks, self.looks, self.fold = methods, list(tasks), looks, fold

    def table(self, grid: Grid) -> str:
        head = "".join(
            f'<th scope="col" aria-sort="none"{_kind(grid, number)}>'
            f'<button type="button">{escape(title)}</button></th>'
            for number, title in enumerate(grid.columns)
        )
        places: dict[tuple[int, str], int] = {}
        for place, row in enumerate(grid.rows):
            for number, cell in enumerate(row):
                places.setdefault((number, cell.text), place)
        body = "".join(
            self._row(grid, row, place, places)
            for place, group in enumerate(grid.groups)
            for row in group
        )
        notes = "".join(f"<p>{escape(note)}.</p>" for note in grid.notes)
        opened = " open" if len(grid.rows) <= LONG and not self.fold else ""
        return (
            f"<details{opened}><summary>{escape(grid.title)}</summary>"
            f'<div class="scroll"><table class="grouped"><thead><tr>{head}</tr></thead>'
            f'<tbody>{body}</tbody></table></div><div class="notes">{notes}</div></details>'
        )

    def _row(self, grid: Grid, row: Row, group: int, places: Places) -> str:
        """A row goes when all its methods are off, or its task; a cell when its own method is."""
        arms = list(dict.fromkeys(cell.arm for cell in row if cell.arm))
        methods = [number for arm in arms for number in self.methods.get(arm, ())]
        tasks = [self.tasks.index(cell.task) for cell in row if cell.task in self.tasks]
        names = list(grid.columns).index("method")
        cells = []
        for number, cell in enumerate(row):
            mine = self.methods.get(cell.arm, ()) if len(arms) > 1 else ()
            mark = key(self.looks[methods[0]]) if number == names and methods else ""
            about = _kind(grid, number) + _data("methods", mine)
            cells.append(_cell(cell, about, places[number, cell.text], mark))
        switches = _data("methods", methods) + _data("tasks", tasks)
        within = _within(grid, row, group)
        return f'<tr data-group="{group}" data-within="{within}"{switches}>{"".join(cells)}</tr>'


def _within(grid: Grid, row: Row, group: int) -> int:
    """What a row is sorted within: its measure, where the rows of a group have several."""
    if "measured on" not in grid.columns:
        return group
    place = grid.columns.index("measured on")
    return list(dict.fromkeys(other[place].text for other in grid.rows)).index(row[place].text)


def _data(name: str, numbers: Sequence[int]) -> str:
    return f' data-{name}="{" ".join(map(str, numbers))}"' if numbers else ""


def _kind(grid: Grid, column: int) -> str:
    return ' class="num"' if grid.right(column) else ""


def _cell(cell: Cell, about: str, place: int, mark: str) -> str:
    """A cell with the number it sorts by, the better the smaller.

    A name sorts by where it stood first, "-" last.
    """
    first = next(iter(cell.numbers.values()), math.nan)
    named = "" if cell.numbers or cell == blank() else str(place)
    value = f"{-first if cell.higher else first:.8g}" if math.isfinite(first) else named
    text = f"<strong>{escape(cell.text)}</strong>" if cell.bold else escape(cell.text)
    return f'<td{about} data-value="{value}">{mark}{text}</td>'
