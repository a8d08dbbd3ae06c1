"""Answers where they lie until the server takes them: at the SuperLink."""

from __future__ import annotations

import httpx
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.superlink.grid import HttpGrid

from fedgradnorm._flower.wire.messages import Refused


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
