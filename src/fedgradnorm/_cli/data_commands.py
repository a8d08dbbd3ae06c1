"""``data show``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedgradnorm._cli.output import data_bar, say

app = typer.Typer(help="Look at data.", no_args_is_help=True)

Seed = Annotated[int, typer.Option("--seed", help="The same seed gives the same rows.")]


@app.callback()
def data() -> None:
    """Look at data."""


@app.command()
def show(
    what: Annotated[
        str,
        typer.Argument(
            metavar="NAME_OR_CONFIG", help="A data source (faces, school, ...) or a TOML file."
        ),
    ],
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Options of the source (samples=2000), or changes to the config.",
            show_default=False,
        ),
    ] = None,
    seed: Seed = 0,
) -> None:
    """Show the clients: task, examples, class shares.

    Examples:

    - `fedgradnorm data show faces samples=2000`

    - `fedgradnorm data show table2`
    """
    from fedgradnorm._report.tables import clients_grid
    from fedgradnorm.data._sources import load_clients

    source, given, seed = _chosen(what, options or [], seed)
    with data_bar(source) as bar:
        clients = load_clients(source, given, seed, bar)
    say(clients_grid(clients))


def _chosen(what: str, words: list[str], seed: int) -> tuple[str, dict[str, Any], int]:
    """Source, options and seed, from a source's name or a config."""
    from fedgradnorm._errors import choose
    from fedgradnorm._toml import overridden
    from fedgradnorm.data._source import SOURCES
    from fedgradnorm.experiments._config.config_file import load_config
    from fedgradnorm.experiments._config.shipped import shipped

    if what in SOURCES:
        return what, overridden({}, words), seed
    if "/" not in what and "." not in what and not Path(what).exists():
        choose(what, [*SOURCES, *shipped()], "data source (and no config)")
    config = load_config(what, words)
    return config.data.source, dict(config.data.model_extra or {}), config.seed
