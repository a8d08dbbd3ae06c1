"""A client's side: connect with its key, take orders, answer them with the program installed here.

What Flower's own SuperNode does, less one thing: it does not run a program that came from the
server. Connection, signatures, heartbeats and messages are Flower's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message, RecordDict
from flwr.app.error import Error
from flwr.app.metadata import Metadata
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.proto.fleet_pb2 import DeactivateNodeRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import (
    pull_and_inflate_object_from_tree,
    push_objects,
)
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.run import RunNotRunningException
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.fleet_http_connection import http_request_response
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedgradnorm._errors import ConfigError
from fedgradnorm._flower.wire.messages import Refused

log = logging.getLogger("fedgradnorm")

POLL = 0.5  # seconds between two looks for orders
PULL = 60.0  # seconds that the parts of an order have to come

Respond = Callable[[RecordDict], RecordDict]
Keys = tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]


def answer_orders(
    address: str,
    authority: Path,
    key: Path,
    respond: Respond,
    connected: Callable[[int], None],
    before: int | None = None,
) -> None:
    """Connect and answer until interrupted; a lost connection is tried again with back-off.

    ``before`` is the node that a process of this client had which may not have ended well.
    """
    keys = _keys(key)
    if before is not None:
        _let_go(address, authority, keys, before)
    with http_request_response(address, False, str(authority), keys) as connection:
        node, receive, send, _, _, pull, push, confirm = connection
        connected(node)
        while True:
            found = receive()
            if found is None:
                time.sleep(POLL)
            else:
                carry_out(found, node, respond, send, pull, push, confirm)


def carry_out(
    found: tuple[Message, ObjectTree],
    node: int,
    respond: Respond,
    send: Callable[..., Any],
    pull: Callable[[int, str], bytes],
    push: Callable[..., None],
    confirm: Callable[[int, str], None],
) -> None:
    """Answer what was found, if it is an order; anything else is logged and ends nothing."""
    try:
        order = _pulled(found, node, pull, confirm)
        started = time.monotonic()
        reply = answered(order, respond)
        run = order.metadata.run_id
        _send(reply, time.monotonic() - started, send, partial(push, run))
    except Refused as error:
        log.warning("order refused: %s", error)
    except RunNotRunningException:
        log.info("the server's run is over; waiting for the next")


def _pulled(
    found: tuple[Message, ObjectTree],
    node: int,
    pull: Callable[[int, str], bytes],
    confirm: Callable[[int, str], None],
) -> Message:
    """The whole order; refused unless it is the server's, to this node, and can be read."""
    about, tree = found[0].metadata, found[1]
    check_order(about, node)
    try:
        order = pull_and_inflate_object_from_tree(
            tree,
            partial(pull, about.run_id),
            partial(confirm, about.run_id),
            return_type=Message,
            max_time=PULL,
        )
    except httpx.HTTPError:  # a lost connection, not a bad order
        raise
    except Exception as error:  # of Flower, protobuf, json: there is no list of what they raise
        raise Refused(f"it cannot be read ({type(error).__name__})") from error
    check_order(order.metadata, node)
    order.metadata.__dict__["_message_id"] = tree.object_id
    return order


def check_order(about: Metadata, node: int) -> None:
    """Refuse an order that is not from the server, or not to this node, or that is an answer."""
    if about.src_node_id != SUPERLINK_NODE_ID or about.reply_to_message_id:
        raise Refused("it does not come from the server")
    if about.dst_node_id != node:
        raise Refused("it is for another client")


def answered(order: Message, respond: Respond) -> Message:
    """The reply; what goes wrong here is told in words of our own, never in an exception's."""
    try:
        return Message(respond(order.content), reply_to=order)
    except Refused as error:
        log.warning("order refused: %s", error)
        reason = str(error)
    except Exception:
        log.exception("an order could not be carried out")
        reason = "failed; the client's own log says why"
    code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    return Message(Error(code=code, reason=reason), reply_to=order)


def _let_go(address: str, authority: Path, keys: Keys, node: int) -> None:
    """Say that it is gone: Flower would hold it for taken until a minute without heartbeats."""
    about = RuntimeVersionHttpInterceptor(component_name="SuperNode")
    with FleetHttpClient.from_server_address(
        address, False, str(authority), [about, NodeAuthHttpInterceptor(*keys)]
    ) as client:
        try:
            client.DeactivateNode(DeactivateNodeRequest(node_id=node))
        except (httpx.HTTPError, RuntimeError) as error:
            log.info("node %d was not held any more: %s", node, error)


def _send(
    reply: Message, seconds: float, send: Callable[..., Any], push: Callable[..., None]
) -> None:
    reply.metadata.__dict__["_message_id"] = reply.object_id
    with no_object_id_recompute():
        wanted, session = send(reply, get_object_tree(reply), seconds)
        push_objects(
            get_all_nested_objects(reply), partial(push, session), object_ids_to_push=wanted
        )


def _keys(path: Path) -> Keys:
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: no private key can be read from it") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path}: not an elliptic-curve key")
    return key, key.public_key()
