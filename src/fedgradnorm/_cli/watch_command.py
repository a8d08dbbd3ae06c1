"""``watch``: a page on this machine that shows runs while they are being trained."""

from __future__ import annotations

import json
import sys
import threading
import webbrowser
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from socketserver import TCPServer
from typing import Annotated, Any
from urllib.parse import parse_qs

import typer

from fedgradnorm._cli.output import say
from fedgradnorm._errors import ConfigError

ADDRESS = "127.0.0.1"
LOCAL = ("127.0.0.1", "localhost", "[::1]")
"""Host names that a request may be for; another one means that a page elsewhere sent it."""

POLL, ALIVE = 0.5, 5.0
"""Seconds between two looks at the folder, and between two signs of life to a page."""

PAGES = {
    "/": ("watch.html", "text/html"),
    "/watch.js": ("watch.js", "text/javascript"),
    "/watch.css": ("watch.css", "text/css"),
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def watch(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="A run, a folder of runs, or a federation's.")
    ] = Path("runs"),
    port: Annotated[
        int, typer.Option("--port", "-p", help="The port; 0 takes a free one.", min=0, max=65535)
    ] = 0,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Show runs in the browser while they are being trained, until Ctrl-C.

    The page shows progress and time left, and each client's losses, held-out score and weight, of
    several runs next to each other. For a federation it also shows which clients are connected.
    It only reads, makes no request to any other machine, and needs no extra packages. Everyone
    with an account on this machine can open it.

    Examples:

    - `fedgradnorm watch --open`

    - `fedgradnorm watch runs/demo --port 8080`
    """
    with server(folder, port) as serving:
        here = serving.url
        say(f"watching {folder}{'' if folder.exists() else ' (not there yet)'}: {here}")
        say("Ctrl-C ends it.")
        sys.stdout.flush()
        if show:
            webbrowser.open(here)
        with suppress(KeyboardInterrupt):
            serving.serve_forever(poll_interval=0.2)
    say("no longer watching")


def server(folder: Path, port: int = 0) -> Server:
    """A server for the page on ``folder``; nothing is served before ``serve_forever``."""
    import fedgradnorm._report.live  # noqa: F401  takes seconds, which no page should wait for

    try:
        return Server(folder, port)
    except OSError as error:
        raise ConfigError(
            f"--port {port}: cannot be used ({error.strerror}); choose another, or leave it out"
        ) from error


class Server(ThreadingHTTPServer):
    """Serves the page, and a stream of messages to each page that is open."""

    daemon_threads = True
    block_on_close = False
    # On Windows it would let two processes take the same port.
    allow_reuse_address = sys.platform != "win32"

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.stopping = threading.Event()
        super().__init__((ADDRESS, port), Handler)

    def server_bind(self) -> None:
        """Take the port without asking for the host's name, which HTTPServer looks up."""
        TCPServer.server_bind(self)

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_address[1]}/"

    def server_close(self) -> None:
        self.stopping.set()
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing to say of a page that was closed; any other error is printed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Answers GET for the page and its messages, and nothing else."""

    server: Server
    server_version = "fedgradnorm"
    sys_version = ""
    timeout = 60.0
    """Seconds after which a connection that sends no request, or reads nothing, is ended."""

    def do_GET(self) -> None:
        """The page, its script and style, or the stream of messages."""
        path, _, query = self.path.partition("?")
        if not self._is_local():
            self.send_error(HTTPStatus.FORBIDDEN, "Not for this host")
        elif path == "/events":
            self._stream(parse_qs(query).get("run", []))
        elif path in PAGES:
            name, kind = PAGES[path]
            content = (files("fedgradnorm._report") / "templates" / name).read_bytes()
            self._head(kind)
            self.wfile.write(content)
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _is_local(self) -> bool:
        """Whether the request is for this machine and not sent by a page from elsewhere."""
        host = self.headers.get("Host", "").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        site = self.headers.get("Sec-Fetch-Site", "none")
        top = self.headers.get("Sec-Fetch-Mode") == "navigate"
        return name in LOCAL and (site in ("none", "same-origin") or top)

    def _head(self, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.end_headers()

    def end_headers(self) -> None:
        """Every answer forbids requests elsewhere, frames, and use by other sites."""
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def _stream(self, shown: list[str]) -> None:
        """Server-sent events until the page or the server goes."""
        from fedgradnorm._report.live import Live

        self._head("text/event-stream")
        self.wfile.write(b"retry: 1000\n\n")
        live, quiet = Live(self.server.folder, shown), 0.0
        while not self.server.stopping.is_set():
            quiet += POLL
            for name, content in live.news():
                quiet = 0.0
                # JSON has no line breaks, which would end an event.
                event = f"event: {name}\ndata: {json.dumps(content, allow_nan=False)}\n\n"
                self.wfile.write(event.encode())
            if quiet >= ALIVE:  # else a page that was closed is never noticed
                quiet = 0.0
                self.wfile.write(b": alive\n\n")
            self.server.stopping.wait(POLL)

    def log_message(self, *_: Any) -> None:
        """Requests are not logged."""
