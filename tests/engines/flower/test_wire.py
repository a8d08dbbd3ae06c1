"""A registered client, and strangers, against a real SuperLink below our own messages."""

from __future__ import annotations

import os
import socket
import ssl
import time
from contextlib import suppress
from datetime import timedelta

import pytest

from engines.flower.wire import (
    LIMITS,
    Live,
    Wire,
    honest,
    order,
    packed,
    part_not_sent,
    started,
    with_root,
)

# isort: split
import httpx
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.date import now
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supernode import node_auth_http_interceptor

import fedgradnorm as fgn
from fedgradnorm._flower.setup import make_keys, registered
from fedgradnorm._flower.trying import free_port
from fedgradnorm._flower.wire import reasons
from fedgradnorm._flower.wire.flower import STARTING, FlowerClient, FlowerServer
from fedgradnorm._flower.wire.keys import public_key_pem
from fedgradnorm._flower.wire.messages import Refused
from fedgradnorm._flower.wire.process import SuperLink
from fedgradnorm._flower.wire.request_filter import HEAD
from fedgradnorm._flower.wire.transport import Lost

pytestmark = pytest.mark.slow

FLOOD = int(os.environ.get("FEDGRADNORM_FLOOD", "100"))  # MB that a stranger sends, eight times


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    with started(tmp_path_factory.mktemp("wire")) as found:
        yield found


def asked(live: Live, seconds: float = 60.0) -> dict:
    return live.ask(dict.fromkeys(live.wires, order()), seconds)


def not_a_message(pack):
    return with_root(pack, b"ConfigRecord  0\x00", children=[])


def junk(pack):
    return with_root(pack, b"Message  9\x00" + b"\xff" * 9, children=[])


BAD = {
    "a part that is not sent": (part_not_sent, "KeyError"),
    "no message": (not_a_message, "not a message"),
    "bytes that are none": (junk, "DecodeError"),
}


@pytest.mark.parametrize("name", BAD)
def test_whatever_a_client_sends_is_refused_and_the_others_count(name, live):
    change, words = BAD[name]
    good, bad = live.wires["good"], live.wires["bad"]
    good.well()
    bad.answering(lambda found: bad.push(change(packed(honest(found)))))
    found = asked(live)
    assert isinstance(found["good"], bytes)
    assert isinstance(found["bad"], Refused)
    assert words in str(found["bad"])


def test_half_an_answer_does_not_hold_up_the_round(live):
    good, bad = live.wires["good"], live.wires["bad"]
    bad.answering(lambda found: bad.push(packed(honest(found)), but=1))

    def late(found):
        time.sleep(4)
        good.push(packed(honest(found)))

    good.answering(late)
    began = time.monotonic()
    found = asked(live, 12.0)
    assert time.monotonic() - began < 12 + 15  # Flower would wait for minutes
    assert isinstance(found["good"], bytes)
    assert found["bad"] == "no answer in 12 s"


def test_an_answer_in_time_counts_however_late_it_is_looked_at(live):
    """A server that is busy with others' answers comes to it after the deadline."""
    answered = live.wires["good"].well()
    live.operator.send("good", order().encoded(), order().room(), 1.0)
    answered.join(30)
    time.sleep(1.5)
    (reply,) = live.operator.collect(time.monotonic())
    assert isinstance(reply.content, bytes)


def status(call, *given) -> int:
    with pytest.raises(httpx.HTTPStatusError) as error:
        call(*given)
    return error.value.response.status_code


def test_a_client_speaks_for_itself_alone(live):
    """It sends no orders, and no answers in another's name or to orders that were another's."""
    good, bad = live.wires["good"], live.wires["bad"]

    def impersonate(found):
        pack = packed(honest(found))
        pack.message.metadata.src_node_id = good.node.node_id
        seen.append(status(bad.push, pack))
        command = packed(honest(found))
        command.message.metadata.src_node_id = SUPERLINK_NODE_ID
        command.message.metadata.dst_node_id = good.node.node_id
        command.message.metadata.reply_to_message_id = ""
        seen.append(status(bad.push, command))
        bad.push(packed(honest(found)))

    seen: list[int] = []
    good.well()
    bad.answering(impersonate)
    found = asked(live)
    assert seen == [400, 400]
    assert all(isinstance(content, bytes) for content in found.values())
    assert good.order(1) is None


def test_an_answer_to_anothers_order_is_not_kept(live):
    good, bad = live.wires["good"], live.wires["bad"]

    def steal(found):
        pack = packed(honest(found))
        pack.message.metadata.src_node_id = bad.node.node_id
        bad.push(pack)  # it names the order of the good client
        good.push(packed(honest(found)))

    good.answering(steal)
    bad.answering(lambda found: bad.push(packed(honest(found))))
    found = asked(live)
    assert isinstance(found["good"], bytes)
    assert isinstance(found["bad"], bytes)


def test_an_answer_has_a_largest_size(live):
    bad, limits = live.wires["bad"], LIMITS

    def flood(found):
        pack = packed(honest(found))
        many = [ObjectTree(object_id=f"{i:064x}") for i in range(limits.parts)]
        seen.append(status(bad.push, with_root(pack, b"ConfigRecord  0\x00", children=many)))
        large = b"ArrayChunk  %d\x00" % limits.request + bytes(limits.request)
        seen.append(status(bad.push, with_root(pack, large, children=[])))

    seen: list[int] = []
    bad.answering(flood)
    found = live.ask({"bad": order()}, 6.0)
    assert seen == [400, 413]
    assert isinstance(found["bad"], str)


def connected(live: Live) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(live.federation / "ca.pem"))
    plain = socket.create_connection(("localhost", live.port), timeout=30)
    return context.wrap_socket(plain, server_hostname="localhost")


def sent(live: Live, head: str, megabytes: int) -> bytes:
    """The answer to a request whose body lasts for so long, or as long as it is taken."""
    piece = bytes(1 << 20)
    with connected(live) as line:
        line.sendall(f"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode())
        with suppress(OSError):
            for _ in range(megabytes):
                line.sendall(b"100000\r\n" + piece + b"\r\n" if "chunked" in head else piece)
        try:
            return line.recv(200).split(b"\r\n")[0]
        except OSError:
            return b"cut off"


@pytest.mark.parametrize(
    ("head", "code"),
    [("Transfer-Encoding: chunked", b"411"), ("Content-Length: 2621440000", b"413")],
)
def test_strangers_make_the_superlink_hold_nothing(head, code, live, record_testsuite_property):
    before = live.memory()
    answers = [sent(live, head, FLOOD) for _ in range(8)]
    grown = live.memory() - before
    record_testsuite_property(f"MB that the SuperLink grew by, {head}", grown)
    assert all(code in answer or answer == b"cut off" for answer in answers), answers
    assert grown < 40


def test_a_body_without_a_signature_is_not_read(live):
    length = LIMITS.request
    assert b"401" in sent(live, f"Content-Length: {length}", 0)


def test_a_connection_that_says_nothing_is_closed(live):
    with connected(live) as idle, connected(live) as slow:
        slow.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\n")
        began = time.monotonic()
        for line in (idle, slow):
            line.settimeout(HEAD + 30)
            with suppress(ConnectionError, ssl.SSLError):  # cut off is as good
                assert line.recv(1) == b""
        assert time.monotonic() - began < HEAD + 20


def test_a_client_has_few_requests_at_a_time(live):
    """Slow ones: each has said how much it will send, is signed, and sends nothing more."""
    wire: Wire = live.wires["bad"]
    lines = []
    try:
        for _ in range(9):
            line = connected(live)
            lines.append(line)
            line.sendall(signed_head(wire, 100))
        lines[-1].settimeout(20)
        assert b"429" in lines[-1].recv(200)
    finally:
        for line in lines:
            line.close()


def signed_head(wire: Wire, length: int) -> bytes:
    """The head of a request with the signature that the client's own requests have."""
    request = httpx.Request("POST", "https://localhost/v1/fleet/push-object")
    context = ProtobufRequestContext("", wire.node, request)
    wire.client._interceptors[1].intercept(context, lambda _: None)
    own = {k: v for k, v in request.headers.items() if k != "content-length"}
    lines = "".join(f"{key}: {value}\r\n" for key, value in own.items())
    words = f"POST /v1/fleet/push-object HTTP/1.1\r\n{lines}Content-Length: {length}\r\n\r\n"
    return words.encode()


def test_a_wrong_clock_is_named(live, monkeypatch):
    """By the time that the server's answer shows."""
    home = live.federation / "clients" / "good"
    client, real = FlowerClient(live.operator.address, home / "ca.pem", home / "client.key"), now
    for shift, words in ((60, r"(59|6[0-9]) s ahead of"), (-400, r"(39[0-9]|400|401) s behind")):
        seconds = timedelta(seconds=shift)
        monkeypatch.setattr(node_auth_http_interceptor, "now", lambda by=seconds: real() + by)
        monkeypatch.setattr(reasons.time, "time", lambda by=shift: real().timestamp() + by)
        with pytest.raises(Lost, match=words):
            client.check_let_in()


def test_keys_change_more_than_once_while_a_run_is_served(live, tmp_path):
    """A renewal, then a revocation: the SuperLink lists all nodes that it has ever known."""
    known = {n: public_key_pem(one.key.encode()) for n, one in registered(live.federation).items()}
    homes = [tmp_path / "old", tmp_path / "new"]
    keys = [public_key_pem(make_keys(home, "third").key.encode()) for home in homes]
    old, new = (
        FlowerClient(live.operator.address, live.federation / "ca.pem", home / "client.key")
        for home in homes
    )
    live.operator.register({**known, "third": keys[0]})
    old.check_let_in()
    live.operator.register({**known, "third": keys[1]})
    new.check_let_in()
    with pytest.raises(Lost, match=r"does not let this client in .*must be registered there"):
        old.check_let_in()
    live.operator.register(known)
    live.operator.register(known)
    with pytest.raises(Lost, match="does not let this client in"):
        new.check_let_in()


def test_a_server_that_is_gone_is_named(live):
    address = f"localhost:{free_port()}"
    home = live.federation / "clients" / "good"
    client = FlowerClient(address, home / "ca.pem", home / "client.key")
    with pytest.raises(Lost, match=f"{address} does not answer"):
        client.check_let_in()


def test_a_taken_port_is_named(live, tmp_path):
    link = SuperLink(live.federation, "127.0.0.1", live.port, tmp_path, tmp_path, 1)
    with pytest.raises(fgn.ConfigError, match=f"127.0.0.1:{live.port}: something listens there"):
        link.__enter__()


def test_a_superlink_that_died_at_the_start_is_named(live, tmp_path):
    """Not after a minute and a half of waiting: its last word is there at once."""
    (tmp_path / "ca.pem").write_bytes(b"no certificate")
    (tmp_path / "server.pem").write_bytes(b"no certificate")
    (tmp_path / "server.key").write_bytes(b"no key")
    port, authority = free_port(), (live.federation / "ca.pem").read_bytes()
    began, files = time.monotonic(), (tmp_path / "db", tmp_path / "superlink.log")
    with SuperLink(tmp_path, "127.0.0.1", port, *files, 1) as link:
        operator = FlowerServer(f"localhost:{port}", authority, link)
        with pytest.raises(fgn.TrainingError, match="the SuperLink has ended"):
            operator.register({})
        operator.stop()
    assert time.monotonic() - began < STARTING
