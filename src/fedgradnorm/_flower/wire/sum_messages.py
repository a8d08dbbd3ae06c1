"""The messages of a private federation, written with the codec of ``messages``.

An order says what is asked for, in one table: keys, letters, an input, a name under a list, shares.
It carries the shared network where the client is to train. An answer has the same entries, and a
masked vector where one was asked for. What the entries mean is known elsewhere (``_masking``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from fedgradnorm._flower.wire.messages import (
    SLACK,
    STRICT,
    Count,
    Refused,
    Text,
    Word,
    decode,
    encode,
    like,
    same_names,
    unpack,
)

if TYPE_CHECKING:
    from torch import Tensor

    Words = npt.NDArray[np.uint64]
else:
    Tensor = Words = Any

KIND: Literal["private"] = "private"
PER_CLIENT = 2048  # bytes of an answer's table for each client of the federation, at most
LONGEST = 1 << 30  # bytes of an order, besides the network
MASKED = "masked"
ANSWERED = ("keys", "letters", "input", "agree", "reveal")
"""What an answer has an entry for, where it was asked for."""


@dataclass(frozen=True)
class SumOrder:
    """What the server asks of a client in a private federation.

    ``state_round`` as in a plain one. ``words`` is the length of the vector that is masked, and
    ``clients`` how many there are: both bound the answer, and are not sent.
    """

    __pydantic_config__ = STRICT

    run: Word
    digest: Text
    round: Count
    state_round: Count
    asks: dict[str, Any]
    shared: Tensor | None = None
    words: int = 0
    clients: int = 0
    kind: Literal["private"] = KIND

    def encoded(self) -> bytes:
        names = ("kind", "run", "digest", "round", "state_round", "asks")
        arrays = {} if self.shared is None else {"shared": self.shared}
        return encode({name: getattr(self, name) for name in names}, arrays)

    def room(self) -> int:
        """Bytes of the largest answer: a masked vector, and a table."""
        return 2 * SLACK + 8 * self.words + PER_CLIENT * (self.clients + 2)


@dataclass(frozen=True)
class SumAnswer:
    """What a client answers: what was asked for, by the same names, and a masked vector."""

    __pydantic_config__ = STRICT

    run: Word
    round: Count
    state_round: Count
    gives: Mapping[str, Any]
    masked: Words | None = None


def decode_sum_order(content: bytes, shared: Tensor) -> SumOrder:
    """The order, checked; ``shared`` is a tensor as the network must be."""
    facts, arrays = unpack(content)
    if facts.get("kind") != KIND:
        raise Refused(
            "this client participates in a private federation, and the server asks for a plain "
            "answer: it would see this client's own update"
        )
    kinds = {"shared": like(shared)} if "shared" in arrays else {}
    return decode(SumOrder, content, LONGEST + shared.nbytes, kinds)


def encode_sum_answer(answer: SumAnswer) -> bytes:
    facts = {"run": answer.run, "round": answer.round, "state_round": answer.state_round}
    arrays = {} if answer.masked is None else {MASKED: answer.masked}
    return encode({**facts, "gives": dict(answer.gives)}, arrays)


def decode_sum_answer(content: bytes, order: SumOrder) -> SumAnswer:
    """The answer to ``order``, checked as far as can be: masked words say nothing."""
    arrays = {MASKED: ("uint64", (order.words,))} if order.words else {}
    about: dict[str, Any] = {"run": order.run, "round": order.round}
    about["state_round"] = order.state_round
    answer = decode(SumAnswer, content, order.room(), arrays, **about)
    same_names("answer", answer.gives, [name for name in order.asks if name in ANSWERED])
    return answer
