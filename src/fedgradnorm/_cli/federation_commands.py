"""The commands ``federation``, ``serve`` and ``join``."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedgradnorm._cli.output import STOPPED, data_bar, err, say
from fedgradnorm._cli.training_commands import Allow, ConfigFile, Overrides, allowing
from fedgradnorm._runs.layout import CLIENTS, RESULT, STATE

if TYPE_CHECKING:
    from fedgradnorm._flower.coordinator import Coordinator

app = typer.Typer(
    help="Set up a federation between machines, or try one on this machine.", no_args_is_help=True
)
Federation = Annotated[
    Path, typer.Option("--federation", "-f", help="The folder that federation init made.")
]
ClientFileArgument = Annotated[
    Path, typer.Argument(metavar="CLIENT_CONFIG", help="The client's client.toml.")
]
SCORES = ["weight", "metric", "score", "baseline", "split"]
"""Columns of a run's summary that `try` shows of each client."""

Private = Annotated[
    bool, typer.Option("--private", help="The server sees only sums over the clients.")
]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the federation.")],
    clients: Annotated[
        str, typer.Option("--clients", help="The clients' names, separated by commas.")
    ],
    host: Annotated[
        str,
        typer.Option("--host", help="The server's host names or addresses, the main one first."),
    ] = "localhost",
    port: Annotated[int, typer.Option("--port", help="The server's port.")] = 9092,
    private: Private = False,
) -> None:
    """Make a federation's certificates, and a folder to hand to each client.

    Example: `fedgradnorm federation init fed --clients north,south --host fed.example.org`
    """
    from fedgradnorm._flower.setup import init_federation
    from fedgradnorm._flower.wire import check_installed

    check_installed()
    names, hosts = ([w.strip() for w in text.split(",") if w.strip()] for text in (clients, host))
    for home in init_federation(folder, names, hosts, port, private, keys=False):
        say(f"for client {home.name}: {home} (nothing in it is secret)")
    say("clients: fedgradnorm federation key NAME, and hand NAME.public.toml to the server")
    say(f"server:  fedgradnorm federation roster NAME.public.toml ... --federation {folder}")


@app.command()
def key(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The client's name.")],
    folder: Annotated[Path, typer.Option("--folder", help="The client's folder.")] = Path(),
    renew: Annotated[
        bool, typer.Option("--renew", help="Replace keys; keep the old files.")
    ] = False,
) -> None:
    """Create a client's keys, on the client; send only NAME.public.toml to the server.

    Compare the fingerprint over another channel, such as the telephone.
    """
    from fedgradnorm._flower.setup import make_keys, public_file
    from fedgradnorm._flower.wire import check_installed

    check_installed()
    made = make_keys(folder, name, renew)
    say(f"public keys of {name}: {folder / public_file(name)}")
    say(f"fingerprint: {made.fingerprint}")


@app.command()
def roster(
    public: Annotated[
        list[Path], typer.Argument(metavar="PUBLIC...", help="Files made by federation key.")
    ],
    federation: Federation,
) -> None:
    """Register clients' public keys on the server, or replace a client's after a renewal.

    Prints a fingerprint per client and one of the whole roster. In a private federation it writes
    roster.toml as soon as all clients are registered: hand that file to every client.
    """
    from fedgradnorm._flower.private.private_terms import read_terms
    from fedgradnorm._flower.setup import read_public, register, roster_fingerprint
    from fedgradnorm._flower.wire import check_installed
    from fedgradnorm._runs.layout import ROSTER

    check_installed()
    found = register(federation, [read_public(path) for path in public])
    table = Table("client", "fingerprint")
    for name, one in found.items():
        table.add_row(name, one.fingerprint)
    say(table)
    file = federation / ROSTER
    if file.exists():
        say(f"hand to every client: {file}")
        say(f"fingerprint of the roster, as join prints it: {read_terms(file).fingerprint}")
    else:
        say(f"fingerprint of all: {roster_fingerprint(found)}")


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The client's name.")],
    federation: Federation,
) -> None:
    """Revoke a client's access; a running server notices before its next round."""
    from fedgradnorm._flower.setup import revoke as revoke_client

    one = revoke_client(federation, name)
    say(f"revoked: {name}, {one.fingerprint}")


@app.command()
def approve(
    client: ClientFileArgument,
    run: Annotated[str, typer.Argument(metavar="[RUN]", help="The run's name.")] = "",
) -> None:
    """Approve a run that asks for a client's data; without RUN, list the runs that ask.

    The log of join names the run, its settings, what leaves the machine, and epsilon.
    """
    from fedgradnorm._flower.approval import Approvals
    from fedgradnorm._flower.federation_file import read_client

    approvals = Approvals(read_client(client).path("state"))
    if run:
        approvals.approve(run)
        say(f"approved: {run}")
        return
    waiting = approvals.waiting()
    for name, settings in waiting.items():
        say(f"{name}  settings {settings[:12]}")
    if not waiting:
        say("no run asks for approval")


@app.command()
def audit(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A federation, or a state folder.")],
) -> None:
    """Check an audit log and print it: DIR is `fed/` on the server, `state/` on a client."""
    from fedgradnorm._flower.audit import Audit

    log = Audit(folder)
    for line in log.lines():
        shown = {k: v for k, v in line.items() if k not in ("time", "event", "previous")}
        facts = ", ".join(f"{k}={v}" for k, v in shown.items())
        say(f"{line['time'][:19]}  {line['event']}  {facts}")
    say(f"{log.path}: the chain is intact")


@app.command()
def status(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The federation's folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Show the status of a federation's run, also while it is being served.

    A private federation's server knows no client's weight, and shows none.
    """
    import json

    from fedgradnorm._flower.status import read_status

    found = read_status(folder)
    if as_json:
        say(json.dumps(found))
        return
    names = ("client", "connected", "last seen", "round time", "MB", "rounds", "weight")
    table = Table(*names, "left out", "refused", "bounded", "")
    for one in found["clients"]:
        seen = "-" if one["seen"] is None else f"{time.time() - one['seen']:.0f} s ago"
        took = "-" if one["seconds"] is None else f"{one['seconds']:.2f} s"
        weight = "-" if one["weight"] is None else f"{one['weight']:.4f}"
        counts = (str(one[key]) for key in ("left_out", "refused", "bounded"))
        connected = "yes" if one["connected"] else "no"
        size = f"{one['bytes'] / 1e6:.2f}"
        row = (one["client"], connected, seen, took, size, str(one["rounds"]), weight)
        table.add_row(*row, *counts, one["state"])
    say(table)
    ago = time.time() - found["seconds_since_1970"]
    where = f"round {found['round']} of {found['rounds']}"
    say(f"{found['stage']}: {where}; written {ago:.0f} s ago; run {found['run']}")
    say(f"run folder: {found['folder']}")


@app.command("try")
def try_(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    private: Private = False,
    allow: Allow = None,
) -> None:
    """Run a config as a federation on this machine: one process per client, with TLS.

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
    _show_scores(folder)


def serve(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    federation: Federation,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the stopped run.")] = False,
    allow: Allow = None,
) -> None:
    """Serve a run to the clients of a federation, and keep it in an ordinary run folder.

    Waits for the clients, then trains; a client that fails or is late is left out of a round.
    A run that was stopped, killed or cut off continues with --resume, with the same result.
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
            f"stopped after the last whole round; continue with: {again}"
        ) from None
    _show(done, folder)


def join(
    client: ClientFileArgument,
    once: Annotated[bool, typer.Option("--once", hidden=True)] = False,
    *,
    allow: Allow = None,
) -> None:
    """Join a federation as the client that CLIENT_CONFIG describes, until the run is over.

    Data and labels stay on this machine. At the start it prints what leaves: the update of the
    shared network, the numbers that the agreed method needs, and the head only where sharing heads
    is agreed. It reconnects automatically, and ends when the run has finished.
    """
    from fedgradnorm._flower.wire import check_installed

    check_installed()
    from fedgradnorm._flower.join import SUPERVISOR, join_once
    from fedgradnorm._flower.join import join as join_until_stopped

    signal.signal(signal.SIGTERM, _interrupt)
    if once:
        if SUPERVISOR in os.environ:  # which says that both were stopped
            for one in (signal.SIGINT, signal.SIGTERM):
                signal.signal(one, lambda *_: sys.exit(STOPPED))
        join_once(client, say, allow or ())
    else:
        join_until_stopped(client, allow or ())


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt("stopped; start it again with the same command")


def _waiting(missing: list[str], seconds: float) -> None:
    until = time.strftime("%H:%M:%S", time.localtime(time.time() + seconds))
    words = f"waiting for: {', '.join(missing)} (until {until}; wait, in federation.toml)"
    err.print(words, markup=False)


def _show(done: Coordinator, folder: Path) -> None:
    table = Table("client", "rounds", "weight", "left out", "refused", "bounded", "MB exchanged")
    weights = done.weights()
    for name in done.names:
        counts = (done.missed[name], done.refused[name], done.bounded[name])
        weight = f"{weights[name]:.4f}" if name in weights else "-"  # in a private one
        numbers = (done.states[name], weight, *counts)
        table.add_row(name, *map(str, numbers), f"{done.bytes[name] / 1e6:.2f}")
    say(table)
    say(f"run folder: {folder}")


def _show_scores(folder: Path) -> None:
    """What each client's own result says of its own test examples."""
    import fedgradnorm as fgn

    table = Table("client", *SCORES)
    for path in sorted(folder.glob(f"federation/{CLIENTS}/*/{STATE}/*/{RESULT}")):
        for name, row in fgn.load(path).summary().reindex(columns=SCORES).iterrows():
            cells = ("" if v != v else f"{v:.4g}" if isinstance(v, float) else str(v) for v in row)
            table.add_row(str(name), *cells)
    if table.rows:
        say(table)
