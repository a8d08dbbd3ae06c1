"""``theory``: the paper's convergence claims, one by one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from fedgradnorm._cli.output import check_picture, err, say

if TYPE_CHECKING:
    from fedgradnorm._theory.findings import Claim, Finding

COLOURS = {"holds": "green", "holds with a floor": "yellow", "does not hold": "red"}


def theory(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The figure: .png, .pdf or .svg.")
    ] = Path("theory.png"),
) -> None:
    """Check the convergence claims on convex problems with known answers, and draw a figure.

    Takes less than a minute, needs no data. Every row of the table is a claim, whether it holds
    (perhaps only down to a floor), and what was measured. docs/theory.md explains them.
    """
    from fedgradnorm._report.figures.theory_figure import theory_figure
    from fedgradnorm._theory.claims import STUDIES

    check_picture(out)
    findings: list[Finding] = []
    with err.status("") as status:
        for name, study in STUDIES.items():
            status.update(name)
            findings.append(study())
    say(_table([claim for finding in findings for claim in finding.claims]))
    panels = [panel for finding in findings for panel in finding.panels]
    say(f"figure: {theory_figure(panels, out)}")


def _table(claims: list[Claim]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_lines=True, expand=True)
    for title in ("", "claim", "verdict", "measured"):
        table.add_column(title, ratio={"claim": 2, "measured": 3}.get(title))
    for claim in claims:
        verdict = Text(claim.verdict, COLOURS[claim.verdict])
        table.add_row(claim.key, claim.statement, verdict, claim.measured)
    return table
