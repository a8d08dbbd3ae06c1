"""``federation init``, ``federation try``, ``serve`` and ``join``."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedgradnorm._cli.output import data_bar, err, say
from fedgradnorm._cli.training_commands import Allow, ConfigFile, Overrides, allowing
from fedgradnorm._runs.layout import AGREED, CLIENT

if TYPE_CHECKING:
    from fedgradnorm._flower.coordinator import Coordinator

app = typer.Typer(
    help="Set up a federation between machines, or try one on this.", no_args_is_help=True
)
Private = Annotated[
    bool, typer.Option("--private", help="The server sees only sums over the clients.")
]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for its keys.")],
    clients: Annotated[str, typer.Option("--clients", help="Their names, between commas.")],
    host: Annotated[
        str,
        typer.Option("--host", help="The server's names or addresses for clients, the main first."),
    ] = "localhost",
    port: Annotated[int, typer.Option("--port", help="Where the server listens.")] = 9092,
    private: Private = False,
) -> None:
    """Make the certificates and keys of a federation, and a folder to hand to each client.

    Example: `fedgradnorm federation init fed --clients north,south --host fed.example.org`
    """
    from fedgradnorm._flower.setup import init_federation
    from fedgradnorm._flower.wire import check_installed

    check_installed()
    names, hosts = ([w.strip() for w in text.split(",") if w.strip()] for text in (clients, host))
    for home in init_federation(folder, names, hosts, port, private):
        say(f"for client {home.name}: {home} (its key is secret: hand it over safely)")
    say(f"server:  fedgradnorm serve CONFIG --federation {folder}")
    say(f"clients: put {AGREED} and data into the folder, then fedgradnorm join {CLIENT}")


@app.command("try")
def try_(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    private: Private = False,
    allow: Allow = None,
) -> None:
    """Run a config as a federation on this machine: every client a process, TLS and all.

    Example: `fedgradnorm federation try demo rounds=20`
    """
    from fedgradnorm._flower.agreement import agree
    from fedgradnorm._flower.wire import check_installed
    from fedgradnorm._training.display import live_display
    from fedgradnorm.experiments._config.config_file import clients_of, load_config

    check_installed()
    from fedgradnorm._flower.serving import run_folder
    from fedgradnorm._flower.trying import try_federation

    wanted = load_config(config, overrides or [], allow=allow or ())
    agree(wanted)
    with data_bar("data") as bar:
        clients = clients_of(wanted, bar)
    folder = run_folder(wanted, resume=False)
    with live_display(None, "federation", err) as show:
        done = try_federation(wanted, clients, folder, show=show, waiting=_waiting, private=private)
    _show(done, folder)


def serve(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    federation: Annotated[
        Path, typer.Option("--federation", "-f", help="The folder that federation init made.")
    ],
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the stopped run.")] = False,
    allow: Allow = None,
) -> None:
    """Serve a run to the clients of a federation, and keep it in an ordinary run folder.

    Waits for the clients, then trains; a client that fails or is late is left out of a round.
    A run that was stopped, killed or cut off goes on with --resume, with the same result.
    """
    from fedgradnorm._flower.wire import check_installed
    from fedgradnorm._training.display import live_display
    from fedgradnorm.experiments._config.config_file import load_config

    check_installed()
    from fedgradnorm._flower import serving

    wanted = load_config(config, overrides or [], allow=allow or ())
    serving.check_config(wanted, federation)
    folder = serving.run_folder(wanted, resume)
    again = f"fedgradnorm serve {config} --federation {federation} --resume{allowing(allow)}"
    try:
        with live_display(None, "federation", err) as show:
            done = serving.serve(
                wanted, federation, folder, resume=resume, show=show, waiting=_waiting
            )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"stopped after the last whole round; go on with: {again}"
        ) from None
    _show(done, folder)


def join(
    client: Annotated[Path, typer.Argument(metavar="CLIENT_CONFIG", help="Its client.toml.")],
    once: Annotated[bool, typer.Option("--once", hidden=True)] = False,
    *,
    allow: Allow = None,
) -> None:
    """Take part in a federation as the client that CLIENT_CONFIG describes, until stopped.

    Data and labels stay here. What leaves is said when it starts: the update of the shared network,
    the numbers that the agreed method needs, and the head only where it is agreed that heads are
    shared. Reconnects by itself.
    """
    from fedgradnorm._flower.wire import check_installed

    check_installed()
    from fedgradnorm._flower.join import join as join_until_stopped
    from fedgradnorm._flower.join import join_once

    signal.signal(signal.SIGTERM, _interrupt)
    if once:
        join_once(client, say, allow or ())
    else:
        join_until_stopped(client, allow or ())


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt("stopped; start it again with the same command")


def _waiting(missing: list[str]) -> None:
    err.print(f"waiting for: {', '.join(missing)}", markup=False)


def _show(done: Coordinator, folder: Path) -> None:
    """A row per client, or one for each of its tasks, and where the run is."""
    table = Table("client", "rounds", "weight", "left out", "refused", "bounded", "MB exchanged")
    weights = done.weights()
    for row, name in done.rows.items():
        counts = (done.missed[name], done.refused[name], done.bounded[name])
        weight = f"{weights[row]:.4f}" if row in weights else "-"  # in a private one
        numbers = (done.states[name], weight, *counts)
        table.add_row(row, *map(str, numbers), f"{done.bytes[name] / 1e6:.2f}")
    say(table)
    say(f"run folder: {folder}")
