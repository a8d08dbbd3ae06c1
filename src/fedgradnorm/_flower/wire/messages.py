"""The messages between server and clients: one codec, with a schema and a size limit for each.

A message is a safetensors file in memory: its arrays by name, and all its plain values as JSON in
the array ``facts``. Nothing that arrives is trusted: :func:`decode` checks the length before
anything is unpacked, then the names, then each value against the schema of the message.

The server sends an :class:`Order`, a client returns an :class:`Answer`. Secure sums have their own
two messages in ``sum_messages``, written with the same codec.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedgradnorm._errors import FedGradNormError

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["train", "finish"]
FACTS, SALT = "facts", "salt"
"""The salt is random. The SuperLink stores parts of messages by their content, so nobody may be
able to guess one and register it before its owner does."""
SLACK = 4096  # bytes of a message beyond its arrays and long values: names, numbers, shapes
EACH = 64  # bytes of one number of the facts, beyond its name
TOLERANCE = 1e-3  # relative, between a gradient norm and the update that it is reported for
ABSURD = 1e30  # no loss, ratio or length of a running training is as large


class Refused(FedGradNormError):
    """A message that was not used; the text says why."""


Check = Callable[[str, Any], Any]
Kinds = tuple[str, tuple[int, ...]]
"""Dtype and shape of an array."""


@dataclass(frozen=True)
class Schema:
    """What a message must have: a check for each fact, and an array like each of ``arrays``.

    ``longest`` is how many bytes the facts may have beyond their plain numbers and names.
    """

    facts: Mapping[str, Check]
    arrays: Mapping[str, Kinds] = field(default_factory=dict)
    longest: int = 0

    @property
    def most(self) -> int:
        """Bytes of the largest message of this kind."""
        names = sum(len(name.encode()) + EACH for name in (*self.facts, *self.arrays))
        return SLACK + self.longest + names + sum(map(_nbytes, self.arrays.values()))


def _nbytes(array: Kinds) -> int:
    return np.dtype(array[0]).itemsize * math.prod(array[1])


def like(tensor: Tensor) -> Kinds:
    """The schema of an array with the dtype and shape of ``tensor``."""
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)


def encode(facts: Mapping[str, Any], arrays: Mapping[str, Any]) -> bytes:
    """A message as bytes; ``arrays`` are tensors or NumPy arrays."""
    from safetensors.numpy import save

    text = json.dumps({**facts, SALT: secrets.token_hex(16)}, allow_nan=False).encode()
    found = {name: _as_numpy(array) for name, array in arrays.items()}
    return bytes(save({FACTS: np.frombuffer(text, dtype=np.uint8), **found}))


def unpack(content: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Facts and arrays of a message, unchecked; Refused if they cannot be read."""
    from safetensors.numpy import load

    try:
        arrays = load(content)
        facts = _parsed(arrays.pop(FACTS).tobytes())
    except Refused:
        raise
    except Exception as error:  # of safetensors, NumPy, json: there is no list of what they raise
        raise Refused(f"the message cannot be read ({type(error).__name__})") from error
    if not isinstance(facts, dict):
        raise Refused("the message cannot be read (its facts are no table)")
    facts.pop(SALT, None)
    return facts, arrays


def facts_of(content: bytes) -> dict[str, Any]:
    """The facts of a message alone, unchecked; its arrays are not copied."""
    try:
        start = 8 + int.from_bytes(content[:8], "little")
        first, end = json.loads(content[8:start])[FACTS]["data_offsets"]
        return dict(_parsed(content[start + first : start + end]))
    except Refused:
        raise
    except Exception as error:  # as in unpack
        raise Refused(f"the message cannot be read ({type(error).__name__})") from error


def decode(content: bytes, schema: Schema) -> dict[str, Any]:
    """Facts and arrays of a message by name, checked against ``schema``; arrays are tensors."""
    if len(content) > schema.most:
        raise Refused(f"the message has {len(content)} bytes, more than {schema.most}")
    facts, arrays = unpack(content)
    same_names("message", {**facts, **arrays}, (*schema.facts, *schema.arrays))
    same_names("arrays", arrays, tuple(schema.arrays))
    found = {name: check(name, facts[name]) for name, check in schema.facts.items()}
    return found | {k: _checked(k, arrays[k], *v) for k, v in schema.arrays.items()}


def _checked(name: str, values: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    if values.dtype != np.dtype(dtype) or values.shape != shape:
        raise Refused(f"{name}: {values.dtype}{list(values.shape)} instead of {dtype}{list(shape)}")
    if not np.isfinite(values).all():
        raise Refused(f"{name}: holds numbers that are not finite")
    import torch  # not at the top: the SuperLink's process needs no torch

    unsigned = dtype.startswith("uint")
    return values if unsigned else torch.from_numpy(np.require(values, requirements="W"))


def _as_numpy(array: Any) -> Any:
    found = array if isinstance(array, np.ndarray) else array.detach().cpu().numpy()
    return np.ascontiguousarray(found)


def _parsed(text: bytes) -> Any:
    return json.loads(text, parse_float=_finite, parse_constant=_finite)


def _finite(word: str) -> float:
    """A number that can be written again: 1e999 is read as infinity."""
    if math.isfinite(found := float(word)):
        return found
    raise Refused(f"a number of the message is not finite ({word[:20]})")


def same_names(what: str, table: Mapping[str, Any], wanted: Sequence[str]) -> None:
    """The names must be exactly these: none missing, none in addition."""
    odd = set(table) ^ set(wanted)
    if odd:
        names = ", ".join(sorted(map(str, odd)))[:80]
        raise Refused(f"{what}: missing or not agreed on: {names}")


def text(name: str, value: Any, longest: int = 200) -> str:
    if not isinstance(value, str) or len(value) > longest:
        raise Refused(f"{name}: not a text of at most {longest} characters")
    return value


def word(name: str, value: Any) -> str:
    """A text that may be the name of a folder."""
    if not text(name, value, 64).isalnum():
        raise Refused(f"{name}: not a plain word")
    return str(value)


def count(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise Refused(f"{name}: not a whole number >= 0")
    return value


def exactly(wanted: Any, name: str, value: Any) -> Any:
    if value != wanted or type(value) is not type(wanted):
        raise Refused(f"{name}: {str(value)[:40]!r} instead of {wanted!r}")
    return value


def table(name: str, value: Any) -> dict[str, Any]:
    """A table whose content is checked by whoever reads it."""
    if not isinstance(value, dict):
        raise Refused(f"{name}: not a table")
    return value


def _number(name: str, value: Any) -> float:
    if type(value) in (int, float) and -ABSURD <= value <= ABSURD:  # not so for NaN
        return float(value)
    raise Refused(f"{name}: not a finite number of at most {ABSURD:.0e}")


def weight(name: str, value: Any) -> float | None:
    """A number; None before the client's first round."""
    return None if value is None else _number(name, value)


def possible(name: str, value: Any) -> float:
    """A number that an honest client can have computed.

    A loss of 0 is possible, and so is its ratio. A custom loss may be negative, but then it has no
    ratio: choose a method that needs none.
    """
    number = _number(name, value)
    if name in ("loss_ratio", "grad_norm") and number < 0:
        raise Refused(f"{name}: {number:.3g} is negative")
    if name == "size" and not (number >= 1 and number.is_integer()):
        raise Refused(f"size: {number:.6g} is not a whole number >= 1")
    return number


@dataclass(frozen=True)
class Order:
    """A server's request to one client.

    ``digest`` identifies the agreed settings, ``state_round`` how many rounds the client has
    completed according to the server, ``weight`` its weight after the last one.
    """

    kind: Kind
    run: str
    digest: str
    round: int
    state_round: int
    shared: Tensor
    weight: float | None = None

    def encoded(self) -> bytes:
        names = ("kind", "run", "digest", "round", "state_round", "weight")
        return encode({name: getattr(self, name) for name in names}, {"shared": self.shared})

    def room(self) -> int:
        """Bytes of the largest answer."""
        return largest_answer(self.shared.nbytes)


def largest_answer(update: int) -> int:
    """Bytes of the largest answer with an update of so many bytes."""
    return 2 * SLACK + update


def order_schema(shared: Tensor) -> Schema:
    """What an order must have; ``shared`` is a tensor like that in it."""
    facts: dict[str, Check] = {
        "kind": _kind, "run": word, "digest": text, "round": count, "state_round": count,
        "weight": weight,
    }  # fmt: skip
    return Schema(facts, {"shared": like(shared)}, longest=16 << 10)


def _kind(name: str, value: Any) -> str:
    if value not in ("train", "finish"):
        raise Refused(f"{name}: unknown kind {str(value)[:20]!r}")
    return str(value)


def decode_order(content: bytes, shared: Tensor) -> Order:
    """The order, checked; ``shared`` is a tensor like the network."""
    return Order(**decode(content, order_schema(shared)))


@dataclass(frozen=True)
class Answer:
    """A client's reply: the update and the agreed scalars; ``state_round`` is its new state's.

    An answer to ``finish`` has neither.
    """

    run: str
    round: int
    state_round: int
    update: Tensor | None = None
    scalars: Mapping[str, float] = field(default_factory=dict)


def encode_answer(answer: Answer) -> bytes:
    facts = {"run": answer.run, "round": answer.round, "state_round": answer.state_round}
    arrays = {} if answer.update is None else {"update": answer.update}
    return encode({**facts, **answer.scalars}, arrays)


def decode_answer(content: bytes, order: Order, scalars: Sequence[str], longest: float) -> Answer:
    """The answer to ``order``, checked: names, types, shape, round, finiteness, length."""
    training = order.kind == "train"
    names = tuple(scalars) if training else ()
    facts: dict[str, Check] = {
        "run": partial(exactly, order.run),
        "round": partial(exactly, order.round),
        "state_round": partial(exactly, order.state_round + training),
        **dict.fromkeys(names, possible),
    }
    arrays = {"update": like(order.shared)} if training else {}
    found = decode(content, Schema(facts, arrays, longest=SLACK))
    length = float(found["update"].double().norm()) if training else 0.0
    if length > longest:
        raise Refused(f"its update has length {length:.3g}, over the {longest:.3g} allowed")
    own = {name: found.pop(name) for name in names}
    return Answer(**found, scalars=own)


def check_grad_norm(update: Tensor, reported: float, norm_layer: Tensor) -> None:
    """Refuse an answer whose gradient norm is not that of its own update."""
    measured = float(update[norm_layer].double().norm())
    if abs(reported - measured) > TOLERANCE * max(reported, measured):
        raise Refused(f"its gradient norm is {measured:.4g}, but it reports {reported:.4g}")
