"""The transport over Flower: the only module that imports ``flwr``, pinned to one version of it.

Flower carries our bytes between machines: TLS, a key per client, heartbeats, a store of messages at
the server. No program travels. Ordinarily a SuperNode starts a process per message with a program
that came from the server, and whoever reaches a SuperLink may register keys and submit programs.
A client here is one resident process that keeps its data, its network and its state in memory, and
the SuperLink opens nothing but the clients' own interface. Flower has no public way to do either,
so these internals are used:

===============================================  ==================================================
``superlink.main``, ``superlink.cli``,           the SuperLink's web application, behind the
``supercore.app_utils``                          request filter and with our connections; it ends
                                                 with the server's process (:func:`main`)
``superlink.routers.fleet.node_auth``            checks a request's signature before its body is
                                                 read (:class:`Fleet`)
``supercore.protobuf.translation``, ``proto``    reads a request as the SuperLink will, to check
                                                 that a client answers for itself alone
``supercore.control``, ``supercore.runtime``,    registers keys, starts a run and fetches answers
``superlink.grid``, ``supercore.interceptors``   client by client; ``Grid.pull_messages`` waits for
                                                 all parts of all of them (:class:`FlowerServer`)
``cli.build``, ``supercore.fab``,                what a run of Flower's must have to be started: a
``common.serde``, ``supercore.heartbeat``,       program, here an empty one, and the heartbeat of
``supercore.task_identity``                      the task that sends its messages
``supercore.inflatable``                         puts a message together from parts that a client
                                                 sent, within our limits
``supernode.fleet_http_connection``,             the node's connection, without the process that
``supernode.fleet_http_client``,                 runs the server's program, and whether the node is
``supernode.node_auth_http_interceptor``,        let in (:class:`FlowerClient`)
``supercore.primitives``
``supercore.retry``, ``supercore.error``,        how often a request is repeated, and what Flower
``supercore.run``, ``supercore.constant``,       raises and calls things
``common.constant``
===============================================  ==================================================

Of the public interface (``flwr.app``) it uses messages, records and arrays. A message of ours is
one array of bytes, so Flower sends it in pieces of ``CHUNK`` bytes.

As a process: ``python -m fedgradnorm._flower.wire.flower FLOWER'S ARGUMENTS`` is the SuperLink.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import time
from base64 import b64decode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from fastapi import HTTPException, Request
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.app.error import Error
from flwr.app.message import Array
from flwr.app.message.arraychunk import ArrayChunk
from flwr.app.metadata import Metadata
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE as CHUNK
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode, SubStatus
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    RegisterNodeRequest,
    StartRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
)
from flwr.supercore.app_utils import start_parent_process_monitor
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, NodeStatus, TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import FlowerError
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_body,
    get_object_head_values_from_object_content,
    get_object_tree,
    is_valid_sha256_hash,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    pull_and_inflate_object_from_tree,
    push_objects,
)
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.translation import (
    PROTOBUF_REQUEST_TYPES,
    ProtobufTranslationMiddleware,
)
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from flwr.superlink.routers.fleet.node_auth import authenticate_node
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.fleet_http_connection import http_request_response
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedgradnorm._errors import ConfigError, TrainingError
from fedgradnorm._flower.wire import process
from fedgradnorm._flower.wire.messages import Refused
from fedgradnorm._flower.wire.process import SuperLink
from fedgradnorm._flower.wire.reasons import why
from fedgradnorm._flower.wire.request_filter import (
    HEADER,
    Rejected,
    RequestFilter,
    ShortConnection,
)
from fedgradnorm._flower.wire.transport import Content, Reply

log = logging.getLogger("fedgradnorm")

# -------------------------------------------------------------------------------------------------
# A message as Flower has it: one array of bytes, and the parts that it travels in
# -------------------------------------------------------------------------------------------------

TYPE = "train"  # Flower's word for any message of ours; what is asked for is inside
NAME = "message"  # of its record, its array and the array's format
RECORDS = 6  # parts besides the pieces of the array: message, records, record, array, two to spare


def wrapped(content: bytes) -> RecordDict:
    array = Array(dtype="uint8", shape=(len(content),), stype=NAME, data=content)
    return RecordDict({NAME: ArrayRecord({NAME: array})})


def unwrapped(records: RecordDict) -> bytes:
    """Our message out of Flower's records, which may hold anything."""
    record = records.get(NAME)
    if len(records) != 1 or not isinstance(record, ArrayRecord) or list(record) != [NAME]:
        raise Refused("its message holds something else than one array")
    return bytes(record[NAME].data)


@dataclass(frozen=True)
class Limits:
    """What an answer of at most ``size`` bytes may have once Flower has cut it into parts."""

    size: int

    @property
    def parts(self) -> int:
        """Parts that a message may name."""
        return RECORDS + math.ceil(self.size / CHUNK)

    @property
    def small(self) -> int:
        """Bytes of a part that is no piece of an array; it may list all other parts."""
        return (16 << 10) + 160 * self.parts

    @property
    def piece(self) -> int:
        """Bytes of one part, whichever it is."""
        return max(min(self.size, CHUNK) + 1024, self.small)

    @property
    def request(self) -> int:
        """Bytes of one request: a part, and what identifies it."""
        return self.piece + (4 << 10)

    @property
    def total(self) -> int:
        """Bytes of all parts of a message."""
        return self.size + RECORDS * self.small


def named_parts(tree: ObjectTree, limits: Limits) -> list[str]:
    """The parts that a message says it has, its first one last; refused where that cannot be."""
    found = [node.object_id for node in iterate_object_tree(tree)]
    if len(found) > limits.parts:
        raise Refused(f"its message names {len(found)} parts, more than {limits.parts}")
    if len(set(found)) != len(found) or not all(map(is_valid_sha256_hash, found)):
        raise Refused("its message names parts that cannot be")
    return found


def put_together(root: str, parts: Mapping[str, bytes], limits: Limits) -> Message:
    """The message whose first part is ``root``; refused if it cannot be read."""
    try:
        for content in parts.values():
            kind, children, _ = get_object_head_values_from_object_content(content)
            if kind != ArrayChunk.__qualname__ and len(content) > limits.small:
                raise Refused(f"a part of its message has {len(content)} bytes")
            if kind == Array.__qualname__:  # it may name one piece many times
                pieces = json.loads(get_object_body(content, Array))["arraychunk_ids"]
                size = sum(len(parts[children[i]]) for i in pieces)
                if size > limits.total:
                    raise Refused(f"its array has {size} bytes, more than {limits.total}")
        message = inflate_object_from_contents(root, dict(parts))
    except Refused:
        raise
    except Exception as error:  # of Flower, protobuf, json: there is no list of what they raise
        raise Refused(f"its message cannot be read ({type(error).__name__})") from error
    if not isinstance(message, Message):
        raise Refused("what it sent is not a message")
    return message


# -------------------------------------------------------------------------------------------------
# The SuperLink's process
# -------------------------------------------------------------------------------------------------

NODES = "/v1/fleet/"
ACTIVATE = NODES + "activate-node"
OPEN = {ACTIVATE} | {
    NODES + path
    for path in (
        "deactivate-node", "send-node-heartbeat", "pull-messages", "pull-object",
        "confirm-message-received", "push-messages", "push-object",
    )
}  # fmt: skip
"""All that a client needs. Flower has more: nodes that register themselves, programs."""
STRANGERS = 4 << 10  # bytes that an unregistered key may send, to be refused


class Fleet:
    """Flower's interface for nodes, as the request filter sees it.

    ``nodes`` gives the node that a public key is registered for, ``runs`` the runs that exist.
    Flower checks that a request is signed by the node that it names. It does not check that a
    message inside is of that node: a client could send orders to others, or answer for them.
    """

    paths: Collection[str] = OPEN

    def __init__(
        self,
        limits: Limits,
        nodes: Callable[[bytes], int | None],
        runs: Callable[[], Iterable[int]],
    ) -> None:
        self.limits, self.nodes, self.runs, self.most = limits, nodes, runs, limits.request
        self.known_runs = set[int]()

    def signer(self, scope: Mapping[str, Any]) -> int | None:
        """The node that signed the request; None for a key that may ask to be activated only."""
        request = Request({**scope, "state": {}})
        try:
            key = b64decode(request.headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
            request.state.protobuf_request = ActivateNodeRequest(public_key=key)
            authenticate_node(request)
        except (HTTPException, KeyError, ValueError, UnicodeError) as error:
            raise Rejected(401, "not signed by a client, or its clock is wrong") from error
        node = self.nodes(key)
        if node is None and (
            scope["path"] != ACTIVATE or int(request.headers["content-length"]) > STRANGERS
        ):
            raise Rejected(401, "the key is not registered")
        return node

    def check(self, path: str, client: int | None, body: bytes) -> None:
        """Refuse a body that is not what ``path`` takes, another's message, or an unknown run."""
        try:
            kind = PROTOBUF_REQUEST_TYPES["POST", path]
            request = ProtobufTranslationMiddleware._parse_request(body, kind)
        except FlowerError as error:
            raise Refused("the request cannot be read") from error
        if isinstance(request, PushMessagesRequest):
            self._check_message(request, client)
            run = request.messages_list[0].metadata.run_id
        elif "run_id" in request.DESCRIPTOR.fields_by_name:
            run = request.run_id
        else:
            return
        if run not in self.known_runs:
            self.known_runs = set(self.runs())
        if run not in self.known_runs:
            raise Refused("there is no such run")

    def _check_message(self, request: PushMessagesRequest, node: int | None) -> None:
        """One answer, of this node, to the server, to an order; its parts named as they may be."""
        if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
            raise Refused("a request carries one message")
        message, tree = request.messages_list[0], request.message_object_trees[0]
        if message.HasField("content") == message.HasField("error"):
            raise Refused("a message has a content or an error")
        about = message.metadata
        if about.src_node_id != node:
            raise Refused("the message says that it is from another client")
        if about.dst_node_id != SUPERLINK_NODE_ID or not about.reply_to_message_id:
            raise Refused("a client's message is an answer to the server")
        times = (about.ttl, about.created_at, *request.clientapp_runtime_list)
        if not all(map(math.isfinite, times)):
            raise Refused("a time in the message is not finite")
        if about.message_type != TYPE:
            raise Refused("the message is of another type than the order")
        if about.message_id != tree.object_id:
            raise Refused("the message has another name than its first part")
        named_parts(tree, self.limits)


def main() -> None:
    """Serve until killed, or until the process that started this one is gone."""
    secret, parent, size = (os.environ.pop(name) for name in process.PASSED)
    import uvicorn
    from flwr.superlink.main import create_app

    # The package has a function of the module's name, so the module is asked for by name.
    superlink = import_module("flwr.superlink.cli.flower_superlink")
    start_parent_process_monitor(int(parent))
    config = superlink._parse_superlink_lifespan_config()
    app = create_app(config, superlink.SuperLinkLifespan)
    fleet = Fleet(
        Limits(int(size)),
        lambda key: app.state.linkstate_factory.state().get_node_id_by_public_key(key),
        lambda: [run.run_id for run in app.state.linkstate_factory.state().get_run_info()],
    )
    app.add_middleware(RequestFilter, secret=secret, interface=fleet)
    uvicorn.run(
        app,
        host=config.host,
        port=config.port,
        http=ShortConnection,
        ws="none",
        log_level="warning",
        access_log=False,
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
    )


# -------------------------------------------------------------------------------------------------
# The server's side
# -------------------------------------------------------------------------------------------------

POLL = 0.2  # seconds between two looks for answers
GRACE = 10.0  # seconds that an answer is kept after the deadline, until it was looked for
STARTING = 90.0  # seconds until the SuperLink must answer
LOST = "the SuperLink does not answer"
LOSSES = (httpx.HTTPError, RuntimeError, RunNotRunningException)  # the last is no Exception

_APP = b"""\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "fedgradnorm"
version = "1.0.0"
description = "No program travels: both sides run the one installed locally."
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "fedgradnorm"
[tool.flwr.app.components]
serverapp = "none:none"
clientapp = "none:none"
[tool.flwr.app.config]
"""


class _Secret:
    """Shows the operator's secret with every request."""

    def __init__(self, secret: str) -> None:
        self.secret = secret

    def intercept(self, context: Any, call_next: Any) -> Any:
        context.request.headers[HEADER] = self.secret
        return call_next(context)


class _Grid(HttpGrid):
    """Flower's grid, as the operator, and giving up soon when the SuperLink is gone."""

    def __init__(self, address: str, authority: bytes, token: str, secret: str) -> None:
        super().__init__(address, False, authority, token=token)
        self._secret = secret
        self._retry_invoker.max_tries = 4

    def _connect(self) -> None:
        about = RuntimeVersionHttpInterceptor(component_name="flwr-serverapp")
        shown: list[Any] = [about, RuntimeTokenHttpInterceptor(self._token), _Secret(self._secret)]
        self._client = RuntimeHttpClient.from_server_address(
            self._addr, False, self._cert, shown, retry_invoker=self._retry_invoker
        )


class FlowerServer:
    """The server's transport: speaks to its SuperLink as the operator, to clients by name."""

    def __init__(self, address: str, authority: bytes, link: SuperLink) -> None:
        self.address, self.authority, self.link = address, authority, link
        about = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
        self._control = ControlHttpClient.from_server_address(
            address, False, authority, [about, _Secret(link.secret)]
        )
        self.nodes: dict[str, int] = {}
        self._expected: list[Incoming | Reply] = []
        self._here: set[int] | None = None  # who was connected when the first order was sent
        self._grid: _Grid | None = None
        self._heart: HeartbeatSender | None = None

    def register(self, keys: Mapping[str, bytes]) -> None:
        """Let exactly these clients in, by their public keys; all other keys are let in no more."""
        listed = self._answering().nodes_info  # also those that were let in once and are no more
        known = {n.public_key: n.node_id for n in listed if n.status != NodeStatus.UNREGISTERED}
        with self._reached():
            for key, node in known.items():
                if key not in keys.values():
                    self._control.UnregisterNode(UnregisterNodeRequest(node_id=node))
            for name, key in keys.items():
                if key not in known:
                    request = RegisterNodeRequest(public_key=key, name=name)
                    known[key] = self._control.RegisterNode(request).node_id
                self.nodes[name] = known[key]

    def _answering(self) -> Any:
        """The SuperLink's list of nodes, as soon as it answers."""
        end = time.monotonic() + STARTING
        while True:
            try:
                return self._control.ListNodes(ListNodesRequest())
            except httpx.HTTPError as error:
                self.link.check()
                if "CERTIFICATE_VERIFY_FAILED" in str(error):  # waiting does not change that
                    raise TrainingError(
                        f"{self.address}: the server's own certificate does not hold ({error}); "
                        "check this machine's clock; if it is right, make a new federation "
                        "(fedgradnorm federation init)"
                    ) from error
                if time.monotonic() > end:
                    raise TrainingError(f"{LOST} after {STARTING:.0f} s: {error}") from error
                time.sleep(POLL)

    def start(self) -> None:
        """Begin a run of Flower's; messages travel within it."""
        with self._reached():
            self._start()

    def _start(self) -> None:
        fab, _ = build_fab_from_files({"pyproject.toml": _APP})
        packed = fab_to_proto(Fab(hashlib.sha256(fab).hexdigest(), fab, {}))
        run = self._control.StartRun(StartRunRequest(fab=packed)).run_id
        about = RuntimeVersionHttpInterceptor(component_name="SuperExec")
        runtime = RuntimeHttpClient.from_server_address(
            self.address,
            False,
            self.authority,
            [about, _Secret(self.link.secret)],
            retry_invoker=make_simple_http_retry_invoker(),
        )
        token, end = "", time.monotonic() + STARTING
        wanted = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
        while not token:
            found = runtime.AcquireTask(wanted)
            if found.HasField("task") and found.token and found.task.run_id == run:
                token = found.token
            elif time.monotonic() > end:
                raise TrainingError("the SuperLink does not start the run")
            else:
                time.sleep(POLL)
        runtime.close()
        self._grid = _Grid(self.address, self.authority, token, self.link.secret)
        client = self._grid._runtime_client
        task = client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
        TaskIdentity.node_id = task.context.node_id
        self._grid.set_run(run_from_proto(task.run))
        self._heart = HeartbeatSender(make_task_heartbeat_fn_http(client))
        self._heart.start()

    def connected(self) -> list[str]:
        with self._reached():
            here = set(self._running.get_node_ids())
        return [name for name, node in self.nodes.items() if node in here]

    def send(self, client: str, message: bytes, room: int, seconds: float) -> None:
        """Put an order where the client looks for orders; see ``ServerTransport``."""
        now = time.monotonic()
        with self._reached():
            if self._here is None:
                self._here = set(self._running.get_node_ids())
            node = self.nodes.get(client, -1)
            if node not in self._here:
                self._expected.append(Reply(client, "not connected", 0.0))
                return
            order = Message(wrapped(message), node, TYPE, ttl=seconds + GRACE)
            for key in self._running.push_messages([order]):
                if key:
                    self._expected.append(Incoming(client, node, key, Limits(room), now))

    def collect(self, deadline: float) -> Iterator[Reply]:
        expected, self._expected, self._here = self._expected, [], None
        yield from (one for one in expected if isinstance(one, Reply))
        waiting = [one for one in expected if isinstance(one, Incoming)]
        with self._reached():
            yield from collect(waiting, Store(self._running), deadline)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """A TrainingError where the SuperLink does not answer: why, as far as it can be known."""
        try:
            yield
        except LOSSES as error:
            self.link.check()
            raise TrainingError(f"{LOST}: {error or type(error).__name__}") from error

    @property
    def _running(self) -> _Grid:
        assert self._grid is not None
        return self._grid

    def stop(self) -> None:
        """End the run at the SuperLink, as far as it still answers."""
        if self._heart is not None and self._heart.is_running:
            self._heart.stop()
        if self._grid is not None:
            self._grid._retry_invoker.max_tries = 1
            done = PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details="")
            try:
                self._grid._runtime_client.PushTaskOutput(done)
            except (httpx.HTTPError, RuntimeError) as error:
                log.info("the SuperLink was not notified of the run's end: %s", error)
            self._grid.close()
        self._control.close()


class Store:
    """The SuperLink's messages and their parts, one at a time.

    A status that the SuperLink answers with is about the one message that was asked for, so that
    message is refused. A SuperLink that does not answer at all is another matter, and is raised.
    """

    def __init__(self, grid: HttpGrid) -> None:
        self.client, self.node, self.run = grid._runtime_client, grid.node, grid.run.run_id

    def tree(self, asked: str) -> ObjectTree | None:
        """The parts of the answer to an order, or None while there is none."""
        try:
            found = self.client.PullMessages(PullAppMessagesRequest(message_ids=[asked]))
        except (httpx.HTTPStatusError, ValueError) as error:
            raise Refused("the SuperLink cannot give its message out") from error
        trees: list[ObjectTree] = [
            tree
            for message, tree in zip(found.messages_list, found.message_object_trees, strict=False)
            if message.metadata.reply_to_message_id == asked
        ]
        return trees[0] if trees else None

    def part(self, name: str) -> bytes | None:
        """One part, None while it is not there; refused if it never will be."""
        request = PullObjectRequest(node=self.node, run_id=self.run, object_id=name)
        try:
            found = self.client.PullObject(request)
        except (httpx.HTTPStatusError, ValueError) as error:
            raise Refused("the SuperLink cannot give a part of its message out") from error
        if not found.object_found:
            raise Refused("its message names a part that it did not send")
        return found.object_content if found.object_available else None

    def forget(self, root: str) -> None:
        """Let a message go, with all parts that no other one has."""
        request = ConfirmMessageReceivedRequest(
            node=self.node, run_id=self.run, message_object_id=root
        )
        try:
            self.client.ConfirmMessageReceived(request)
        except httpx.HTTPStatusError:
            return  # it lies there until the run is over


@dataclass
class Incoming:
    """One client's answer, as much of it as is here; ``asked`` names the order it is for."""

    name: str
    node: int
    asked: str
    limits: Limits
    since: float = field(default_factory=time.monotonic)
    root: str = ""
    missing: list[str] = field(default_factory=list)
    parts: dict[str, bytes] = field(default_factory=dict)

    def take(self, source: Store) -> Message | None:
        """The whole answer, or None while some of it is not there; never waits.

        An error is a text of the client, or of Flower in its place; who says it changes nothing.
        """
        if not self.root:
            tree = source.tree(self.asked)
            if tree is None:
                return None
            self.root = tree.object_id
            self.missing = named_parts(tree, self.limits)
        while self.missing:
            content = source.part(self.missing[-1])
            if content is None:
                return None
            self.parts[self.missing.pop()] = content
            if sum(map(len, self.parts.values())) > self.limits.total:
                raise Refused(f"its message has more than {self.limits.total} bytes")
        message = put_together(self.root, self.parts, self.limits)
        if not message.has_error():
            if message.metadata.src_node_id != self.node:
                raise Refused("its message says that it is from another client")
            if message.metadata.reply_to_message_id != self.asked:
                raise Refused("its message answers to an order that it was not given")
        return message

    def content(self, source: Store) -> Content | None:
        """The answer, or why it is refused, or the client's own word for what went wrong.

        Nothing else of it is held from here on. The error is a new one, for the frames that it was
        raised in hold the parts.
        """
        try:
            message = self.take(source)
            if message is None:
                return None
            found: Content
            if message.has_error():
                words = " ".join(str(message.error.reason or "failed").split())[:200]
                found = "".join(letter for letter in words if letter.isprintable())
            else:
                found = unwrapped(message.content)
        except Refused as error:
            found = Refused(str(error))
        self.parts.clear()
        if self.root:
            source.forget(self.root)
        return found


def collect(expected: Iterable[Incoming], source: Store, deadline: float) -> Iterator[Reply]:
    """Each client's reply as soon as it is whole; nobody is waited for beyond ``deadline``.

    Then each is looked at once more: an answer that lies there is used, however long the others'
    took. Flower's own way asks for all answers at once and waits for parts that are missing, so one
    client that sends half a message would hold up the others.
    """
    waiting, over = list(expected), False
    while waiting and not over:
        over = time.monotonic() >= deadline
        for one in list(waiting):
            content = one.content(source)
            if content is not None:
                waiting.remove(one)
                yield Reply(one.name, content, time.monotonic() - one.since)
        if waiting and not over:
            time.sleep(max(0.0, min(POLL, deadline - time.monotonic())))
    for one in waiting:
        if one.root:
            source.forget(one.root)


# -------------------------------------------------------------------------------------------------
# A client's side
# -------------------------------------------------------------------------------------------------

PULL = 60.0  # seconds that the parts of an order have to come
AGAIN = 20.0  # seconds for which a lost request is repeated
PROBE = 60.0  # seconds until Flower would forget a node whose process was killed meanwhile
Keys = tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]


class FlowerClient:
    """A client's transport, connected while it is entered; repeats lost requests for a while."""

    def __init__(self, address: str, authority: Path, key: Path) -> None:
        self.address, self.keys = address, read_key(key)
        self.authority = authority.read_bytes()
        self._stack = ExitStack()
        self._order: Message | None = None

    def __enter__(self) -> FlowerClient:
        connection = http_request_response(
            self.address, False, self.authority, self.keys, max_wait_time=AGAIN
        )
        self.node, self._receive, self._send, _, _, self._pull, self._push, self._confirm = (
            self._stack.enter_context(connection)
        )
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def check_let_in(self, before: int | None = None) -> None:
        """Raise ``why`` unless the server lets this client in: Flower's own connection would exit.

        ``before`` is the node of an earlier process of this client, which may not have ended well:
        Flower would hold it for taken until a minute without heartbeats.
        """
        about = RuntimeVersionHttpInterceptor(component_name="SuperNode")
        with FleetHttpClient.from_server_address(
            self.address, False, self.authority, [about, NodeAuthHttpInterceptor(*self.keys)]
        ) as client:
            if before is not None:
                with suppress(httpx.HTTPError, RuntimeError):
                    client.DeactivateNode(DeactivateNodeRequest(node_id=before))
            key = public_key_to_bytes(self.keys[1])
            request = ActivateNodeRequest(public_key=key, heartbeat_interval=PROBE)
            try:
                node = client.ActivateNode(request).node_id
                client.DeactivateNode(DeactivateNodeRequest(node_id=node))
            except (httpx.HTTPError, RuntimeError) as error:
                raise why(self.address, error) from error

    def receive(self) -> bytes | None:
        """The next whole order; refused unless it is the server's, to this client."""
        try:
            found = self._receive()
            if found is None:
                return None
            self._order = self._whole(*found)
        except RunNotRunningException:
            log.info("the server's run is over; waiting for the next")
            return None
        except httpx.HTTPError as error:
            raise why(self.address, error) from error
        return unwrapped(self._order.content)

    def _whole(self, head: Message, tree: ObjectTree) -> Message:
        check_order(head.metadata, self.node)
        run = head.metadata.run_id
        try:
            order = pull_and_inflate_object_from_tree(
                tree,
                partial(self._pull, run),
                partial(self._confirm, run),
                return_type=Message,
                max_time=PULL,
            )
        except httpx.HTTPError:  # a lost connection, not a bad order
            raise
        except Exception as error:  # of Flower, protobuf, json: there is no list of what they raise
            raise Refused(f"it cannot be read ({type(error).__name__})") from error
        check_order(order.metadata, self.node)
        order.metadata.__dict__["_message_id"] = tree.object_id
        return order

    def answer(self, reply: bytes | str) -> None:
        """Answer the order received last; see ``ClientTransport``."""
        assert self._order is not None
        order, self._order = self._order, None
        if isinstance(reply, bytes):
            message = Message(wrapped(reply), reply_to=order)
        else:
            code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            message = Message(Error(code=code, reason=reply), reply_to=order)
        message.metadata.__dict__["_message_id"] = message.object_id
        push = partial(self._push, order.metadata.run_id)
        try:
            with no_object_id_recompute():
                wanted, session = self._send(message, get_object_tree(message), 0.0)
                objects = get_all_nested_objects(message)
                push_objects(objects, partial(push, session), object_ids_to_push=wanted)
        except RunNotRunningException:
            log.info("the server's run is over; waiting for the next")
        except httpx.HTTPError as error:
            raise why(self.address, error) from error


def check_order(about: Metadata, node: int) -> None:
    """Refuse an order that is not from the server, or not to this client, or that is an answer."""
    if about.src_node_id != SUPERLINK_NODE_ID or about.reply_to_message_id:
        raise Refused("it does not come from the server")
    if about.dst_node_id != node:
        raise Refused("it is for another client")


def read_key(path: Path) -> Keys:
    """A client's private key, with its public one."""
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: no private key can be read from it") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path}: not an elliptic-curve key")
    return key, key.public_key()


if __name__ == "__main__":
    main()
