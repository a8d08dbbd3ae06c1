"""``report`` and ``export``: what becomes of trained runs."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from fedgradnorm._cli.output import say, show_page, show_report
from fedgradnorm._errors import ConfigError
from fedgradnorm._runs.layout import REPORT


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run folders, or folders of runs."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page (.html).", show_default=False)
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open what was written.")] = False,
) -> None:
    """Show runs side by side: a table, and a page of curves for any browser.

    Runs of the same method are treated as its seeds. Without --out, the page is report.html in the
    given folder, or in the working folder if there are several. It is one file and works offline.
    Unfinished and damaged runs are listed, and shown as far as they go. For figures as files, use
    `fedgradnorm compare --from RUN`; to follow runs during training, use `fedgradnorm watch`.

    Example:

    - `fedgradnorm report runs/radcom-compare --open`
    """
    from fedgradnorm._report.page import write_page

    path = out or (runs[0] if len(runs) == 1 else Path()) / REPORT
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(
            f"{path}: a page's name must end in .html; for figures use `compare --from`"
        )
    page = write_page(runs, path)
    show_report(page.report)
    show_page(page, path)
    if show:
        webbrowser.open(path.resolve().as_uri())


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="The client to export.")],
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The file, such as model.pt2.")],
) -> None:
    """Write one client of a run as a program that takes raw inputs.

    It contains the scaling, the network, the client's statistics and its head, and needs PyTorch
    alone: `torch.export.load("model.pt2").module()(x)`. `torch.onnx.export` turns it into an ONNX
    model. The program is compared with the run before it is written.

    Example:

    - `fedgradnorm export runs/radcom-fedgradnorm-seed0 modulation model.pt2`
    """
    from fedgradnorm._runs.loading import load

    say(f"program: {load(run).export(client, path)}")
