"""``report``: runs side by side."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fedgradnorm._cli.output import check_picture, say
from fedgradnorm._cli.training_commands import show_runs
from fedgradnorm._runs.layout import REPORT


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run folders, or folders that hold some."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="The page (.html), or a figure: .png, .pdf or .svg.",
            show_default=False,
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open what was written.")] = False,
) -> None:
    """Show runs side by side: a table, and a page of curves that needs nothing but a browser.

    Runs of one method are taken as its seeds. Without --out the page is report.html in the folder
    given, or in the working folder where there are several. It is one file and works offline. What
    is unfinished or damaged is said, and shown as far as it goes.
    `fedgradnorm watch` follows runs while they are being trained.

    Examples:

    - `fedgradnorm report runs/radcom-compare --open`

    - `fedgradnorm report runs/radcom-compare --out figure.pdf`
    """
    path = out or (runs[0] if len(runs) == 1 else Path()) / REPORT
    if path.suffix.lower() in (".html", ".htm"):
        _show_page(runs, path)
    else:
        check_picture(path)
        show_runs(runs, path)
    if show:
        webbrowser.open(path.resolve().as_uri())


def _show_page(places: list[Path], path: Path) -> None:
    """Write the page; print its table, its notes and its headline."""
    from fedgradnorm._report.grid import to_terminal
    from fedgradnorm._report.headline import headline
    from fedgradnorm._report.page import write_page
    from fedgradnorm._report.tables import shown_grids

    page = write_page(places, path)
    if page.crowd is not None:
        say(to_terminal(page.crowd))
    elif len(page.report.frame):
        say(to_terminal(shown_grids(page.report)[0]))
    for line in page.report.notes:
        say(line)
    say(Text(headline(page.report.frame)))
    say(f"page: {path}")
