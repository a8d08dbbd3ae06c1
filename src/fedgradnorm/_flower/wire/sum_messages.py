"""What is said in a private federation, as Flower's records; nothing that arrives is trusted.

An order says what is asked for, in one table: keys, letters, an input, a name under a list, shares.
It carries the shared network where the client is to train. An answer has the same entries, and a
masked vector where one was asked for. What the entries mean is known elsewhere (``_masking``).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.app.message import Array

from fedgradnorm._flower.wire.messages import (
    SALT,
    SLACK,
    Refused,
    count_of,
    packed,
    same_names,
    text_of,
    unpacked,
)

if TYPE_CHECKING:
    from torch import Tensor

KIND = "private"
PER_CLIENT = 2048  # bytes of an answer's table for each client of the federation, at most


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

    def records(self) -> RecordDict:
        """As it travels."""
        facts: dict[str, Any] = {
            "kind": KIND,
            "run": self.run,
            "digest": self.digest,
            "round": self.round,
            "state_round": self.state_round,
        }
        records: dict[str, Any] = {"order": ConfigRecord(facts), "asks": _table(self.asks)}
        if self.shared is not None:
            records["shared"] = packed("shared", self.shared)
        return RecordDict(records)

    def room(self) -> tuple[int, int]:
        """Bytes of the masked vector, and of the table."""
        return 8 * self.words, PER_CLIENT * (self.clients + 2)


@dataclass(frozen=True)
class SumAnswer:
    """What a client answers: what was asked for, by the same names, and a masked vector."""

    run: str
    round: int
    state_round: int
    gives: Mapping[str, Any]
    masked: npt.NDArray[np.uint64] | None = None


def decode_sum_order(content: RecordDict, like: Tensor) -> SumOrder:
    """The order, checked; ``like`` is a tensor as ``shared`` must be."""
    facts = content.get("order")
    if isinstance(facts, ConfigRecord) and facts.get("kind") != KIND:
        raise Refused(
            "this client takes part in a private federation, and the server asks for a plain "
            "answer: it would see this client's own update"
        )
    more = ("shared",) if "shared" in content else ()
    same_names("records", content, ("order", "asks", *more))
    if not isinstance(facts, ConfigRecord):
        raise Refused("order: not a table of settings")
    same_names("order", facts, ("kind", "run", "digest", "round", "state_round"))
    run, digest = text_of(facts, "run"), text_of(facts, "digest")
    if not run.isalnum() or len(run) > 64:
        raise Refused("order: the run's name is no plain word")
    number, state = (count_of(facts, key) for key in ("round", "state_round"))
    shared = unpacked(content["shared"], "shared", like) if more else None
    asks = _untabled(content["asks"], 1 << 30)
    return SumOrder(run, digest, number, state, asks, shared)


def encode_sum_answer(answer: SumAnswer) -> RecordDict:
    """The answer as Flower's records."""
    numbers: dict[str, Any] = {"round": answer.round, "state_round": answer.state_round}
    records: dict[str, Any] = {
        "answer": MetricRecord({**numbers, SALT: secrets.randbits(62)}),
        "run": ConfigRecord({"run": answer.run, SALT: secrets.token_hex(8)}),
        "gives": _table({**answer.gives, SALT: secrets.token_hex(8)}),
    }
    if answer.masked is not None:
        records["masked"] = ArrayRecord({"masked": Array(answer.masked)})
    return RecordDict(records)


def decode_sum_answer(content: RecordDict, order: SumOrder) -> SumAnswer:
    """The answer to ``order``, checked as far as can be: masked words say nothing."""
    masks = bool(order.words)
    same_names("records", content, ("answer", "run", "gives", *(("masked",) if masks else ())))
    numbers, run = content["answer"], content["run"]
    if not isinstance(numbers, MetricRecord) or not isinstance(run, ConfigRecord):
        raise Refused("answer: records of the wrong kind")
    same_names("run", run, ("run", SALT))
    same_names("answer", numbers, ("round", "state_round", SALT))
    if text_of(run, "run") != order.run or count_of(numbers, "round") != order.round:
        raise Refused("it answers to another run or round")
    if count_of(numbers, "state_round") != order.state_round:
        raise Refused("it answers from another state")
    gives = _untabled(content["gives"], order.room()[1])
    gives.pop(SALT, None)
    same_names("answer", gives, [name for name in order.asks if name in ANSWERED])
    masked = _words(content["masked"], order.words) if masks else None
    return SumAnswer(order.run, order.round, order.state_round, gives, masked)


ANSWERED = ("keys", "letters", "input", "agree", "reveal")
"""What an answer has an entry for, where it was asked for."""


def _table(values: Mapping[str, Any]) -> ArrayRecord:
    text = json.dumps(dict(values), allow_nan=False).encode()
    return ArrayRecord({"table": Array(np.frombuffer(text, dtype=np.uint8))})


def _untabled(record: Any, most: int) -> dict[str, Any]:
    if not isinstance(record, ArrayRecord):
        raise Refused("table: not an array")
    same_names("table", record, ("table",))
    if len(record["table"].data) > most + SLACK:
        raise Refused(f"table: {len(record['table'].data)} bytes, more than {most}")
    try:
        found = json.loads(record["table"].numpy().astype(np.uint8).tobytes())
    except Exception as error:  # of Flower, NumPy, json: there is no list of what they raise
        raise Refused(f"table: cannot be read ({type(error).__name__})") from error
    if not isinstance(found, dict):
        raise Refused("table: holds no table")
    return found


def _words(record: Any, count: int) -> npt.NDArray[np.uint64]:
    if not isinstance(record, ArrayRecord):
        raise Refused("masked: not an array")
    same_names("masked", record, ("masked",))
    if len(record["masked"].data) > 8 * count + SLACK:
        raise Refused(f"masked: {len(record['masked'].data)} bytes for {count} words")
    try:
        words = record["masked"].numpy()
    except Exception as error:
        raise Refused(f"masked: cannot be read ({type(error).__name__})") from error
    if words.dtype != np.uint64 or words.shape != (count,):
        raise Refused(f"masked: {words.dtype}{list(words.shape)} instead of uint64[{count}]")
    return words.copy()
