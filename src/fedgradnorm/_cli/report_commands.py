"""``report``: runs side by side."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from fedgradnorm._cli.output import check_picture
from fedgradnorm._cli.report_files import EVERY, is_page, keep_fresh, show_page
from fedgradnorm._cli.training_commands import show_runs
from fedgradnorm._errors import ConfigError
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
    watch: Annotated[
        bool, typer.Option("--watch", help="Write the page again while runs go on, until Ctrl-C.")
    ] = False,
) -> None:
    """Show runs side by side: a table, and a page of curves that needs nothing but a browser.

    Runs of one method are taken as its seeds. Without --out the page is report.html in the folder
    given, or in the working folder where there are several. It is one file and works offline. What
    is unfinished or damaged is said, and shown as far as it goes. With --watch an open page shows
    what is new by itself, until all runs are finished.

    Examples:

    - `fedgradnorm report runs/radcom-compare --open`

    - `fedgradnorm report runs/radcom-compare --out figure.pdf`
    """
    path = out or (runs[0] if len(runs) == 1 else Path()) / REPORT
    if watch and not is_page(path):
        raise ConfigError(f"{path}: --watch keeps a page fresh; its name must end in .html")
    if is_page(path):
        show_page(runs, path, refresh=EVERY if watch else 0)
    else:
        check_picture(path)
        show_runs(runs, path)
    if show:
        webbrowser.open(path.resolve().as_uri())
    if watch:
        keep_fresh(runs, path)
