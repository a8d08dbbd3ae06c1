"""The answers to a round's orders, taken one client at a time as they come; nobody is waited for.

Flower's own way asks for all answers at once and waits for parts that are missing. One client that
sends half a message would then hold up the others, and a message that cannot be read would end the
server.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from flwr.app import Message, RecordDict
from flwr.proto.message_pb2 import ObjectTree

from fedgradnorm._flower.wire.limits import Limits
from fedgradnorm._flower.wire.message_parts import check_sender, named_parts, put_together
from fedgradnorm._flower.wire.messages import Refused

POLL = 0.2  # seconds between two looks for answers


class Asking(Protocol):
    """Anything that a client is asked."""

    @property
    def round(self) -> int:
        """In which round."""

    def records(self) -> RecordDict:
        """As it travels."""

    def room(self) -> tuple[int, int]:
        """Bytes of the two vectors that an answer may have."""


class Source(Protocol):
    """Where answers lie until they are taken."""

    def tree(self, asked: str) -> ObjectTree | None:
        """The parts of the answer to an order, or None while there is none."""

    def part(self, name: str) -> bytes | None:
        """One part, None while it is not there; refused if it never will be."""

    def forget(self, root: str) -> None:
        """Let a message go: it was taken, or is given up."""


@dataclass
class Incoming:
    """One client's answer, as much of it as is here; ``asked`` names the order it is for."""

    name: str
    node: int
    asked: str
    root: str = ""
    missing: list[str] = field(default_factory=list)
    parts: dict[str, bytes] = field(default_factory=dict)

    def take(self, source: Source, limits: Limits) -> Message | None:
        """The whole answer, or None while some of it is not there; never waits."""
        if not self.root:
            tree = source.tree(self.asked)
            if tree is None:
                return None
            self.root = tree.object_id
            self.missing = named_parts(tree, limits)
        while self.missing:
            content = source.part(self.missing[-1])
            if content is None:
                return None
            self.parts[self.missing.pop()] = content
            if sum(map(len, self.parts.values())) > limits.total:
                raise Refused(f"its message has more than {limits.total} bytes")
        message = put_together(self.root, self.parts, limits)
        check_sender(message, self.node, self.asked)
        return message


def collect(
    expected: Iterable[Incoming], source: Source, limits: Limits, end: float
) -> dict[str, RecordDict | Refused | str]:
    """What each client said, by name; who is not in it has not answered before ``end``.

    After ``end`` each is looked at once more: an answer that lies there is used, however long
    the others' took.
    """
    waiting, found = list(expected), dict[str, RecordDict | Refused | str]()
    while waiting:
        over = time.monotonic() >= end
        for one in waiting:
            said = _said(one, source, limits)
            if said is not None:
                found[one.name] = said
        waiting = [one for one in waiting if one.name not in found]
        if over:
            break
        if waiting:
            time.sleep(max(0.0, min(POLL, end - time.monotonic())))
    for one in waiting:
        if one.root:
            source.forget(one.root)
    return found


def _said(one: Incoming, source: Source, limits: Limits) -> RecordDict | Refused | str | None:
    """The records, or why they are refused, or the client's own word for what went wrong.

    Nothing else of the answer is held from here on. The error is a new one, for the frames that it
    was raised in hold the parts.
    """
    try:
        message = one.take(source, limits)
    except Refused as error:
        one.parts.clear()
        if one.root:
            source.forget(one.root)
        return Refused(str(error))
    if message is None:
        return None
    one.parts.clear()
    source.forget(one.root)
    if message.has_error():
        words = " ".join(str(message.error.reason or "failed").split())[:200]
        return "".join(letter for letter in words if letter.isprintable())
    return message.content
