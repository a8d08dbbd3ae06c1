"""Many methods on the page: first their order, by mean gain over the tasks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fedgradnorm._report.arms import LOSS, SCORE
from fedgradnorm._report.colours import Look, key
from fedgradnorm._report.comparison import Comparison
from fedgradnorm._report.grid import Cell
from fedgradnorm._report.ranking import MANY, Rank, ranking, sight
from fedgradnorm._report.tables.comparison_grids import delta_cell, worst_cells
from fedgradnorm._stored.groups import Group

_TITLES = (
    "Rank",
    "Method",
    "Δm held-out",
    "Δm training loss",
    "Worst task",
    "Its gain",
    "Server sees",
)


def is_many(comparison: Comparison | None) -> bool:
    """Whether the methods are too many to be looked at one by one."""
    return comparison is not None and not comparison.points and len(comparison.arms) > MANY


def ranking_html(comparison: Comparison, groups: Sequence[Group], looks: Sequence[Look]) -> str:
    """A line per method, the largest gain on held-out data first."""
    place = {one.label: number for number, one in enumerate(groups)}
    body = "".join(
        _line(comparison, rank, number, place[rank.arm.name], looks)
        for number, rank in enumerate(ranking(comparison, SCORE), 1)
    )
    head = "".join(
        f'<th scope="col" aria-sort="none"><button type="button">{title}</button></th>'
        for title in _TITLES
    )
    about = (
        f"Δm: mean over tasks of the gain against {comparison.baseline}, in %, ± half the 95% "
        "interval over seeds. More is better. Faded lines are switched off below."
    )
    return (
        f'<section id="ranking"><h2>Ranking</h2><div class="about"><p>{escape(about)}</p></div>'
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        "</div></section>"
    )


def _line(
    comparison: Comparison, rank: Rank, number: int, place: int, looks: Sequence[Look]
) -> str:
    arm = rank.arm
    contest = comparison.against(arm, comparison.baseline)
    task, gain = worst_cells(contest, SCORE)
    base = Cell("baseline") if rank.base else None
    cells = [base or delta_cell(contest, SCORE), base or delta_cell(contest, LOSS), task, gain]
    shown = "".join(_cell(cell) for cell in cells)
    return (
        f'<tr data-within="0" data-methods="{place}"><td data-value="{number}">{number}</td>'
        f'<td data-value="{place}">{key(looks[place])}{escape(arm.label)}</td>{shown}'
        f"<td>{escape(sight(arm.method) or '?')}</td></tr>"
    )


def _cell(cell: Cell) -> str:
    first = cell.numbers.get("")
    value = f' data-value="{-first:.8g}"' if first is not None and first == first else ""
    return f"<td{value}>{escape(cell.text)}</td>"
