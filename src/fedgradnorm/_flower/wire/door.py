"""Who and what gets in at the SuperLink, decided before a request's body is read.

The operator passes with the secret of this process. A node passes to its own interface, with a
signature of a registered key, a body of known and bounded length, and few requests at a time.
Nobody else makes the SuperLink hold more than a request's head.
"""

from __future__ import annotations

import asyncio
import hmac
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fastapi import HTTPException, Request
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from flwr.superlink.routers.fleet.node_auth import authenticate_node

from fedgradnorm._flower.wire.limits import Limits
from fedgradnorm._flower.wire.messages import Refused
from fedgradnorm._flower.wire.requests import ACTIVATE, OPEN, check_request

HEADER = "x-fedgradnorm-operator"
STRANGERS = 4 << 10  # bytes that an unregistered key may send, to be told that it is none
PARALLEL = 8  # requests of one node at a time; Flower's own node has up to four
IDLE, WHOLE = 30.0, 600.0  # seconds until the next piece of a body, and until its end

Nodes = Callable[[bytes], int | None]
Runs = Callable[[], Iterable[int]]


class Turned(Exception):
    """A request that is not let in; the HTTP status, and why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Guard:
    """Lets nodes pass to their own interface, and the operator everywhere.

    ``nodes`` gives the node that a public key is registered for, ``runs`` the runs that there are.
    """

    def __init__(self, app: Any, secret: str, limits: Limits, nodes: Nodes, runs: Runs) -> None:
        self.app, self.secret, self.limits, self.nodes = app, secret.encode(), limits, nodes
        self.runs, self.known_runs = runs, set[int]()
        self.known: dict[bytes, int] = {}
        self.busy: Counter[int | None] = Counter()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass the request on, or answer with a status."""
        if scope["type"] != "http" or self.is_operator(dict(scope["headers"])):
            await self.app(scope, receive, send)
            return
        try:
            self.check_head(scope["method"], scope["path"], dict(scope["headers"]))
            node = await asyncio.to_thread(self.signer, scope)
            await self._counted(node, scope, receive, send)
        except Turned as error:
            await _turn(error, send)

    def is_operator(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether the request shows the secret."""
        return hmac.compare_digest(headers.get(HEADER.encode(), b""), self.secret)

    def is_run(self, run: int) -> bool:
        """Whether there is such a run; those of a SuperLink are few, and stay."""
        if run not in self.known_runs:
            self.known_runs = set(self.runs())
        return run in self.known_runs

    def check_head(self, method: str, path: str, headers: Mapping[bytes, bytes]) -> None:
        """Turn away what is no request of a node, or has a body of no or too great length."""
        if method != "POST" or path not in OPEN:
            raise Turned(403, "not for nodes")
        length = headers.get(b"content-length", b"")
        if b"transfer-encoding" in headers or not length.isdigit():
            raise Turned(411, "say how long the body is")
        if len(length) > 12 or int(length) > self.limits.request:
            raise Turned(413, f"more than {self.limits.request} bytes")

    def signer(self, scope: Mapping[str, Any]) -> int | None:
        """The node that signed the request; None for a key that may ask to be activated only."""
        request = Request({**scope, "state": {}})
        try:
            key = b64decode(request.headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
            request.state.protobuf_request = ActivateNodeRequest(public_key=key)
            authenticate_node(request)
        except (HTTPException, KeyError, ValueError, UnicodeError) as error:
            raise Turned(401, "not signed by a node, or its clock is wrong") from error
        node = self.known.get(key) or self.nodes(key)
        if node is not None:
            self.known[key] = node
        elif scope["path"] != ACTIVATE or int(request.headers["content-length"]) > STRANGERS:
            raise Turned(401, "the key is not registered")
        return node

    async def _counted(self, node: int | None, scope: Any, receive: Any, send: Any) -> None:
        """Pass on a request that may be read; a node has few at a time."""
        if self.busy[node] >= PARALLEL:
            raise Turned(429, f"more than {PARALLEL} requests at a time")
        self.busy[node] += 1
        try:
            body = await _read(receive)
            try:
                check_request(scope["path"], node, body, self.limits, self.is_run)
            except Refused as error:
                raise Turned(400, str(error)) from error
            await self.app(scope, _again(body, receive), send)
        finally:
            self.busy[node] -= 1


async def _read(receive: Any) -> bytes:
    """The body; its length was looked at before. Turned away when it comes too slowly."""
    body, more, end = bytearray(), True, asyncio.get_running_loop().time() + WHOLE
    while more:
        left = end - asyncio.get_running_loop().time()
        try:
            message = await asyncio.wait_for(receive(), min(IDLE, left))
        except TimeoutError:
            raise Turned(408, "the body came too slowly") from None
        if message["type"] != "http.request":
            raise Turned(400, "the body has no end")
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return bytes(body)


def _again(body: bytes, receive: Any) -> Any:
    """A ``receive`` that gives the body that was read already."""
    unread = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Any:
        return unread.pop() if unread else await receive()

    return next_message


async def _turn(error: Turned, send: Any) -> None:
    """Answer, and close: what may still come is not read."""
    headers = [(b"connection", b"close"), (b"content-type", b"text/plain")]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{error}".encode()})
