"""``join``: this client's node, connected until the run has finished.

The node works in a process of its own. When it ends (a lost key, a crash, kill -9), this process
starts another one, with growing pauses, until it is stopped itself. It trains nothing, so it starts
at once and holds little memory. When this process is killed, the node ends by itself.
"""

from __future__ import annotations

import logging
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgradnorm._errors import ConfigError, RunFolderError, TrainingError, choose
from fedgradnorm._flower.wire import QUIET
from fedgradnorm._runs.layout import CA, CLIENT, JOIN_LOG, LOCK, NODE, ROSTER
from fedgradnorm._runs.locking import alone

if TYPE_CHECKING:
    from torch import nn

    from fedgradnorm._client import Client
    from fedgradnorm._flower.agreement import Agreement
    from fedgradnorm._flower.client_session import ClientSession
    from fedgradnorm._flower.federation_file import ClientFile
    from fedgradnorm._flower.private.private_terms import PrivateTerms
    from fedgradnorm._flower.private.secure_sum_client import SecureSumClient
    from fedgradnorm._flower.wire.transport import ClientTransport, Respond

log = logging.getLogger("fedgradnorm")

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
POLL = 0.5  # seconds between two looks for orders
BAD_INPUT = 2
STAYING = 10.0  # seconds until the server has the last answer: of who is gone it takes none
LEAVING = 5.0  # seconds that an earlier node has to end
SUPERVISOR = "FEDGRADNORM_SUPERVISOR"  # the process that restarts a node


def join_command(path: Path, allow: Sequence[str]) -> list[str]:
    """``join`` as a process of its own; a module in the working folder is not taken for ours."""
    words = [word for module in allow for word in ("--allow-module", module)]
    return [sys.executable, "-P", "-m", "fedgradnorm", "join", str(path), *words]


@contextmanager
def joined(homes: list[Path], allow: Sequence[str] = ()) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A ``join`` process for each client's folder, its words in ``join.log`` there."""
    running: list[subprocess.Popen[bytes]] = []
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    try:
        for home in homes:
            command = join_command(home / CLIENT, allow)
            with (home / JOIN_LOG).open("ab") as file:
                running.append(
                    subprocess.Popen(
                        command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
                    )
                )
        yield running
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()


def join(path: Path, allow: Sequence[str] = ()) -> None:
    """Keep a node running until the run has finished; wrong input ends it before."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    command = [*join_command(path, allow), "--once"]
    pause = FIRST_PAUSE
    while True:
        began = time.monotonic()
        own = {**os.environ, **QUIET, SUPERVISOR: str(os.getpid())}
        process = subprocess.Popen(command, env=own, umask=0o077)  # all its files are private
        try:
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
        if code == 0:
            return
        if code == BAD_INPUT:
            raise SystemExit(code)
        pause = FIRST_PAUSE if time.monotonic() - began > LONGEST_PAUSE else pause
        log.warning("the node ended (code %d); starting another in %.0f s", code, pause)
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def join_once(path: Path, say: Callable[[str], None], allow: Sequence[str] = ()) -> None:
    """One node: load data, check the server's certificate, answer orders until the run is over."""
    from fedgradnorm._flower.agreement import agree
    from fedgradnorm._flower.federation_file import read_client
    from fedgradnorm._runs.checkpoint import write_atomically
    from fedgradnorm.experiments._config.config_file import build

    end_with_supervisor()
    given = read_client(path)
    config = given.run_config(allow)
    agreement = agree(config, private_terms(given))
    for name in ("ca", "key", *(("signing",) if given.private else ())):
        if not given.path(name).is_file():
            made = "" if name == "ca" else f"; fedgradnorm federation key {given.name} makes it"
            raise ConfigError(f"{given.path(name)}: no such file{made}")
    check_authority(given.path("ca"))
    network, (client,), weighting, _ = build(config, [given.load(config)])
    state = given.path("state")
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    answering = _client(given, network, client, agreement, weighting)
    sent = ", ".join(agreement.sent)
    say(f"client {given.name}: ready; what leaves this machine in a round: {sent}")
    if agreement.private is not None:
        terms = agreement.private
        words = f"{len(terms.clients)} clients, of which {terms.colluders} may collude"
        say(f"client {given.name}: the server sees only sums; {words} with it")
        say(f"client {given.name}: fingerprint of the roster (compare it): {terms.fingerprint}")

    from fedgradnorm._flower.approval import ApprovedClient
    from fedgradnorm._flower.wire.flower import FlowerClient
    from fedgradnorm._flower.wire.transport import Lost

    logging.getLogger("flwr").setLevel(logging.CRITICAL)  # it is said in our own words
    with _alone(state):
        approved = ApprovedClient(given, answering, path)
        last = state / NODE
        node = FlowerClient(given.server, given.path("ca"), given.path("key"))
        while not answering.over:
            _until_let_in(lambda: node.check_let_in(node_of(last)))
            try:
                with node as transport:
                    write_atomically(last, str(transport.node).encode())
                    say(f"client {given.name}: connected to {given.server} as node {node.node}")
                    _answer_all(transport, approved.respond, answering)
                    if answering.result is not None:
                        where = f"its result is in {answering.result}"
                        say(f"client {given.name}: the run has finished; {where}")
                    time.sleep(STAYING)
            except Lost as error:
                log.warning("%s; connecting again", error)
        check_saved(given.name, answering.result)


def _answer_all(
    transport: ClientTransport, respond: Respond, session: ClientSession | SecureSumClient
) -> None:
    """Answer orders until the run is over."""
    from fedgradnorm._flower.wire.transport import answer_next

    while not session.over:
        if not answer_next(transport, respond):
            time.sleep(POLL)


def check_saved(name: str, result: Path | None) -> None:
    """A RunFolderError without a result: no other node of this client could save it either.

    It is no TrainingError, for after one ``join`` starts the next node.
    """
    if result is None:
        raise RunFolderError(
            f"client {name}: the run has finished, but its result could not be saved; the log has "
            "the reason, and this client's state is kept"
        )


def node_of(path: Path) -> int | None:
    """The node of the last process of this client, where that is known."""
    text = path.read_text(errors="replace").strip() if path.exists() else ""
    return int(text) if text.isdecimal() else None


def end_with_supervisor() -> None:
    """End this process when the one that would start it again is gone, however that ended."""
    supervisor = os.environ.get(SUPERVISOR, "")

    def watch() -> None:
        while os.getppid() == int(supervisor):
            time.sleep(POLL)
        os.kill(os.getpid(), signal.SIGKILL)  # as a kill at any other moment: the files are whole

    if supervisor.isdecimal():
        threading.Thread(target=watch, daemon=True).start()


def private_terms(given: ClientFile) -> PrivateTerms | None:
    """What is agreed besides the run, where this client asks for a private federation."""
    if not given.private:
        return None
    from fedgradnorm._flower.private.private_terms import read_terms

    terms = read_terms(given.path("roster"))
    choose(given.name, list(terms.clients), f"client in {ROSTER}")
    return terms


def _client(
    given: ClientFile,
    network: nn.Module,
    client: Client,
    agreement: Agreement,
    weighting: Any,
) -> ClientSession | SecureSumClient:
    from fedgradnorm._flower.client_session import ClientSession

    about = (network, client, agreement, given.path("state"))
    if agreement.private is None:
        return ClientSession(*about)
    from fedgradnorm._flower.private.secure_sum_client import SecureSumClient
    from fedgradnorm._masking.roster import read_signer

    return SecureSumClient(*about, read_signer(given.name, given.path("signing")), weighting)


@contextmanager
def _alone(state: Path) -> Iterator[None]:
    """One process at a time works with a client's state; the lock ends with the process."""
    end = time.monotonic() + LEAVING
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(alone(state / LOCK))
                break
            except BlockingIOError as error:
                if time.monotonic() > end:
                    in_use = f"{state} is in use: this client is running already"
                    raise ConfigError(in_use) from error
            time.sleep(POLL)
        yield


def _until_let_in(check_let_in: Callable[[], None]) -> None:
    """Wait for the server with growing pauses; a wrong certificate ends it at once."""
    pause = FIRST_PAUSE
    while True:
        try:
            check_let_in()
            return
        except TrainingError as error:
            log.warning("%s; trying again", error)
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def check_authority(path: Path) -> None:
    try:
        ssl.create_default_context(cafile=path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: no certificate can be read from it; take the server's {CA} again"
        ) from error
