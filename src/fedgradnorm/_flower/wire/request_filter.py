"""The request filter: what gets in at the server's port, decided before a request's body is read.

The server's own process passes with a secret. A client passes to the interface for clients, with a
signature of a registered key, a body of known and bounded length, and few requests at a time.
Nobody else makes the process hold more than the head of a request, or a connection for long.
Nothing here knows Flower: ``flower.Fleet`` tells what its interface is and who signed.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from uvicorn.protocols.http.h11_impl import H11Protocol

from fedgradnorm._flower.wire.messages import Refused

HEADER = "x-fedgradnorm-operator"
PARALLEL = 8  # requests of one client at a time; Flower's own node has up to four
IDLE, WHOLE = 30.0, 600.0  # seconds until the next piece of a body, and until its end
HEAD = 10.0  # seconds until a connection must have sent a request, from its start or its last one
LINGER = 10.0  # seconds that a closing connection has to take what was sent to it


class Rejected(Exception):
    """A request that is not let in: the HTTP status, and why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Interface(Protocol):
    """What clients may ask for."""

    paths: Collection[str]
    most: int  # bytes of a request

    def signer(self, scope: Mapping[str, Any]) -> int | None:
        """The client that signed; None for a key that may only ask to be let in, else Rejected."""

    def check(self, path: str, client: int | None, body: bytes) -> None:
        """Refused unless the body is what this client may send there."""


class RequestFilter:
    """Lets clients pass to their own interface, and the holder of the secret everywhere."""

    def __init__(self, app: Any, secret: str, interface: Interface) -> None:
        self.app, self.secret, self.interface = app, secret.encode(), interface
        self.busy: Counter[int | None] = Counter()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass the request on, or answer with a status."""
        if scope["type"] != "http" or self.is_operator(dict(scope["headers"])):
            await self.app(scope, receive, send)
            return
        try:
            self.check_head(scope["method"], scope["path"], dict(scope["headers"]))
            client = await asyncio.to_thread(self.interface.signer, scope)
            await self._counted(client, scope, receive, send)
        except Rejected as error:
            headers = [(b"connection", b"close"), (b"content-type", b"text/plain")]
            start = {"type": "http.response.start", "status": error.status, "headers": headers}
            await send(start)  # and close: what may still come is not read
            await send({"type": "http.response.body", "body": f"{error}".encode()})

    def is_operator(self, headers: Mapping[bytes, bytes]) -> bool:
        return hmac.compare_digest(headers.get(HEADER.encode(), b""), self.secret)

    def check_head(self, method: str, path: str, headers: Mapping[bytes, bytes]) -> None:
        """Reject what is no request of a client, or has a body of unknown or too great length."""
        if method != "POST" or path not in self.interface.paths:
            raise Rejected(403, "not for clients")
        length = headers.get(b"content-length", b"")
        if b"transfer-encoding" in headers or not length.isdigit():
            raise Rejected(411, "the request must give its length")
        if len(length) > 12 or int(length) > self.interface.most:
            raise Rejected(413, f"more than {self.interface.most} bytes")

    async def _counted(self, client: int | None, scope: Any, receive: Any, send: Any) -> None:
        """Pass on a request that may be read; a client has few at a time."""
        if self.busy[client] >= PARALLEL:
            raise Rejected(429, f"more than {PARALLEL} requests at a time")
        self.busy[client] += 1
        try:
            body = await _read(receive)
            try:
                self.interface.check(scope["path"], client, body)
            except Refused as error:
                raise Rejected(400, str(error)) from error
            unread = [{"type": "http.request", "body": body, "more_body": False}]

            async def again() -> Any:
                return unread.pop() if unread else await receive()

            await self.app(scope, again, send)
        finally:
            self.busy[client] -= 1


async def _read(receive: Any) -> bytes:
    """The body, whose length was checked before; rejected when it comes too slowly."""
    body, more, end = bytearray(), True, asyncio.get_running_loop().time() + WHOLE
    while more:
        left = end - asyncio.get_running_loop().time()
        try:
            message = await asyncio.wait_for(receive(), min(IDLE, left))
        except TimeoutError:
            raise Rejected(408, "the body came too slowly") from None
        if message["type"] != "http.request":
            raise Rejected(400, "the body has no end")
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return bytes(body)


class ShortConnection(H11Protocol):
    """uvicorn's HTTP connection, closed when it sends nothing or sends it slowly."""

    _cut: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._count()

    def data_received(self, data: bytes) -> None:
        """Take what was sent, unless the connection is closing."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._count()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, whether or not its peer has read everything."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(LINGER, self.transport.abort)

    def _count(self) -> None:
        """While no request is being served, the next must be complete in time."""
        if self._at_work():
            self._stop()
        elif self._cut is None:
            self._cut = self.loop.call_later(HEAD, self._give_up)

    def _at_work(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _stop(self) -> None:
        if self._cut is not None:
            self._cut.cancel()
            self._cut = None

    def _give_up(self) -> None:
        self._cut = None
        if not self._at_work():
            self.transport.abort()
