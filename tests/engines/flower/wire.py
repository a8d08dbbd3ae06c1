"""A real SuperLink with its operator, and clients below our own messages: a key, and any bytes."""

from __future__ import annotations

import hashlib
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgradnorm[flower]'")

import torch
from flwr.app import Message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedgradnorm._flower.setup import init_federation, registered
from fedgradnorm._flower.trying import free_port
from fedgradnorm._flower.wire.flower import FlowerServer, Limits, read_key, unwrapped, wrapped
from fedgradnorm._flower.wire.keys import public_key_pem
from fedgradnorm._flower.wire.messages import Answer, Order, decode_order, encode_answer
from fedgradnorm._flower.wire.process import SuperLink
from fedgradnorm._flower.wire.transport import Exchange

SHARED = torch.arange(400, dtype=torch.float32)
NAMES = ("good", "bad")
LIMITS = Limits(Order("train", "r", "", 0, 0, SHARED).room())


def order(round: int = 0) -> Order:
    return Order("train", "run1", "agreed", round, 0, SHARED)


@dataclass(frozen=True)
class Packed:
    """A message as it travels: what stands on it, the names of its parts, and the parts."""

    message: Any
    tree: ObjectTree
    parts: Mapping[str, bytes]


def packed(message: Message) -> Packed:
    message.metadata.__dict__["_message_id"] = message.object_id
    parts = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
    return Packed(message_to_proto(message), get_object_tree(message), parts)


def honest(asked: Message) -> Message:
    """The answer that the server wants."""
    given = decode_order(unwrapped(asked.content), SHARED)
    answer = Answer(given.run, given.round, given.state_round + 1, SHARED / 2, {"loss": 1.0})
    return Message(wrapped(encode_answer(answer)), reply_to=asked)


def with_root(pack: Packed, content: bytes, children: Any = None) -> Packed:
    """The same with other bytes for its first part, whose name follows from them."""
    root = hashlib.sha256(content).hexdigest()
    kept = {k: v for k, v in pack.parts.items() if k != pack.tree.object_id}
    message = type(pack.message)()
    message.CopyFrom(pack.message)
    message.metadata.message_id = root
    below = pack.tree.children if children is None else children
    return Packed(message, ObjectTree(object_id=root, children=below), {**kept, root: content})


def part_not_sent(pack: Packed) -> Packed:
    """The first part names the records; the list of parts does not."""
    return with_root(pack, pack.parts[pack.tree.object_id], children=[])


class Wire:
    """A registered client that may send whatever it likes."""

    def __init__(self, address: str, home: Path) -> None:
        keys = read_key(home / "client.key")
        about = RuntimeVersionHttpInterceptor(component_name="SuperNode")
        self.client = FleetHttpClient.from_server_address(
            address, False, (home / "ca.pem").read_bytes(), [about, NodeAuthHttpInterceptor(*keys)]
        )
        request = ActivateNodeRequest(
            public_key=public_key_to_bytes(keys[1]), heartbeat_interval=600
        )
        self.node = Node(node_id=self.client.ActivateNode(request).node_id)

    def order(self, seconds: float = 30) -> Message | None:
        """The next order, whole; None if there is none in time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = self.client.PullMessages(PullMessagesRequest(node=self.node))
            if found.messages_list:
                run = found.messages_list[0].metadata.run_id
                tree = found.message_object_trees[0]
                order = pull_and_inflate_object_from_tree(
                    tree,
                    make_pull_object_fn_protobuf(self.client.PullObject, self.node, run),
                    lambda _: None,
                    return_type=Message,
                    initial_backoff=0.1,
                )
                order.metadata.__dict__["_message_id"] = tree.object_id
                return order
            time.sleep(0.05)
        return None

    def push(self, pack: Packed, but: int = 0) -> None:
        """Send a message, less its last ``but`` parts."""
        found = self.client.PushMessages(
            PushMessagesRequest(
                node=self.node,
                messages_list=[pack.message],
                message_object_trees=[pack.tree],
                clientapp_runtime_list=[0.1],
            )
        )
        wanted = [name for name in pack.parts if name in found.objects_to_push]
        for name in wanted[: len(wanted) - but]:
            self.client.PushObject(
                PushObjectRequest(
                    node=self.node,
                    run_id=pack.message.metadata.run_id,
                    object_id=name,
                    object_content=pack.parts[name],
                    session_id=found.session_id,
                )
            )

    def post(self, path: str, body: bytes) -> int:
        """The status that any bytes are answered with, signed as the client's own requests."""
        url = f"{self.client._base_url}{path}"
        request = self.client._client.build_request("POST", url, content=body)
        request.headers["content-type"] = PROTOBUF_MEDIA_TYPE
        context = ProtobufRequestContext("", Node(), request)
        return self.client._send(context).status_code

    def answering(self, reply: Callable[[Message], Any]) -> threading.Thread:
        """Answer one order, beside; ``reply`` sends it."""

        def work() -> None:
            found = self.order()
            if found is not None:
                reply(found)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    def well(self) -> threading.Thread:
        return self.answering(lambda found: self.push(packed(honest(found))))


@dataclass(frozen=True)
class Live:
    """A SuperLink, its operator, and a wire for each client."""

    operator: FlowerServer
    wires: Mapping[str, Wire]
    federation: Path
    port: int

    def ask(self, orders: Mapping[str, Order], seconds: float) -> dict[str, Any]:
        return Exchange(self.operator).ask(orders, seconds)

    def memory(self) -> int:
        """MB that the SuperLink has held at most."""
        status = Path(f"/proc/{self.operator.link.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) // 1024


@contextmanager
def started(folder: Path) -> Iterator[Live]:
    federation, port = folder / "federation", free_port()
    homes = init_federation(federation, NAMES, ("localhost",), port, listen="127.0.0.1")
    files = (federation / "superlink.db", folder / "superlink.log")
    with SuperLink(federation, "127.0.0.1", port, *files, LIMITS.size) as link:
        operator = FlowerServer(f"localhost:{port}", (federation / "ca.pem").read_bytes(), link)
        keys = {n: public_key_pem(one.key.encode()) for n, one in registered(federation).items()}
        try:
            operator.register(keys)
            with warnings.catch_warnings():  # what Flower uses warns of its own future
                warnings.simplefilter("ignore", DeprecationWarning)
                operator.start()
            wires = {
                name: Wire(operator.address, home) for name, home in zip(NAMES, homes, strict=True)
            }
            yield Live(operator, wires, federation, port)
            for wire in wires.values():
                wire.client.close()
        finally:
            operator.stop()
