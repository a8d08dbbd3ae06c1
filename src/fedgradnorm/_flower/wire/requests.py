"""What a client may ask of the SuperLink, looked at before Flower sees it.

Flower checks that a request is signed by the node that it names. It does not check that a message
inside is of that node: a client could send orders to others, or answers in their names.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.supercore.error import FlowerError
from flwr.supercore.protobuf.translation import (
    PROTOBUF_REQUEST_TYPES,
    ProtobufTranslationMiddleware,
)

from fedgradnorm._flower.wire.limits import Limits
from fedgradnorm._flower.wire.message_parts import named_parts
from fedgradnorm._flower.wire.messages import MESSAGE_TYPE, Refused

NODES = "/v1/fleet/"
ACTIVATE = NODES + "activate-node"
OPEN = {
    ACTIVATE,
    NODES + "deactivate-node",
    NODES + "send-node-heartbeat",
    NODES + "pull-messages",
    NODES + "pull-object",
    NODES + "confirm-message-received",
    NODES + "push-messages",
    NODES + "push-object",
}
"""All that a client needs. Flower has more: nodes that register themselves, programs."""


def check_request(
    path: str, node: int | None, body: bytes, limits: Limits, is_run: Callable[[int], bool]
) -> None:
    """Refuse a body that is not what ``path`` takes, a message that is not of ``node``, or a run
    that there is not."""
    try:
        kind = PROTOBUF_REQUEST_TYPES["POST", path]
        request = ProtobufTranslationMiddleware._parse_request(body, kind)
    except FlowerError as error:
        raise Refused("the request cannot be read") from error
    if isinstance(request, PushMessagesRequest):
        _check_message(request, node, limits)
        run = request.messages_list[0].metadata.run_id
    elif "run_id" in request.DESCRIPTOR.fields_by_name:
        run = request.run_id
    else:
        return
    if not is_run(run):
        raise Refused("there is no such run")


def _check_message(request: PushMessagesRequest, node: int | None, limits: Limits) -> None:
    """One answer, of this node, to the server, to an order; its parts named as they may be."""
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        raise Refused("a request carries one message")
    message, tree = request.messages_list[0], request.message_object_trees[0]
    if message.HasField("content") == message.HasField("error"):
        raise Refused("a message has a content or an error")
    about = message.metadata
    if about.src_node_id != node:
        raise Refused("the message says that it is from another node")
    if about.dst_node_id != SUPERLINK_NODE_ID or not about.reply_to_message_id:
        raise Refused("a client's message is an answer to the server")
    if not all(map(math.isfinite, (about.ttl, about.created_at, *request.clientapp_runtime_list))):
        raise Refused("a time in the message is not finite")
    if about.message_type != MESSAGE_TYPE:
        raise Refused("the message is of another type than the order")
    if about.message_id != tree.object_id:
        raise Refused("the message has another name than its first part")
    named_parts(tree, limits)
