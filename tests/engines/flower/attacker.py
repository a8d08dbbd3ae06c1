"""A registered client that gives a wrong answer to every order, each in another way.

First it says that it failed, twice. Then it names a part that it does not send, and after that it
sends as much as the SuperLink takes: ``attacker.py ADDRESS HOME``
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from engines.flower.wire import Packed, Wire, packed, part_not_sent

# isort: split
import httpx
import numpy as np
from flwr.app import Message, RecordDict
from flwr.app.error import Error
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.run import RunNotRunningException

from fedgradnorm._flower.wire.flower import Limits, unwrapped, wrapped
from fedgradnorm._flower.wire.messages import encode, largest_answer, unpack


def failed(order: Message) -> Packed:
    return packed(Message(Error(code=1, reason="failed"), reply_to=order))


def unsent(order: Message) -> Packed:
    return part_not_sent(packed(Message(RecordDict({}), reply_to=order)))


def limits(order: Message) -> Limits:
    return Limits(largest_answer(asked(order)[1]["shared"].nbytes))


def asked(order: Message) -> tuple[dict[str, Any], dict[str, Any]]:
    return unpack(unwrapped(order.content))


def flooded(order: Message) -> Packed:
    """As many parts as a message may name, each as large as a request may be."""
    most, pack = limits(order), packed(Message(RecordDict({}), reply_to=order))
    parts = dict(pack.parts)
    for number in range(most.parts - len(pack.parts)):
        body = number.to_bytes(4, "little") * ((most.piece - 40) // 4)
        content = b"ArrayChunk  %d\x00" % len(body) + body
        parts[hashlib.sha256(content).hexdigest()] = content
    root = pack.tree.object_id
    children = [ObjectTree(object_id=name) for name in parts if name != root]
    return Packed(pack.message, ObjectTree(object_id=root, children=children), parts)


def with_bytes(order: Message, content: bytes) -> Packed:
    pack = packed(Message(wrapped(content), reply_to=order))
    pack.message.content.Clear()  # it travels in parts
    pack.message.content.SetInParent()
    return pack


def with_update(order: Message, update: Any) -> bytes:
    """An answer that is right but for its update."""
    facts = asked(order)[0]
    told = {"run": facts["run"], "round": facts["round"], "state_round": facts["state_round"] + 1}
    return encode(told, {"update": update})


def claimed(order: Message) -> Packed:
    """An array of the right number of bytes that says it has two thousand million numbers."""
    content = with_update(order, asked(order)[1]["shared"])
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["update"]["shape"] = [2**31 - 1]
    text = json.dumps(header).encode()
    return with_bytes(order, len(text).to_bytes(8, "little") + text + content[8 + size :])


def largest(order: Message) -> Packed:
    """An update of the right shape, and no number in it."""
    vector = asked(order)[1]["shared"]
    return with_bytes(order, with_update(order, np.full_like(vector, np.nan)))


ANSWERS = (failed, failed, unsent, flooded, claimed, largest, flooded)


def connected(address: str, home: Path) -> Wire:
    """As soon as the server is there, and knows its key."""
    while True:
        try:
            return Wire(address, home)
        except httpx.HTTPError:
            time.sleep(0.5)


if __name__ == "__main__":
    wire, given = connected(sys.argv[1], Path(sys.argv[2])), 0
    while True:
        try:
            order = wire.order(1)
            if order is not None:
                answer = ANSWERS[min(given, len(ANSWERS) - 1)]
                given += 1
                wire.push(answer(order))
        except (httpx.HTTPError, RunNotRunningException) as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            time.sleep(0.5)
