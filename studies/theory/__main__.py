"""``make theory``: the paper's convergence claims, one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from fedgradnorm._cli.output import Commands, err, say
from fedgradnorm._errors import ConfigError
from fedgradnorm._report.figures import check_format
from fedgradnorm._runs.layout import temporary
from studies.theory import claims
from studies.theory.figure import theory_figure
from studies.theory.findings import Claim, Finding

COLOURS = {"holds": "green", "holds with a floor": "yellow", "does not hold": "red"}

app = typer.Typer(cls=Commands, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def theory(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The figure: .png, .pdf or .svg.")
    ] = Path("theory.png"),
) -> None:
    """Check the convergence claims on convex problems with known answers, and draw a figure.

    Takes about a minute and needs no data. Every row of the table is a claim, whether it holds
    (perhaps only down to a floor), and what was measured. docs/theory.md explains them.
    """
    check_place(out)
    findings: list[Finding] = []
    with err.status("") as status:
        for name, study in claims.STUDIES.items():
            status.update(name)
            findings.append(study())
    say(_table([claim for finding in findings for claim in finding.claims]))
    panels = [panel for finding in findings for panel in finding.panels]
    say(f"figure: {theory_figure(panels, out)}")


def check_place(path: Path) -> None:
    """Refuse an ending or a place that the figure could not be written to after the work."""
    check_format(path)
    try:
        if path.is_dir():
            raise ConfigError(f"--out {str(path)!r} is a folder; name a file in it")
        path.parent.mkdir(parents=True, exist_ok=True)
        here = temporary(path)  # the figure's own first name: longer than its last
        here.touch()
        here.unlink()
    except OSError as error:
        raise ConfigError(f"--out {str(path)!r} cannot be written: {error.strerror}") from error


def _table(claims: list[Claim]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_lines=True, expand=True)
    for title in ("", "claim", "verdict", "measured"):
        table.add_column(title, ratio={"claim": 2, "measured": 3}.get(title))
    for claim in claims:
        verdict = Text(claim.verdict, COLOURS[claim.verdict])
        table.add_row(claim.key, claim.statement, verdict, claim.measured)
    return table


if __name__ == "__main__":
    app(prog_name="python -m studies.theory")
