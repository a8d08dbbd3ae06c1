"""Each guard of the wire by itself: what it refuses is refused where all others would let it pass.

``test_wire`` attacks a whole SuperLink. There one guard may stand in for another; here none can.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engines.flower.wire import LIMITS, Packed, honest, order, packed

# isort: split
import httpx
from flwr.app import Message
from flwr.app.error import Error
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedgradnorm._flower.wire import flower
from fedgradnorm._flower.wire.flower import (
    ACTIVATE,
    NODES,
    OPEN,
    STRANGERS,
    Fleet,
    FlowerClient,
    Incoming,
    Store,
    collect,
    wrapped,
)
from fedgradnorm._flower.wire.messages import Refused
from fedgradnorm._flower.wire.request_filter import Rejected
from fedgradnorm._flower.wire.transport import answer_next

NODE, OTHER, ASKED = 77, 78, "a" * 64


def asked() -> Message:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, SUPERLINK_NODE_ID
    sent = Message(wrapped(order().encoded()), NODE, "train", ttl=60.0)
    sent.metadata.__dict__["_message_id"] = ASKED
    return sent


def answer(**about: Any) -> Packed:
    """The honest answer, of which its own first part says these things."""
    reply = honest(asked())
    reply.metadata.__dict__.update({f"_{key}": value for key, value in about.items()})
    return packed(reply)


# What the SuperLink lets in.


def pushed(change: Callable[[PushMessagesRequest], Any]) -> bytes:
    good = answer()
    request = PushMessagesRequest(
        node=Node(node_id=NODE),
        messages_list=[good.message],
        message_object_trees=[good.tree],
        clientapp_runtime_list=[0.5],
    )
    change(request)
    return request.SerializeToString()


def about(**values: Any) -> Callable[[PushMessagesRequest], None]:
    def change(request: PushMessagesRequest) -> None:
        for key, value in values.items():
            setattr(request.messages_list[0].metadata, key, value)

    return change


def doubled(request: PushMessagesRequest) -> None:
    request.messages_list.append(request.messages_list[0])
    request.message_object_trees.append(request.message_object_trees[0])


def without_content(request: PushMessagesRequest) -> None:
    request.messages_list[0].ClearField("content")


def with_parts(*names: str) -> Callable[[PushMessagesRequest], None]:
    def change(request: PushMessagesRequest) -> None:
        tree = request.message_object_trees[0]
        tree.children.extend(ObjectTree(object_id=name) for name in names)

    return change


REQUESTS = {
    "another's name": (about(src_node_id=OTHER), "from another client"),
    "the server's name": (about(src_node_id=SUPERLINK_NODE_ID), "from another client"),
    "to another client": (about(dst_node_id=OTHER), "an answer to the server"),
    "no answer": (about(reply_to_message_id=""), "an answer to the server"),
    "time without end": (about(ttl=math.inf), "time in the message is not finite"),
    "no time": (about(created_at=math.nan), "time in the message is not finite"),
    "another type": (about(message_type="query"), "of another type"),
    "another id": (about(message_id="b" * 64), "another name than its first part"),
    "another run": (about(run_id=9), "no such run"),
    "two messages": (doubled, "carries one message"),
    "nothing in it": (without_content, "a content or an error"),
    "many parts": (with_parts(*(f"{i:064x}" for i in range(LIMITS.parts))), "more than"),
    "a part twice": (with_parts("c" * 64, "c" * 64), "parts that cannot be"),
    "a part of no name": (with_parts("../x"), "parts that cannot be"),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_with_one_thing_wrong_is_refused_for_that(name):
    change, words = REQUESTS[name]
    path, fleet = NODES + "push-messages", Fleet(LIMITS, {}.get, lambda: [1])
    fleet.check(path, NODE, pushed(lambda _: None))
    with pytest.raises(Refused, match=words):
        fleet.check(path, NODE, pushed(change))


def test_a_request_that_cannot_be_read_is_refused():
    with pytest.raises(Refused, match="cannot be read"):
        Fleet(LIMITS, {}.get, list).check(NODES + "push-messages", NODE, b"\xff" * 9)


def signed(path: str, length: int = 10) -> tuple[bytes, dict[str, Any]]:
    """A key that nobody knows, and the scope of a request that it has signed."""
    private, public = generate_key_pairs()
    request = httpx.Request("POST", f"https://localhost{path}")
    context = ProtobufRequestContext("", Node(), request)
    NodeAuthHttpInterceptor(private, public).intercept(context, lambda _: None)
    request.headers["content-length"] = str(length)
    lines = [(key.lower(), value) for key, value in request.headers.raw]
    scope = {"type": "http", "method": "POST", "path": path, "headers": lines}
    return public_key_to_bytes(public), scope


def test_a_key_that_is_not_registered_may_ask_to_be_let_in_and_nothing_else():
    for path in sorted(OPEN - {ACTIVATE}):
        key, scope = signed(path)
        with pytest.raises(Rejected, match="not registered"):
            Fleet(LIMITS, {}.get, list).signer(scope)
        assert Fleet(LIMITS, {key: NODE}.get, list).signer(scope) == NODE
    stranger = Fleet(LIMITS, {}.get, list)
    assert stranger.signer(signed(ACTIVATE)[1]) is None
    with pytest.raises(Rejected, match="not registered"):
        stranger.signer(signed(ACTIVATE, STRANGERS + 1)[1])


# What the server takes.


class Shelf:
    """Parts that lie at the SuperLink, each from its own time on."""

    def __init__(self, pack: Packed, late: Mapping[str, float] | None = None) -> None:
        self.pack, self.late, self.forgotten = pack, dict(late or {}), list[str]()

    def tree(self, _: str) -> ObjectTree:
        return self.pack.tree

    def part(self, name: str) -> bytes | None:
        return None if time.monotonic() < self.late.get(name, 0.0) else self.pack.parts[name]

    def forget(self, root: str) -> None:
        self.forgotten.append(root)


def said(shelf: Shelf, end: float = 0.0) -> Any:
    replies = list(collect([Incoming("x", NODE, ASKED, LIMITS)], shelf, end))
    return replies[0].content if replies else None


def test_an_answer_is_of_who_was_asked_and_to_what_it_was_asked():
    assert isinstance(said(Shelf(answer())), bytes)
    assert "from another client" in str(said(Shelf(answer(src_node_id=OTHER))))
    assert "was not given" in str(said(Shelf(answer(reply_to_message_id="b" * 64))))


def test_a_failure_is_a_word_whoever_says_it():
    """Flower itself answers for a client that is gone, in no client's name."""
    reply = Message(Error(code=1, reason="gone"), reply_to=asked())
    reply.metadata.__dict__["_src_node_id"] = OTHER
    assert said(Shelf(packed(reply))) == "gone"


def test_only_pieces_of_an_array_are_large():
    pack = answer()
    root = pack.tree.object_id
    head, body = pack.parts[root].split(b"\x00", 1)
    kind, children, _ = head.split(b" ")
    body += bytes(LIMITS.small)
    large = b" ".join([kind, children, b"%d" % len(body)]) + b"\x00" + body
    found = said(Shelf(Packed(pack.message, pack.tree, {**pack.parts, root: large})))
    assert f"a part of its message has {len(large)} bytes" in str(found)


def test_no_more_of_an_answer_is_taken_than_it_may_have():
    """The rest stays where it lies: a part that would be too much is the last one asked for."""
    pack, asked_for = answer(), list[str]()
    names = [f"{i:064x}" for i in range(LIMITS.parts - 1)]
    tree = ObjectTree(object_id="f" * 64, children=[ObjectTree(object_id=n) for n in names])
    shelf = Shelf(
        Packed(pack.message, tree, dict.fromkeys(["f" * 64, *names], bytes(LIMITS.total)))
    )
    real = shelf.part
    shelf.part = lambda name: asked_for.append(name) or real(name)
    assert f"more than {LIMITS.total} bytes" in str(said(shelf))
    assert len(asked_for) == 2
    assert shelf.forgotten == ["f" * 64]


@pytest.mark.parametrize("forever", [False, True])
def test_a_part_that_does_not_come_is_not_waited_for(forever):
    """The deadline is kept; what lay there at its end is used, the rest is let go."""
    pack = answer()
    last = next(iter(pack.parts))
    now = time.monotonic()
    shelf = Shelf(pack, {last: math.inf if forever else now + 0.3})
    found = said(shelf, end=now + 0.6)
    assert time.monotonic() - now < 30
    assert found is None if forever else isinstance(found, bytes)
    assert shelf.forgotten == [pack.tree.object_id]


def test_an_answer_that_lies_there_at_the_end_is_used():
    """However long it took to look at the others'."""
    assert isinstance(said(Shelf(answer()), end=time.monotonic() - 100), bytes)


@contextmanager
def superlink(code: int, content: bytes = b"") -> Iterator[Store]:
    """A server that has one answer to whatever is asked, and a store that asks it."""

    class Always(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(code)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Always) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        client = RuntimeHttpClient.from_server_address(address, True, None, [])
        try:
            grid: Any = SimpleNamespace(
                _runtime_client=client, node=Node(node_id=1), run=SimpleNamespace(run_id=1)
            )
            yield Store(grid)
        finally:
            client.close()
            server.shutdown()


@pytest.mark.parametrize(("code", "content"), [(404, b""), (200, b"\xff" * 9)])
def test_a_message_that_the_superlink_cannot_give_out_is_refused(code, content):
    with superlink(code, content) as store:
        for ask in (store.tree, store.part):
            with pytest.raises(Refused, match="the SuperLink cannot give"):
                ask(ASKED)
    with superlink(404) as store:
        store.forget(ASKED)  # it lies there a while longer


def test_a_superlink_that_is_gone_is_no_refusal():
    with superlink(200) as store:
        pass
    store.client = RuntimeHttpClient.from_server_address("127.0.0.1:9", True, None, [])
    for ask in (store.tree, store.part):
        with pytest.raises(httpx.ConnectError):
            ask(ASKED)
    store.client.close()


def test_a_part_that_was_never_sent_is_refused_and_a_late_one_is_not():
    for found, available, wanted in ((False, False, Refused), (True, False, None)):
        reply = PullObjectResponse(object_found=found, object_available=available)
        with superlink(200, reply.SerializeToString()) as store:
            if wanted is None:
                assert store.part(ASKED) is None
            else:
                with pytest.raises(wanted, match="a part that it did not send"):
                    store.part(ASKED)


def test_an_answer_to_another_order_is_none():
    pack = answer()
    reply = PullAppMessagesResponse(
        messages_list=[pack.message], message_object_trees=[pack.tree]
    ).SerializeToString()
    with superlink(200, reply) as store:
        found = store.tree(ASKED)
        assert found is not None
        assert found.object_id == pack.tree.object_id
        assert store.tree("b" * 64) is None


# What a client carries out.


class Wired(FlowerClient):
    """A client whose connection is parts out of a message, and what is sent, kept."""

    def __init__(self, outer: Message, inner: Message) -> None:
        found = get_all_nested_objects(inner)
        self.parts = {name: part.deflate() for name, part in found.items()}
        self.pulled, self.sent, self.node = list[str](), list[Message](), NODE
        self.found: Any = (outer, get_object_tree(inner))
        self._order, self._confirm, self._push = None, print, print

    def _receive(self) -> Any:
        found, self.found = self.found, None
        return found

    def _pull(self, _: int, name: str) -> bytes:
        self.pulled.append(name)
        return self.parts[name]

    def _send(self, reply: Message, *_: Any) -> tuple[set[str], str]:
        self.sent.append(reply)
        return set(), "session"

    def carries_out(self) -> None:
        while answer_next(self, lambda content: content):
            pass


@pytest.mark.parametrize("where", ["on it", "in it"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"src_node_id": OTHER}, "it does not come from the server"),
        ({"reply_to_message_id": ASKED}, "it does not come from the server"),
        ({"dst_node_id": OTHER}, "it is for another client"),
    ],
)
def test_an_order_is_the_servers_and_to_this_client_on_it_and_in_it(where, change, words, caplog):
    """What stands on it is looked at before its parts are asked for. The client continues."""
    outer, inner = asked(), asked()
    made = {"on it": outer, "in it": inner}[where]
    made.metadata.__dict__.update({f"_{key}": value for key, value in change.items()})
    wired = Wired(outer, inner)
    with caplog.at_level(logging.WARNING, "fedgradnorm"):
        wired.carries_out()
    assert caplog.messages == [f"order refused: {words}"]
    assert not wired.sent
    assert bool(wired.pulled) == (where == "in it")


def test_the_servers_order_is_carried_out():
    whole = asked()
    wired = Wired(whole, whole)
    wired.carries_out()
    (reply,) = wired.sent
    assert reply.metadata.reply_to_message_id == whole.object_id
    assert not reply.has_error()


@pytest.mark.parametrize("broken", [b"", b"Message  9\x00" + b"\xff" * 9])
def test_an_order_that_cannot_be_read_ends_no_client(broken, caplog):
    whole = asked()
    wired = Wired(whole, whole)
    wired.parts[whole.object_id] = broken
    with caplog.at_level(logging.WARNING, "fedgradnorm"):
        wired.carries_out()
    assert "order refused: it cannot be read" in caplog.text
    assert not wired.sent


def test_the_internals_of_flower_are_listed_with_their_reason():
    source = Path(flower.__file__).read_text(encoding="utf-8")
    found = re.findall(r"from flwr\.([\w.]+) import|import_module\(\"flwr\.([\w.]+)\"", source)
    used = {next(filter(None, one)) for one in found}
    listed = set(re.findall(r"``([a-z_.]+)``", source.split('"""')[1]))
    private = {name for name in used if name.split(".")[0] != "app"}
    assert {name for name in private if not any(name.startswith(one) for one in listed)} == set()
    for name in listed - {"flwr", "flwr.app"}:
        assert any(one.startswith(name) for one in used), name
