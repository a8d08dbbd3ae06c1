"""How messages travel between server and clients: the interface, and a transport in memory.

A transport carries bytes and knows who sent them; it does not look inside. Everything above it is
tested with :class:`InMemory`. ``flower`` has the real one.

============================  =====================================================================
server                        client
============================  =====================================================================
``connected()``               ``receive()``: the next order, or None while there is none
``send(client, message, …)``  ``answer(reply)``: the answer to the order received last, or the
``collect(deadline)``         reason, in words, why there is none
============================  =====================================================================
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol

from fedgradnorm._errors import TrainingError
from fedgradnorm._flower.wire.messages import Refused

log = logging.getLogger("fedgradnorm")

Respond = Callable[[bytes], bytes]
Content = bytes | Refused | str
"""A client's answer, why it is refused, or what went wrong."""


class Lost(TrainingError):
    """A client's connection to its server is lost, or was never there; the text says why."""


class Reply(NamedTuple):
    """What came of one order: the client is known from its key, not from what it wrote."""

    client: str
    content: Content
    seconds: float


class ServerTransport(Protocol):
    """The server's side."""

    def connected(self) -> list[str]:
        """The clients that are connected."""

    def send(self, client: str, message: bytes, room: int, seconds: float) -> None:
        """Send an order whose answer has at most ``room`` bytes; it expires after ``seconds``."""

    def collect(self, deadline: float) -> Iterator[Reply]:
        """A reply to each order sent since the last call, in order of arrival.

        Ends when all are here or at ``deadline`` (``time.monotonic``); the rest is given up. A
        client that sends half a message or one that cannot be read delays nobody else.
        """


class ClientTransport(Protocol):
    """A client's side."""

    def receive(self) -> bytes | None:
        """The next order, None while there is none; Refused if not the server's, or Lost."""

    def answer(self, reply: bytes | str) -> None:
        """Answer the order received last: a message, or the reason why there is none."""


class Asking(Protocol):
    """An order."""

    @property
    def round(self) -> int:
        """Its round."""

    def encoded(self) -> bytes:
        """The message."""

    def room(self) -> int:
        """Bytes of the largest answer."""


class Exchange:
    """Orders to several clients at once, and what comes back until a deadline."""

    def __init__(self, transport: ServerTransport) -> None:
        self.transport = transport
        self.seconds: dict[str, float] = {}  # from order to answer, of each client's last answer
        self.seen: dict[str, float] = {}  # time.time() of it
        self.ordered: dict[str, int] = {}  # bytes of the last order

    def online(self) -> list[str]:
        return self.transport.connected()

    def ask(self, orders: Mapping[str, Asking], seconds: float) -> dict[str, Content]:
        """Each client's answer, or what went wrong; not later than ``seconds`` from now."""
        deadline = time.monotonic() + seconds
        found: dict[str, Content] = dict.fromkeys(orders, f"no answer in {seconds:.0f} s")
        for name, order in orders.items():
            message = order.encoded()
            self.ordered[name] = len(message)
            self.transport.send(name, message, order.room(), seconds)
        for reply in self.transport.collect(deadline):
            found[reply.client] = reply.content
            if not isinstance(reply.content, str):
                self.seconds[reply.client], self.seen[reply.client] = reply.seconds, time.time()
        return found


def answer_next(transport: ClientTransport, respond: Respond) -> bool:
    """Answer the next order if there is one; what goes wrong is logged and ends nothing.

    The server is told a reason of our own words, never an exception's.
    """
    try:
        order = transport.receive()
    except Refused as error:
        log.warning("order refused: %s", error)
        return True
    if order is None:
        return False
    reply: bytes | str
    try:
        reply = respond(order)
    except Refused as error:
        log.warning("order refused: %s", error)
        reply = str(error)
    except Exception:
        log.exception("an order could not be carried out")
        reply = "failed; the client's own log says why"
    transport.answer(reply)
    return True


class InMemory:
    """A transport to clients in this process; each answers when its reply is collected."""

    def __init__(self, clients: Mapping[str, Respond]) -> None:
        self.clients = clients
        self._orders: dict[str, tuple[bytes, int]] = {}

    def connected(self) -> list[str]:
        return list(self.clients)

    def send(self, client: str, message: bytes, room: int, seconds: float) -> None:  # noqa: ARG002
        self._orders[client] = message, room

    def collect(self, deadline: float) -> Iterator[Reply]:  # noqa: ARG002
        """Let each client that was sent an order answer it."""
        orders, self._orders = self._orders, {}
        for name, (message, room) in orders.items():
            began, end = time.monotonic(), _Order(message)
            answer_next(end, self.clients[name])
            content: Content = end.reply
            if isinstance(content, bytes) and len(content) > room:
                content = Refused(f"its message has {len(content)} bytes, more than {room}")
            yield Reply(name, content, time.monotonic() - began)


class _Order:
    """A client's side of one order in memory."""

    def __init__(self, message: bytes) -> None:
        self.message: bytes | None = message
        self.reply: bytes | str = "no answer"

    def receive(self) -> bytes | None:
        message, self.message = self.message, None
        return message

    def answer(self, reply: bytes | str) -> None:
        self.reply = reply
