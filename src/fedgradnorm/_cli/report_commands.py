"""``report`` and ``methods``."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from fedgradnorm._cli.output import check_picture, say
from fedgradnorm._cli.report_files import EVERY, is_page, keep_fresh, show_page
from fedgradnorm._cli.training_commands import show_runs
from fedgradnorm._errors import ConfigError
from fedgradnorm._runs.layout import REPORT
from fedgradnorm.experiments._config.meanings import meanings

if TYPE_CHECKING:
    from fedgradnorm._methods import Method


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


def methods(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Show this one.", show_default=False)
    ] = None,
) -> None:
    """List the methods; with a NAME, show that one's options and what it fixes.

    "Server sees" is beside the sum of the weighted updates, which every server that shares a
    network sees. "Keeps" is how many numbers per client it carries from round to round, "cost" its
    work in a round with N clients and D shared parameters. "Sums" says whether sums over the
    clients are enough for the method, so that a federation can be private.
    """
    from fedgradnorm._methods import METHODS, find_method

    if name is not None:
        _describe(find_method(name))
        return
    table = Table(box=box.SIMPLE_HEAD)
    for title in ("method", "what it does", "server sees", "keeps", "cost", "sums", "source"):
        table.add_column(title, no_wrap=title == "method")
    for method in METHODS.values():
        keeps = str(len(method.state) or "-")
        sums = "no" if method.beyond_sums else "yes"
        row = (method.name, method.summary, _sees(method), keeps, method.cost, sums, method.source)
        table.add_row(*row)
    say(table)


def _describe(method: Method) -> None:
    say(f"{method.name}: {method.summary} ({method.source})")
    from fedgradnorm._round.settings import key_of

    if method.equation:
        say(f"equation: {method.equation}")
    say(f"server sees: {_sees(method)}")
    say(f"server keeps per client: {', '.join(method.state) or 'nothing'}")
    say(f"sums are enough: {f'no, it needs {method.beyond_sums}' if method.beyond_sums else 'yes'}")
    for name, value in method.settings.items():
        say(f"fixes {key_of(name)} = {value!r}")
    for name, value in method.fixed.items():
        say(f"fixes weighting.{name} = {value!r}")
    means = meanings(method.weighting)
    for key, option in method.options().items():
        needed = option.default is option.empty
        default = "required" if needed else f"default {option.default!r}"
        say(f"option weighting.{key}, {default}: {means.get(key, 'see the documentation')}")


def _sees(method: Method) -> str:
    return ", ".join(str(need.name).lower() for need in method.needs) or "nothing"
