"""Mutated messages: whatever arrives is used or refused, and nothing else happens.

``FEDGRADNORM_FUZZ`` sets the number of cases for a campaign.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from engines.flower.wire import LIMITS, Packed, Wire, honest, order, packed, started, with_root

# isort: split
import httpx
import torch
from flwr.app import Message
from flwr.common.constant import SUPERLINK_NODE_ID, TIMESTAMP_HEADER
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER

from fedgradnorm._flower.wire.flower import (
    NODES,
    OPEN,
    Fleet,
    Incoming,
    Limits,
    check_order,
    collect,
    put_together,
    wrapped,
)
from fedgradnorm._flower.wire.messages import (
    Answer,
    Refused,
    decode_answer,
    encode_answer,
    largest_answer,
)
from fedgradnorm._flower.wire.request_filter import Rejected, RequestFilter

CASES = int(os.environ.get("FEDGRADNORM_FUZZ", "300"))
NODE, ASKED = 77, "a" * 64


def answer() -> Message:
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, SUPERLINK_NODE_ID
    asked = Message(wrapped(order().encoded()), NODE, "train", ttl=60.0)
    asked.metadata.__dict__["_message_id"] = ASKED
    return honest(asked)


GOOD = packed(answer())
NUMBERS = [b"0", b"-1", b"99999999999999999999", b"1e999", b"nan", b"[0,0,0,0]", b"{}", b'""']


def mutated(rng: random.Random, data: bytes) -> bytes:
    """The bytes with a few flipped, lost, doubled, put in, or exchanged for odd numbers."""
    data = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        span = rng.choice([1, 1, 2, 8, 64])
        kind = rng.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at : at + span]
        elif kind == 2:
            data[at:at] = data[at : at + span]
        elif kind == 3:
            data[at:at] = rng.randbytes(span)
        elif kind == 4:
            data[at : at + span] = rng.choice(NUMBERS)
        else:
            del data[at:]
    return bytes(data)


class Shelf:
    """Answers as the SuperLink would keep them, however they came about."""

    def __init__(self, tree: ObjectTree, parts: dict[str, bytes]) -> None:
        self.trees, self.parts = tree, parts

    def tree(self, _: str) -> ObjectTree:
        return self.trees

    def part(self, name: str) -> bytes | None:
        return self.parts.get(name)

    def forget(self, _: str) -> None:
        pass


def shelves(rng: random.Random) -> Iterable[Shelf]:
    """Parts changed, exchanged, lost; lists of parts that are another message's."""
    parts = dict(GOOD.parts)
    for name in rng.sample(sorted(parts), rng.randint(1, 3)):
        parts[name] = mutated(rng, parts[name])
    yield Shelf(GOOD.tree, parts)
    names = sorted(GOOD.parts)
    other = dict(zip(names, rng.sample([GOOD.parts[n] for n in names], len(names)), strict=True))
    yield Shelf(GOOD.tree, other)
    pool = [*names, "", "zz", "b" * 64]
    children = [ObjectTree(object_id=rng.choice(pool)) for _ in range(rng.randrange(4))]
    yield Shelf(ObjectTree(object_id=rng.choice(pool), children=children), dict(GOOD.parts))


def outcome(shelf: Shelf) -> object:
    """What the server makes of it, as far as an answer that it uses."""
    replies = list(collect([Incoming("x", NODE, ASKED, LIMITS)], shelf, 0.0))
    found = replies[0].content if replies else "no answer"
    if isinstance(found, (str, Refused)):
        return found
    try:
        return decode_answer(found, order(), ("loss",), longest=1e6)
    except Refused as error:
        return error


def test_the_answer_that_is_mutated_is_a_good_one():
    assert not isinstance(outcome(Shelf(GOOD.tree, dict(GOOD.parts))), (str, Refused))


@pytest.mark.parametrize(
    ("numbers", "own"),
    [(1, 0), (1_310_700, 0), (3_000_000, 0), (1, 3_000_000), (1_310_700, 1_310_700)],
)
def test_an_honest_answer_of_any_size_is_within_its_limits(numbers, own):
    """One piece, one that just does not fit into a piece, several; the same of a shared head."""
    limits, update = Limits(largest_answer(4 * numbers, 4 * own)), torch.rand(numbers)
    said, head = {"loss": 1.0, "grad_norm": 2.0}, torch.rand(own) if own else None
    content = encode_answer(Answer("r" * 16, 10**6, 10**6, update, said, head))
    assert len(content) <= limits.size
    pack = packed(Message(wrapped(content), reply_to=answer()))
    assert len(pack.parts) <= limits.parts
    assert sum(map(len, pack.parts.values())) <= limits.total
    for name, part in pack.parts.items():
        request = PushObjectRequest(
            node=Node(node_id=2**63), run_id=2**63, object_id=name, object_content=part,
            session_id="s" * 64,
        )  # fmt: skip
        assert request.ByteSize() <= limits.request
    put_together(pack.tree.object_id, pack.parts, limits)


def test_nothing_is_held_of_an_answer_but_its_records_or_a_word():
    """An error would hold the frames that it was raised in, and they the parts."""
    flood = {name: part + bytes(LIMITS.total) for name, part in GOOD.parts.items()}
    for parts, kind in ((GOOD.parts, bytes), (flood, Refused)):
        one = Incoming("x", NODE, ASKED, LIMITS)
        ((_, found, _),) = collect([one], Shelf(GOOD.tree, dict(parts)), 0.0)
        assert isinstance(found, kind)
        assert not one.parts
        assert getattr(found, "__traceback__", None) is None


def test_a_mutated_answer_is_used_or_refused():
    rng, refused, used = random.Random(0), 0, 0
    for _ in range(CASES // 3):
        for shelf in shelves(rng):
            found = outcome(shelf)
            refused += isinstance(found, (str, Refused))
            used += not isinstance(found, (str, Refused))
    print(f"{used} used, {refused} refused")
    assert refused > used


def test_a_mutated_request_is_passed_on_or_refused():
    push = PushMessagesRequest(
        node=Node(node_id=NODE),
        messages_list=[GOOD.message],
        message_object_trees=[GOOD.tree],
        clientapp_runtime_list=[0.5],
    )
    body, path = push.SerializeToString(), NODES + "push-messages"
    here = GOOD.message.metadata.run_id
    fleet = Fleet(LIMITS, {}.get, lambda: [here])
    fleet.check(path, NODE, body)
    with pytest.raises(Refused, match="no such run"):
        Fleet(LIMITS, {}.get, lambda: [here + 1]).check(path, NODE, body)
    push.messages_list[0].ClearField("content")
    with pytest.raises(Refused, match="a content or an error"):
        fleet.check(path, NODE, push.SerializeToString())
    rng, refused = random.Random(1), 0
    for _ in range(CASES):
        try:
            fleet.check(rng.choice(sorted(OPEN)), NODE, mutated(rng, body))
        except Refused:
            refused += 1
    assert refused > CASES // 10


def test_a_mutated_head_is_turned_away():
    fleet, rng = Fleet(LIMITS, {}.get, list), random.Random(2)
    door = RequestFilter(None, "secret", fleet)
    part = PushObjectRequest(object_content=b"x" * 50).SerializeToString()
    head = [
        (b"content-length", b"%d" % len(part)),
        (FLEET_HTTP_PUBLIC_KEY_HEADER.encode(), b"QUJD"),
        (FLEET_HTTP_SIGNATURE_HEADER.encode(), b"QUJD"),
        (TIMESTAMP_HEADER.encode(), b"2026-01-01T00:00:00+00:00"),
    ]

    def entered(path: str, lines: list[tuple[bytes, bytes]]) -> None:
        door.check_head("POST", path, dict(lines))
        fleet.signer({"type": "http", "method": "POST", "path": path, "headers": lines})

    for _ in range(CASES):
        lines = [(mutated(rng, k) if rng.random() < 0.2 else k, mutated(rng, v)) for k, v in head]
        with pytest.raises(Rejected):
            entered(rng.choice(sorted(OPEN)), lines)


def test_one_piece_named_many_times_is_counted_each_time():
    """A list of a thousand times the same piece would be put together as a thousand of it."""
    root = next(name for name, part in GOOD.parts.items() if part.startswith(b"Array "))
    content = GOOD.parts[root]
    head, body = content.split(b"\x00", 1)
    body = body.replace(b"[0]", b"[" + b"0," * 4000 + b"0]")
    kind, children, _ = head.split(b" ")
    changed = b" ".join([kind, children, b"%d" % len(body)]) + b"\x00" + body
    found = outcome(Shelf(GOOD.tree, {**GOOD.parts, root: changed}))
    assert "more than" in str(found)


@pytest.mark.parametrize(
    "change", [{"_src_node_id": 5}, {"_dst_node_id": 5}, {"_reply_to_message_id": ASKED}]
)
def test_a_client_takes_orders_from_the_server_alone(change):
    GOOD  # noqa: B018 (it sets whose task this is)
    about = Message(wrapped(order().encoded()), NODE, "train", ttl=60.0).metadata
    check_order(about, NODE)
    about.__dict__.update(change)
    with pytest.raises(Refused):
        check_order(about, NODE)


def posted(wire: Wire, rng: random.Random, pack: Packed, count: int) -> list[int]:
    """The statuses that so many mutated requests of a registered client are answered with."""
    push = PushMessagesRequest(
        node=wire.node,
        messages_list=[pack.message],
        message_object_trees=[pack.tree],
        clientapp_runtime_list=[0.5],
    )
    part = PushObjectRequest(
        node=wire.node,
        run_id=pack.message.metadata.run_id,
        object_id=pack.tree.object_id,
        object_content=pack.parts[pack.tree.object_id],
    )
    bodies = [(NODES + "push-messages", push), (NODES + "push-object", part)]
    found = []
    for _ in range(count):
        path, message = rng.choice(bodies)
        path = path if rng.random() < 0.8 else rng.choice(FUZZED)
        found.append(wire.post(path, mutated(rng, message.SerializeToString())))
    return found


def storable(rng: random.Random, content: bytes) -> bytes:
    """A part with a mutated body that the SuperLink keeps: its head says how long it is."""
    head, body = content.split(b"\x00", 1)
    body = mutated(rng, body)
    return b" ".join([*head.split(b" ")[:2], b"%d" % len(body)]) + b"\x00" + body


DEADLINE = 25.0
FUZZED = sorted(path for path in OPEN if "activate" not in path)  # it must stay connected


@pytest.mark.slow
def test_a_live_superlink_takes_no_harm_and_honest_answers_count(tmp_path: Path):
    rng, statuses, refused = random.Random(3), [], 0
    with started(tmp_path) as live:
        good, bad = live.wires["good"], live.wires["bad"]

        def attack(asked: Message) -> None:
            pack = packed(honest(asked))
            statuses.extend(posted(bad, rng, pack, max(20, CASES // 15)))
            with suppress(httpx.HTTPStatusError):
                bad.push(with_root(pack, storable(rng, pack.parts[pack.tree.object_id])))

        before = live.memory()
        for _ in range(5):
            good.well()
            attacking = bad.answering(attack)
            found = live.ask(dict.fromkeys(live.wires, order()), DEADLINE)
            attacking.join()
            assert isinstance(found["good"], bytes)
            refused += not isinstance(found["bad"], bytes)
        assert live.operator.link.process.poll() is None
        grown = live.memory() - before
    counts = {code: statuses.count(code) for code in sorted(set(statuses))}
    print(f"{counts}, {refused} of 5 answers refused, the SuperLink grew by {grown} MB")
    assert grown < 60
    assert all(code < 500 for code in counts), counts
