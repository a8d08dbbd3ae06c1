"""The messages of a private federation, written with the codec of ``messages``.

An order says what is asked for, in one table: keys, letters, an input, a name under a list, shares.
It carries the shared network where the client is to train. An answer has the same entries, and a
masked vector where one was asked for. What the entries mean is known elsewhere (``_masking``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedgradnorm._flower.wire.messages import (
    SLACK,
    Check,
    Refused,
    Schema,
    count,
    decode,
    encode,
    exactly,
    like,
    same_names,
    table,
    text,
    unpack,
    word,
)

if TYPE_CHECKING:
    from torch import Tensor

KIND = "private"
PER_CLIENT = 2048  # bytes of an answer's table for each client of the federation, at most
MASKED = "masked"


@dataclass(frozen=True)
class SumOrder:
    """What the server asks of a client in a private federation.

    ``state_round`` as in a plain one. ``words`` is the length of the vector that is masked, and
    ``clients`` how many there are: both bound the answer.
    """

    run: str
    digest: str
    round: int
    state_round: int
    asks: Mapping[str, Any]
    shared: Tensor | None = None
    words: int = 0
    clients: int = 0

    def encoded(self) -> bytes:
        names = ("run", "digest", "round", "state_round")
        facts = {name: getattr(self, name) for name in names}
        arrays = {} if self.shared is None else {"shared": self.shared}
        return encode({"kind": KIND, **facts, "asks": dict(self.asks)}, arrays)

    def room(self) -> int:
        """Bytes of the largest answer: a masked vector, and a table."""
        return 2 * SLACK + 8 * self.words + PER_CLIENT * (self.clients + 2)


@dataclass(frozen=True)
class SumAnswer:
    """What a client answers: what was asked for, by the same names, and a masked vector."""

    run: str
    round: int
    state_round: int
    gives: Mapping[str, Any]
    masked: npt.NDArray[np.uint64] | None = None


def decode_sum_order(content: bytes, shared: Tensor) -> SumOrder:
    """The order, checked; ``shared`` is a tensor as the network must be."""
    facts, arrays = unpack(content)
    if facts.get("kind") != KIND:
        raise Refused(
            "this client participates in a private federation, and the server asks for a plain "
            "answer: it would see this client's own update"
        )
    checks: dict[str, Check] = {
        "kind": partial(exactly, KIND), "run": word, "digest": text, "round": count,
        "state_round": count, "asks": table,
    }  # fmt: skip
    kinds = {"shared": like(shared)} if "shared" in arrays else {}
    found = decode(content, Schema(checks, kinds, longest=1 << 30))
    del found["kind"]
    return SumOrder(**found)


def encode_sum_answer(answer: SumAnswer) -> bytes:
    facts = {"run": answer.run, "round": answer.round, "state_round": answer.state_round}
    arrays = {} if answer.masked is None else {MASKED: answer.masked}
    return encode({**facts, "gives": dict(answer.gives)}, arrays)


def decode_sum_answer(content: bytes, order: SumOrder) -> SumAnswer:
    """The answer to ``order``, checked as far as can be: masked words say nothing."""
    checks: dict[str, Check] = {
        "run": partial(exactly, order.run),
        "round": partial(exactly, order.round),
        "state_round": partial(exactly, order.state_round),
        "gives": table,
    }
    kinds = {MASKED: ("uint64", (order.words,))} if order.words else {}
    longest = PER_CLIENT * (order.clients + 2)
    found = decode(content, Schema(checks, kinds, longest=longest))
    same_names("answer", found["gives"], [name for name in order.asks if name in ANSWERED])
    return SumAnswer(order.run, order.round, order.state_round, found["gives"], found.get(MASKED))


ANSWERED = ("keys", "letters", "input", "agree", "reveal")
"""What an answer has an entry for, where it was asked for."""
