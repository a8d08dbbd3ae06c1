"""``report`` and ``export``: what becomes of trained runs."""

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


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="Whose network and head.")],
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="Where to, such as model.pt2 or model.onnx.")
    ],
) -> None:
    """Write one client of a run as one program that takes raw inputs.

    It holds the scaling, the network, the client's statistics and its head. A .pt2 file needs
    PyTorch alone: `torch.export.load("model.pt2").module()(x)`. A .onnx file has input x and output
    y. It is read back and compared with the run before it is written.

    Examples:

    - `fedgradnorm export runs/radcom-fedgradnorm-seed0 modulation model.pt2`
    - `fedgradnorm export runs/radcom-fedgradnorm-seed0 modulation model.onnx`
    """
    from fedgradnorm._runs.loading import load

    say(f"program: {load(run).export(client, path)}")


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
