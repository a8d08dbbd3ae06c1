"""The command line's front door."""

from __future__ import annotations

from typing import Annotated

import typer

from fedgradnorm._cli import benefit_command as benefit
from fedgradnorm._cli import compare_commands as comparison
from fedgradnorm._cli import data_commands as data
from fedgradnorm._cli import demo
from fedgradnorm._cli import export_command as exporting
from fedgradnorm._cli import federation_commands as federation
from fedgradnorm._cli import init_command as starting
from fedgradnorm._cli import report_commands as reports
from fedgradnorm._cli import training_commands as training
from fedgradnorm._cli.output import Commands, say
from fedgradnorm._version import __version__

HELP = """
Train one shared network and a personal head per client, each client with a task of its own.

The server weighs the clients' losses by a **method**: equal weights (`fedrep`), FedGradNorm's
dynamic ones (`fedgradnorm`), or our faster rule (`fedgradnorm-direct`).

Start with `fedgradnorm demo`. Then `fedgradnorm init pumps` writes a config to begin with.
Exit codes: 0 done, 1 training failed, 2 bad input, 3 training diverged, 130 stopped with Ctrl-C.
"""

app = typer.Typer(
    name="fedgradnorm",
    cls=Commands,
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        say(f"fedgradnorm {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


for command in (
    demo.demo,
    starting.init,
    training.run,
    training.resume,
    exporting.export,
    comparison.compare,
    comparison.reproduce,
    benefit.benefit,
    reports.report,
    reports.methods,
    federation.serve,
    federation.join,
):
    app.command()(command)
app.add_typer(data.app, name="data")
app.add_typer(federation.app, name="federation")


def main() -> None:
    """Run the command line."""
    app(prog_name="fedgradnorm")
