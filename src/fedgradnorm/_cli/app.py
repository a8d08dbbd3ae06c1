"""The commands, in the groups of ``fedgradnorm --help``."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Annotated

import typer

from fedgradnorm._cli import catalog, demo
from fedgradnorm._cli import compare_commands as comparison
from fedgradnorm._cli import federation_commands as federation
from fedgradnorm._cli import init_command as starting
from fedgradnorm._cli import report_commands as reports
from fedgradnorm._cli import training_commands as training
from fedgradnorm._cli.output import Commands, say
from fedgradnorm._cli.watch_command import watch
from fedgradnorm._version import __version__

HELP = """
Train one shared network and a personal head per client, each client with its own task.

Start with `fedgradnorm demo`, or `fedgradnorm init pumps` for a config of your own.

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


PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Start": (demo.demo, starting.init, catalog.configs),
    "Train": (
        training.run,
        training.resume,
        comparison.compare,
        comparison.reproduce,
        comparison.benefit,
    ),
    "Look": (reports.report, watch, catalog.methods, reports.export),
    "Federate": (federation.serve, federation.join),
}
for panel, commands in PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.add_typer(federation.app, name="federation", rich_help_panel="Federate")
app.add_typer(catalog.data_app, name="data", rich_help_panel="Data")


def main() -> None:
    try:
        app(prog_name="fedgradnorm")
    finally:  # an echo of the Ctrl-C that ended it
        signal.signal(signal.SIGINT, signal.SIG_IGN)
