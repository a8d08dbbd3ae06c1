"""The server's side: register the clients' keys, send orders, collect answers."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping
from typing import Any

import httpx
from flwr.app import Message, RecordDict
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import SubStatus
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from fedgradnorm._errors import TrainingError
from fedgradnorm._flower.wire.collecting import POLL, Asking, Incoming, collect
from fedgradnorm._flower.wire.door import HEADER
from fedgradnorm._flower.wire.limits import Limits
from fedgradnorm._flower.wire.messages import MESSAGE_TYPE, Refused
from fedgradnorm._flower.wire.process import SuperLink
from fedgradnorm._flower.wire.store import Store

log = logging.getLogger("fedgradnorm")

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
description = "No program travels: both sides run the one installed beside them."
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "fedgradnorm"
[tool.flwr.app.components]
serverapp = "none:none"
clientapp = "none:none"
[tool.flwr.app.config]
"""


class _Key:
    """Shows the operator's secret with every request."""

    def __init__(self, secret: str) -> None:
        self.secret = secret

    def intercept(self, context: Any, call_next: Any) -> Any:
        """Add the header."""
        context.request.headers[HEADER] = self.secret
        return call_next(context)


class _Grid(HttpGrid):
    """Flower's grid, as the operator, and giving up soon when the SuperLink is gone."""

    def __init__(self, address: str, authority: bytes, token: str, secret: str) -> None:
        super().__init__(address, False, authority, token=token)
        self._secret = secret
        self._retry_invoker.max_tries = 4

    def _connect(self) -> None:
        self._client = RuntimeHttpClient.from_server_address(
            self._addr,
            False,
            self._cert,
            [
                RuntimeVersionHttpInterceptor(component_name="flwr-serverapp"),
                RuntimeTokenHttpInterceptor(self._token),
                _Key(self._secret),
            ],
            retry_invoker=self._retry_invoker,
        )


class Operator:
    """Speaks to one SuperLink as its operator; asks clients by name and nothing else."""

    def __init__(self, address: str, authority: bytes, link: SuperLink) -> None:
        self.address, self.authority, self.link = address, authority, link
        secret = self.secret = link.secret
        about = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
        self._control = ControlHttpClient.from_server_address(
            address, False, authority, [about, _Key(secret)]
        )
        self.nodes: dict[str, int] = {}
        self._grid: _Grid | None = None
        self._heart: HeartbeatSender | None = None

    def register(self, keys: Mapping[str, bytes]) -> None:
        """Let exactly these clients in, by their public keys; known ones are found again."""
        known = {node.public_key: node.node_id for node in self._answering().nodes_info}
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
                _check_certificate(self.address, error)
                if time.monotonic() > end:
                    raise TrainingError(f"{LOST} after {STARTING:.0f} s: {error}") from error
                time.sleep(POLL)

    def start(self) -> None:
        """Begin a run of Flower's; messages travel within it."""
        fab, _ = build_fab_from_files({"pyproject.toml": _APP})
        packed = fab_to_proto(Fab(hashlib.sha256(fab).hexdigest(), fab, {}))
        run = self._control.StartRun(StartRunRequest(fab=packed)).run_id
        runtime = RuntimeHttpClient.from_server_address(
            self.address,
            False,
            self.authority,
            [RuntimeVersionHttpInterceptor(component_name="SuperExec"), _Key(self.secret)],
            retry_invoker=make_simple_http_retry_invoker(),
        )
        token, end = "", time.monotonic() + STARTING
        while not token:
            found = runtime.AcquireTask(
                AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
            )
            if found.HasField("task") and found.token and found.task.run_id == run:
                token = found.token
            elif time.monotonic() > end:
                raise TrainingError("the SuperLink does not start the run")
            else:
                time.sleep(POLL)
        runtime.close()
        self._grid = _Grid(self.address, self.authority, token, self.secret)
        client = self._grid._runtime_client
        task = client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
        TaskIdentity.node_id = task.context.node_id
        self._grid.set_run(run_from_proto(task.run))
        self._heart = HeartbeatSender(make_task_heartbeat_fn_http(client))
        self._heart.start()

    def online(self) -> list[str]:
        """The registered clients that are connected."""
        try:
            here = set(self._running.get_node_ids())
        except LOSSES as error:
            raise self._lost(error) from error
        return [name for name, node in self.nodes.items() if node in here]

    def ask(
        self, orders: Mapping[str, Asking], seconds: float
    ) -> dict[str, RecordDict | Refused | str]:
        """Each client's answer, or what went wrong; not later than ``seconds`` from now."""
        end, here = time.monotonic() + seconds, self.online()
        found: dict[str, RecordDict | Refused | str] = {
            n: "not connected" for n in orders if n not in here
        }
        asked = {name: order for name, order in orders.items() if name in here}
        found.update(dict.fromkeys(asked, f"no answer in {seconds:.0f} s"))
        try:
            expected = self._sent(asked, seconds)
            found.update(collect(expected, Store(self._running), self._limits(asked), end))
        except LOSSES as error:
            raise self._lost(error) from error
        return found

    def _sent(self, orders: Mapping[str, Asking], seconds: float) -> list[Incoming]:
        """The answers to expect, once the orders are at the SuperLink."""
        messages = [
            Message(
                order.records(),
                self.nodes[name],
                MESSAGE_TYPE,
                ttl=seconds + GRACE,
                group_id=str(order.round),
            )
            for name, order in orders.items()
        ]
        ids = self._running.push_messages(messages) if messages else []
        return [
            Incoming(name, self.nodes[name], key)
            for name, key in zip(orders, ids, strict=True)
            if key
        ]

    def _limits(self, orders: Mapping[str, Asking]) -> Limits:
        """What an answer may have: one to each order, so the largest of their vectors counts."""
        rooms = [order.room() for order in orders.values()] or [(0, 0)]
        return Limits(max(one for one, _ in rooms), max(two for _, two in rooms))

    def _lost(self, error: BaseException) -> TrainingError:
        """Why the SuperLink does not answer, as far as it can be known."""
        try:
            self.link.check()
        except TrainingError as ended:
            return ended
        return TrainingError(f"{LOST}: {error or type(error).__name__}")

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
                log.info("the SuperLink was not told that the run is over: %s", error)
            self._grid.close()
        self._control.close()


def _check_certificate(address: str, error: httpx.HTTPError) -> None:
    """Who the server says it is does not change by waiting: said at once."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        raise TrainingError(
            f"{address}: the server's own certificate does not hold ({error}); look at this "
            "machine's clock; if it is right, make a new federation (fedgradnorm federation init)"
        ) from error
