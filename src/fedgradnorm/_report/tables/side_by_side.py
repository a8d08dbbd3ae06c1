"""The same methods on several sets of data: one table of all comparisons."""

from __future__ import annotations

from collections.abc import Mapping

from fedgradnorm._report.arms import LOSS, SCORE, Arm
from fedgradnorm._report.cells import arm_cell, blank, brief, whole, word
from fedgradnorm._report.comparison import Comparison
from fedgradnorm._report.grid import Cell, Grid
from fedgradnorm._report.ranking import ranking, sight
from fedgradnorm._report.tables.comparison_grids import (
    DELTA_NOTE,
    SIGHT_NOTE,
    delta_cell,
    interval_note,
    without_blank,
    worst_cells,
)

COLUMNS = ("Δm", "worst task", "its gain", "Δm held out", "seconds", "seeds")


def side_grid(comparisons: Mapping[str, Comparison]) -> Grid:
    """A line per method, a few columns per comparison; the best Delta_m of the first one on top."""
    order = [rank.arm for comparison in comparisons.values() for rank in ranking(comparison)]
    methods = {arm.label: arm.method for arm in order}
    columns = ("method", "server sees", *(f"{n}: {c}" for n in comparisons for c in COLUMNS))
    rows = []
    for label, method in methods.items():
        cells = [arm_cell(label), word(sight(method))]
        for comparison in comparisons.values():
            arm = next((arm for arm in comparison.arms if arm.label == label), None)
            cells += _cells(comparison, arm)
        rows.append(tuple(cells))
    notes = [f"{name}: {_about(comparison)}" for name, comparison in comparisons.items()]
    notes += [
        DELTA_NOTE + "; on training losses unless it says held out",
        SIGHT_NOTE,
    ]
    title = f"Every method on {' and '.join(comparisons)}"
    return without_blank(Grid("side-by-side", title, columns, (tuple(rows),), tuple(notes)))


def _cells(comparison: Comparison, arm: Arm | None) -> list[Cell]:
    if arm is None:
        return [blank()] * len(COLUMNS)
    contest, samples = comparison.against(arm, comparison.baseline), arm.samples.values()
    return [
        delta_cell(contest, LOSS), *worst_cells(contest, LOSS), delta_cell(contest, SCORE),
        brief([sample.seconds for sample in samples], 1),
        blank() if len(samples) == comparison.seeds else whole(len(samples)),
    ]  # fmt: skip


def _about(comparison: Comparison) -> str:
    made = f" ({comparison.synthetic})" if comparison.synthetic else ""
    return f"against {comparison.baseline}, {interval_note(comparison)}{made}"
