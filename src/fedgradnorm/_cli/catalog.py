"""``methods``, ``configs`` and ``data show``: what is there to train, and on what."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fedgradnorm._cli.output import data_bar, say
from fedgradnorm._errors import choose

if TYPE_CHECKING:
    from fedgradnorm._methods import Method

SIGHTS = {
    "": "no more than the sum of the weighted updates",
    "size": "every client's number of training examples",
    "loss": "every client's loss",
    "loss, norm": "every client's loss and gradient norm",
    "gram": "the inner products of the clients' updates",
    "gradient": "every client's own update",
}
"""What the server must see of its clients, from the least to the most."""


def methods(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Explain this one.", show_default=False)
    ] = None,
) -> None:
    """List the methods by what the server must see; with a NAME, explain one and its options.

    Examples:

    - `fedgradnorm methods`

    - `fedgradnorm methods fedgradnorm-direct`
    """
    from fedgradnorm._methods import METHODS, find_method

    if name is not None:
        _explain(find_method(name))
        return
    found: dict[str, list[Method]] = {}
    for method in METHODS.values():
        found.setdefault(_needs(method), []).append(method)
    width = max(map(len, METHODS))
    for needs in sorted(found, key=lambda one: [*SIGHTS, one].index(one)):
        say(Text(f"The server sees {SIGHTS.get(needs, needs)}", style="bold"))
        for method in found[needs]:
            private = "  *" if method.beyond_sums and needs in ("", "loss", "loss, norm") else ""
            say(f"  {method.name:<{width}}  {method.summary}{private}")
    say("* not available in a private federation; neither are the last two groups")
    say("Sources, costs and options: fedgradnorm methods NAME")


def configs(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Print this one.", show_default=False)
    ] = None,
) -> None:
    """List the configs in the package; with a NAME, print one as a start for your own.

    Wherever a command takes a CONFIG, it also takes one of these names.

    Examples:

    - `fedgradnorm configs`

    - `fedgradnorm configs table2 > mine.toml`

    - `fedgradnorm compare table2 --seeds 1`
    """
    from fedgradnorm.experiments._config.shipped import shipped

    known = shipped()
    if name is not None:
        choose(name, known, "config in the package")
        typer.echo(known[name].read_text(encoding="utf-8"), nl=False)
        return
    table = _rows()
    for one, path in known.items():
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        table.add_row(one, first.removeprefix("# "))
    say(table)


def _explain(method: Method) -> None:
    """Everything about one method, with a line for each option and each setting that it fixes."""
    from fedgradnorm._round.settings import FIELDS, key_of
    from fedgradnorm.experiments._config.meanings import meanings

    seen, means = SIGHTS.get(_needs(method), _needs(method)), meanings(method.weighting)
    say(Text(f"{method.name}: {method.summary}", style="bold"))
    table = _rows()
    table.add_row("source", method.source or "-")
    table.add_row("server sees", seen)
    work = f"order of {method.cost} operations per round, besides the sum of the updates"
    table.add_row("cost", f"{work} (N clients, D shared parameters)")
    private = f"not possible: the server needs {method.beyond_sums}"
    table.add_row("private", private if method.beyond_sums else "possible: sums are enough")
    say(table)
    if method.settings or method.fixed:
        say("It sets:")
        table = _rows()
        for key, value in method.settings.items():
            means_this = FIELDS[key].metadata["text"].replace("``", "")
            more = " You can set another value." if key in method.tunable else ""
            table.add_row(f"{key_of(key)} = {value!r}", Text(means_this + more))
        for key, value in method.fixed.items():
            table.add_row(f"weighting.{key} = {value!r}", Text(means.get(key, "")))
        say(table)
    options = method.options()
    say("Options, in the table [weighting] of a config:" if options else "It has no options.")
    table = _rows()
    for key, option in options.items():
        needed = option.default is option.empty
        default = "required" if needed else f"{option.default!r}"
        table.add_row(f"{key} ({default})", Text(means.get(key, "")))
    if options:
        say(table)


def _needs(method: Method) -> str:
    seen = ", ".join(str(need.name).lower() for need in method.needs)
    return "loss, norm" if seen == "norm" else seen  # no report has a norm without its loss


def _rows() -> Table:
    """Names and explanations, which are wrapped between words."""
    table = Table.grid(padding=(0, 2))
    table.add_column(max_width=34)
    table.add_column()
    return table


data_app = typer.Typer(help="Inspect data.", no_args_is_help=True)


@data_app.callback()
def data() -> None:
    """Look at data."""


@data_app.command()
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
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same examples.")] = 0,
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
