"""A client's message put together from its parts; whatever does not fit is refused.

The parts come from the client as they are: a part may name parts that do not exist, be of any
kind, or name one piece of an array many times over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from flwr.app import Message
from flwr.app.message import Array
from flwr.app.message.arraychunk import ArrayChunk
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
    is_valid_sha256_hash,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fedgradnorm._flower.wire.limits import Limits
from fedgradnorm._flower.wire.messages import Refused


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
        _check_sizes(parts, limits)
        message = inflate_object_from_contents(root, dict(parts))
    except Refused:
        raise
    except Exception as error:  # of Flower, protobuf, json: there is no list of what they raise
        raise Refused(f"its message cannot be read ({type(error).__name__})") from error
    if not isinstance(message, Message):
        raise Refused("what it sent is not a message")
    return message


def check_sender(message: Message, node: int, asked: str) -> None:
    """Refuse an answer that says it is of another node, or for another order, than it is.

    A client's error, or Flower's in its place, is a text; who says it changes nothing.
    """
    about = message.metadata
    if message.has_error():
        return
    if about.src_node_id != node:
        raise Refused("its message says that it is from another client")
    if about.reply_to_message_id != asked:
        raise Refused("its message answers to an order that it was not given")


def _check_sizes(parts: Mapping[str, bytes], limits: Limits) -> None:
    for content in parts.values():
        kind, children, _ = get_object_head_values_from_object_content(content)
        if kind != ArrayChunk.__qualname__ and len(content) > limits.small:
            raise Refused(f"a part of its message has {len(content)} bytes")
        if kind == Array.__qualname__:
            size = sum(len(parts[children[i]]) for i in _pieces(content))
            if size > limits.total:
                raise Refused(f"its array has {size} bytes, more than {limits.total}")


def _pieces(content: bytes) -> list[int]:
    """Which of its pieces an array consists of, in order; one may occur many times."""
    table: Any = json.loads(get_object_body(content, Array))
    return list(table["arraychunk_ids"])
