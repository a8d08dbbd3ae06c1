"""The messages themselves: what is in them, and what is refused."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgradnorm[flower]'")

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.app.message import Array

import fedgradnorm as fgn
import toys
from engines.flower.direct import Together
from fedgradnorm._flower.wire.door import HEADER, Guard, Turned
from fedgradnorm._flower.wire.limits import CHUNK, Limits
from fedgradnorm._flower.wire.messages import (
    SALT,
    Answer,
    Order,
    Refused,
    check_grad_norm,
    decode_answer,
    decode_order,
    encode_answer,
    encode_order,
)

SHARED = torch.arange(4, dtype=torch.float32)
HEAD = torch.arange(3, dtype=torch.float32)
ORDER = Order("train", "run1", "agreed", 7, 3, SHARED)
SCALARS = ("loss_ratio", "grad_norm")
GOOD = Answer("run1", 7, 4, SHARED / 2, {"loss_ratio": 0.5, "grad_norm": 1.5})


def decoded(content: RecordDict) -> Answer:
    return decode_answer(content, ORDER, SCALARS, longest=10.0)


def test_there_and_back():
    order = decode_order(encode_order(ORDER), SHARED)
    assert (order.kind, order.run, order.digest) == ("train", "run1", "agreed")
    assert (order.round, order.state_round) == (7, 3)
    assert torch.equal(order.shared, SHARED)
    answer = decoded(encode_answer(GOOD))
    assert torch.equal(answer.update, GOOD.update)
    assert answer.scalars == GOOD.scalars
    assert order.head is answer.head is None


def test_a_head_there_and_back():
    asked = replace(ORDER, group="sorting", head=HEAD)
    order = decode_order(encode_order(asked), SHARED, "sorting", HEAD)
    assert torch.equal(order.head, HEAD)
    reply = replace(GOOD, group="sorting", head=HEAD * 2)
    answer = decode_answer(encode_answer(reply), order, SCALARS, longest=10.0)
    assert torch.equal(answer.head, HEAD * 2)
    with pytest.raises(Refused, match="not agreed on: head"):
        decoded(encode_answer(reply))  # the order had none
    with pytest.raises(Refused, match="its head has length"):
        decode_answer(encode_answer(reply), order, SCALARS, longest=4.0)
    alone = decode_order(encode_order(ORDER), SHARED, "sorting", HEAD)
    assert alone.head is None  # who is alone with its task is sent none


def test_nobody_can_guess_a_part_of_an_answer():
    """The SuperLink keeps parts by their content: a part known before could be registered first."""
    finish = Answer("run1", 7, 3)
    with_head = replace(GOOD, group="sorting", head=HEAD)
    for answer in (GOOD, finish, with_head):
        first, second = (encode_answer(answer) for _ in range(2))
        parts = ("answer", "run", *(("head",) if answer.head is not None else ()))
        records = [{first[k].object_id, second[k].object_id} for k in parts]
        assert all(len(ids) == 2 for ids in records)


def numbers(**changes):
    return {"round": 7, "state_round": 4, SALT: 1, **GOOD.scalars, **changes}


def with_record(name, record):
    content = encode_answer(GOOD)
    content[name] = record
    return content


def with_update(array):
    return with_record("update", ArrayRecord({"update": array}))


def without(name):
    content = encode_answer(GOOD)
    del content[name]
    return content


def array(values, dtype=np.float32):
    return Array(np.asarray(values, dtype=dtype))


BAD = {
    "NaN": (with_update(array([0, 1, np.nan, 2])), "not finite"),
    "infinite": (with_update(array([0, 1, np.inf, 2])), "not finite"),
    "too short": (with_update(array([0, 1, 2])), r"float32\[3\] instead of float32\[4\]"),
    "another shape": (with_update(array([[0, 1], [2, 3]])), "instead of"),
    "another type": (with_update(array([0, 1, 2, 3], np.float64)), "float64"),
    "integers": (with_update(array([0, 1, 2, 3], np.int32)), "int32"),
    "huge": (with_update(array([0, 1e30, 0, 0])), "more than the 10 allowed"),
    "a flood": (with_update(array(np.zeros(5000))), "bytes for 4 numbers"),
    "no array": (with_update(Array("float32", (4,), "numpy.ndarray", b"junk")), "cannot be read"),
    "pickled": (with_update(Array("object", (4,), "pickle", b"\x80")), "cannot be read"),
    "renamed": (with_record("update", ArrayRecord({"head": array([0, 1, 2, 3])})), "head, update"),
    "not an array": (with_record("update", MetricRecord({"a": 1.0})), "not an array"),
    "one more record": (with_record("head", ArrayRecord({"w": array([1])})), "head"),
    "no update": (without("update"), "update"),
    "an old round": (with_record("answer", MetricRecord(numbers(round=6))), "round 6, not 7"),
    "an old state": (with_record("answer", MetricRecord(numbers(state_round=1))), "of round 1"),
    "another run": (with_record("run", ConfigRecord({"run": "other", SALT: ""})), "another run"),
    "NaN ratio": (
        with_record("answer", MetricRecord(numbers(loss_ratio=float("nan")))),
        "loss_ratio: not a finite",
    ),
    "a list": (with_record("answer", MetricRecord(numbers(grad_norm=[1.0, 2.0]))), "grad_norm"),
    "one number more": (with_record("answer", MetricRecord(numbers(size=9.0))), "size"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_answer_is_refused(name):
    content, words = BAD[name]
    with pytest.raises(Refused, match=words):
        decoded(content)


def test_a_grad_norm_must_be_that_of_the_update():
    norm_layer = torch.tensor([2, 3])
    right = float(GOOD.update[norm_layer].norm())
    check_grad_norm(GOOD.update, right, norm_layer)
    with pytest.raises(Refused, match="but it says"):
        check_grad_norm(GOOD.update, 2 * right, norm_layer)


@pytest.mark.parametrize(
    "content",
    [
        RecordDict({}),
        encode_answer(GOOD),
        encode_order(Order("spy", "run1", "agreed", 0, 0, SHARED)),
        encode_order(Order("train", "../run", "agreed", 0, 0, SHARED)),
        encode_order(Order("train", "run1", "agreed", -1, 0, SHARED)),
        encode_order(Order("train", "run1", "agreed", 0, 0, SHARED * float("nan"))),
        encode_order(Order("train", "run1", "agreed", 0, 0, SHARED[:2])),
    ],
)
def test_a_client_trusts_its_server_as_little(content):
    with pytest.raises(Refused):
        decode_order(content, SHARED)


def everything(content: RecordDict) -> dict[str, object]:
    """All that is in a message, whatever it is called."""
    return {
        f"{name}.{key}": value for name, record in content.items() for key, value in record.items()
    }


@pytest.mark.parametrize(
    ("weighting", "scalars"),
    [
        (fgn.GradNorm(), {"loss_ratio", "grad_norm"}),
        (fgn.GradNorm(rule="direct"), {"loss_ratio", "grad_norm"}),
        (fgn.Equal(), set()),
        (fgn.BySize(), {"size"}),
    ],
)
def test_nothing_leaves_a_client_but_what_the_method_needs(weighting, scalars, tmp_path):
    together = Together(tmp_path, weighting)
    together.run(2)
    assert len(together.exchange.sent) == 6
    allowed = {f"answer.{name}" for name in (*scalars, "round", "state_round", SALT)}
    private = private_values(together)
    for name, content in together.exchange.sent:
        found = everything(content)
        assert set(found) == allowed | {"run.run", f"run.{SALT}", "update.update"}
        update = content["update"]["update"].numpy()
        assert update.shape == (101,)  # the shared network's own size: no head, no rows
        raw = content["update"]["update"].data
        assert not any(value in raw for value in private[name])
        assert "head" not in content


def private_values(together: Together) -> dict[str, list[bytes]]:
    """Bytes that would give a client away: rows, targets, head."""
    found = {}
    for name, participant in together.exchange.participants.items():
        x, y = participant.engine.examples.split(name, "train")
        head = toys.parameters(toys.heads(participant.engine)[name])
        found[name] = [x[0].numpy().tobytes(), y[:4].numpy().tobytes(), head[:4].numpy().tobytes()]
    return found


def test_an_exception_is_not_told_to_the_server(tmp_path, caplog):
    together = Together(tmp_path)
    participant = together.exchange.participants["side"]
    participant.engine.run_clients = lambda *_: 1 / 0 and "secret value 42"
    with caplog.at_level(logging.WARNING, "fedgradnorm"):
        together.run(1)
    told = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
    assert told == ["round 1: client 'side' left out: failed; the client's own log says why"]


def test_a_refused_answer_is_counted_and_the_run_goes_on(tmp_path, caplog):
    together = Together(tmp_path)

    def poison(name, order, content):
        if name == "place" and order.round == 1:
            content["update"] = ArrayRecord({"update": Array(np.full(101, np.nan))})
        return content

    together.exchange.tamper = poison
    with caplog.at_level(logging.WARNING, "fedgradnorm"):
        shared = together.run()
    assert torch.isfinite(shared).all()
    assert together.server.refused == {"corner": 0, "side": 0, "place": 1}
    assert "answer of 'place' refused: update: holds numbers that are not finite" in caplog.text


def test_a_refused_answer_is_not_held(tmp_path):
    """Raised again, the error would hold the round's answers, and they the error."""
    together, why = Together(tmp_path), Refused("its message has more than 9 bytes")
    together.exchange.tamper = lambda name, _, content: why if name == "side" else content
    together.run(2)
    assert together.server.refused["side"] == 2
    assert why.__traceback__ is None


def turned(
    guard: Guard, path: str, headers: dict[bytes, bytes], method: str = "POST"
) -> int | None:
    """The status that a request is turned away with, by its head alone."""
    if guard.is_operator(headers):
        return None
    try:
        guard.check_head(method, path, headers)
    except Turned as error:
        return error.status
    return None


def test_only_the_operator_passes_the_guard():
    guard, key = Guard(None, "secret", Limits(4096), {}.get, list), HEADER.encode()
    for path in ("/v1/control/register-node", "/v1/runtime/acquire-task", "/docs", "/"):
        assert turned(guard, path, {}) == 403
        assert turned(guard, path, {key: b"guess"}) == 403
        assert turned(guard, path, {key: b"secret"}) is None


def test_a_body_has_a_length_and_no_great_one():
    guard, path = Guard(None, "secret", Limits(4096), {}.get, list), "/v1/fleet/push-object"
    assert turned(guard, path, {b"content-length": b"100"}) is None
    assert turned(guard, path, {b"content-length": b"100"}, "GET") == 403
    assert turned(guard, path, {}) == 411
    assert turned(guard, path, {b"content-length": b"-1"}) == 411
    chunked = {b"content-length": b"100", b"transfer-encoding": b"chunked"}
    assert turned(guard, path, chunked) == 411
    for length in (Limits(4096).request + 1, 10**30):
        assert turned(guard, path, {b"content-length": b"%d" % length}) == 413


def test_a_limit_has_room_for_the_largest_honest_answer():
    """For networks from one number to a gigabyte, cut as Flower cuts them."""
    for numbers in (1, 1000, 1_310_688, 1_310_720, 10**7, 2.5e8):
        for head in (0, 4 * int(numbers), 400):
            limits = Limits(4 * int(numbers), head)
            pieces = -(-(limits.vector + 128) // CHUNK)
            more = 2 + -(-(head + 200) // CHUNK) if head else 0
            assert pieces + 6 + more <= limits.parts
            largest = max(limits.vector, head)
            assert min(CHUNK, largest + 128) + 80 <= limits.piece < limits.request
            assert 65 * pieces + 8 * pieces + 300 <= limits.small
            assert limits.total >= limits.vector + head


def test_an_order_leaves_room_for_an_update_of_each_task():
    one = Order("train", "run", "digest", 0, 0, torch.zeros(5))
    several = replace(one, updates=3)
    assert several.room() == (3 * one.room()[0], 0)
