"""The study of every method: one table of both data sets, and a figure of each."""

from __future__ import annotations

from pathlib import Path

from fedgradnorm._report.frame import report_of
from report.made_runs import many
from studies.methods import methods_figure, side_grid


def test_two_data_sets_side_by_side() -> None:
    one, two = report_of(many(9)), report_of(many(10, clients=("modulation", "signal"))[:-1])
    grid = side_grid({"mtfl": one, "radcom": two})
    assert [row[0].text for row in grid.rows][:9] == one.ranking["loss"]
    assert len(grid.rows) == 10
    assert "mtfl: seeds" not in grid.columns
    missing = grid.rows[-1]
    assert missing[grid.columns.index("mtfl: Δm")].text == "-"
    assert missing[grid.columns.index("radcom: seeds")].text == "1"


def test_a_figure_of_all(tmp_path: Path) -> None:
    drawn = methods_figure(report_of(many(12, 1)), tmp_path / "methods.png")
    assert drawn.read_bytes().startswith(b"\x89PNG")
