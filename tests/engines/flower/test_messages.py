"""The messages themselves: what is in them, and what is refused."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import fedgradnorm as fgn
import toys
from engines.flower.direct import Together, closed, opened
from fedgradnorm._flower.wire import sum_messages
from fedgradnorm._flower.wire.messages import (
    SALT,
    SLACK,
    Answer,
    Order,
    Refused,
    check_grad_norm,
    decode_answer,
    decode_order,
    encode,
    encode_answer,
    unpack,
)
from fedgradnorm._flower.wire.sum_messages import SumOrder, decode_sum_order
from fedgradnorm.weighting._fixed import BySize

SHARED = torch.arange(4, dtype=torch.float32)
HEAD = torch.arange(3, dtype=torch.float32)
ORDER = Order("train", "run1", "agreed", 7, 3, SHARED)
SCALARS = ("loss_ratio", "grad_norm")
GOOD = Answer("run1", 7, 4, SHARED / 2, {"loss_ratio": 0.5, "grad_norm": 1.5})


def decoded(content: bytes) -> Answer:
    return decode_answer(content, ORDER, SCALARS, longest=10.0)


def test_there_and_back():
    order = decode_order(ORDER.encoded(), SHARED)
    assert (order.kind, order.run, order.digest) == ("train", "run1", "agreed")
    assert (order.round, order.state_round) == (7, 3)
    assert torch.equal(order.shared, SHARED)
    answer = decoded(encode_answer(GOOD))
    assert torch.equal(answer.update, GOOD.update)
    assert answer.scalars == GOOD.scalars
    assert order.head is answer.head is None


def test_a_head_there_and_back():
    asked = replace(ORDER, group="sorting", head=HEAD)
    order = decode_order(asked.encoded(), SHARED, "sorting", HEAD)
    assert torch.equal(order.head, HEAD)
    reply = replace(GOOD, head=HEAD * 2)
    answer = decode_answer(encode_answer(reply), order, SCALARS, longest=10.0)
    assert torch.equal(answer.head, HEAD * 2)
    with pytest.raises(Refused, match="not agreed on: head"):
        decoded(encode_answer(reply))  # the order had none
    with pytest.raises(Refused, match="its head has length"):
        decode_answer(encode_answer(reply), order, SCALARS, longest=4.0)
    alone = decode_order(ORDER.encoded(), SHARED, "sorting", HEAD)
    assert alone.head is None  # who is alone with its task is sent none


def test_a_private_order_may_have_a_network_of_any_size(monkeypatch):
    monkeypatch.setattr(sum_messages, "LONGEST", 4096)
    network = torch.zeros(2000)
    order = SumOrder("run", "digest", 0, 0, {}, network)
    assert torch.equal(decode_sum_order(order.encoded(), network).shared, network)
    with pytest.raises(Refused, match="more than 12096"):
        decode_sum_order(replace(order, asks={"a": "b" * 5000}).encoded(), network)


def test_nobody_can_guess_an_answer():
    """The SuperLink keeps parts by their content: a part known before could be registered first."""
    for answer in (GOOD, Answer("run1", 7, 3), replace(GOOD, head=HEAD)):
        assert encode_answer(answer) != encode_answer(answer)


def with_values(**changes: Any) -> bytes:
    return closed({**opened(encode_answer(GOOD)), **changes})


def with_update(values: Any, dtype: Any = np.float32) -> bytes:
    return with_values(update=np.asarray(values, dtype=dtype))


def without(name: str) -> bytes:
    return closed({k: v for k, v in opened(encode_answer(GOOD)).items() if k != name})


def raw(change: Callable[[bytes], bytes]) -> bytes:
    """The answer with other bytes for its facts."""
    facts, arrays = unpack(encode_answer(GOOD))
    text = change(json.dumps({**facts, SALT: ""}).encode())
    return _saved({"facts": np.frombuffer(text, dtype=np.uint8), **arrays})


def _saved(arrays: dict[str, Any]) -> bytes:
    from safetensors.numpy import save

    return save(arrays)


BAD = {
    "NaN": (with_update([0, 1, np.nan, 2]), "not finite"),
    "infinite": (with_update([0, 1, np.inf, 2]), "not finite"),
    "too short": (with_update([0, 1, 2]), r"float32\[3\] instead of float32\[4\]"),
    "another shape": (with_update([[0, 1], [2, 3]]), "instead of"),
    "another type": (with_update([0, 1, 2, 3], np.float64), "float64"),
    "integers": (with_update([0, 1, 2, 3], np.int32), "int32"),
    "too long": (with_update([0, 1e30, 0, 0]), "over the 10 allowed"),
    "a flood": (with_update(np.zeros(5000)), "bytes, more than"),
    "no message": (b"junk", "cannot be read"),
    "no facts": (_saved({"update": np.zeros(4, np.float32)}), "cannot be read"),
    "facts that are a list": (raw(lambda _: b"[1, 2]"), "no table"),
    "deep facts": (raw(lambda _: b"[" * 3000), "cannot be read"),
    "half of it": (encode_answer(GOOD)[:-9], "cannot be read"),
    "renamed": (with_values(head=np.zeros(4)), "head"),
    "an update in words": (with_values(update="none"), "update"),
    "no update": (without("update"), "update"),
    "an old round": (with_values(round=6), "round: '6' instead of 7"),
    "a round that is none": (with_values(round=7.0), "round: Input should be a valid integer"),
    "an old state": (with_values(state_round=1), "state_round: '1' instead of 4"),
    "another run": (with_values(run="other"), "run: 'other' instead of 'run1'"),
    "NaN ratio": (raw(lambda text: text.replace(b"0.5", b"NaN")), "not finite"),
    "a vast ratio": (raw(lambda text: text.replace(b"0.5", b"1e999")), "is not finite"),
    "a list": (with_values(grad_norm=[1.0, 2.0]), "grad_norm"),
    "a truth": (with_values(grad_norm=True), "grad_norm"),
    "one number more": (with_values(size=9.0), "size"),
    "one number less": (without("loss_ratio"), "not agreed on: loss_ratio"),
    "numbers in a table": (with_values(scalars={}), "not agreed on: scalars"),
}


def test_a_message_has_a_largest_size():
    """Before anything of it is unpacked."""
    long = with_values(run="r" * 3 * SLACK)
    with pytest.raises(Refused, match="bytes, more than"):
        decoded(long)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_answer_is_refused(name):
    content, words = BAD[name]
    with pytest.raises(Refused, match=words):
        decoded(content)


def test_a_grad_norm_must_be_that_of_the_update():
    norm_layer = torch.tensor([2, 3])
    right = float(GOOD.update[norm_layer].norm())
    check_grad_norm(GOOD.update, right, norm_layer)
    with pytest.raises(Refused, match="but it reports"):
        check_grad_norm(GOOD.update, 2 * right, norm_layer)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        encode({}, {}),
        encode_answer(GOOD),
        Order("spy", "run1", "agreed", 0, 0, SHARED).encoded(),
        Order("train", "../run", "agreed", 0, 0, SHARED).encoded(),
        Order("train", "run1", "agreed", -1, 0, SHARED).encoded(),
        Order("train", "run1", "agreed", 0, 0, SHARED * float("nan")).encoded(),
        Order("train", "run1", "agreed", 0, 0, SHARED[:2]).encoded(),
        Order("train", "run1", "agreed", 0, 0, SHARED, weight="1").encoded(),
    ],
)
def test_a_client_trusts_its_server_as_little(content):
    with pytest.raises(Refused):
        decode_order(content, SHARED)


@pytest.mark.parametrize(
    ("weighting", "scalars"),
    [
        (fgn.GradNorm(), {"loss_ratio", "grad_norm"}),
        (fgn.GradNorm(rule="direct"), {"loss_ratio", "grad_norm"}),
        (fgn.Equal(), set()),
        (BySize(), {"size"}),
    ],
)
def test_nothing_leaves_a_client_but_what_the_method_needs(weighting, scalars, tmp_path):
    together = Together(tmp_path, weighting)
    together.run(2)
    assert len(together.exchange.sent) == 6
    allowed = {*scalars, "run", "round", "state_round", "update"}
    private = private_values(together)
    for name, content in together.exchange.sent:
        assert set(content) == allowed
        assert content["update"].shape == (101,)  # the shared network's own size: no head, no rows
        assert not any(value in content["update"].tobytes() for value in private[name])


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
            content["update"] = np.full(101, np.nan, dtype=np.float64)
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
