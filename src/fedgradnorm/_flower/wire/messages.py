"""The messages between server and clients: one codec, with a schema and a size limit for each.

A message is a safetensors file in memory: its arrays by name, and all its plain values as JSON in
the array ``facts``. Nothing that arrives is trusted: :func:`decode` checks the length before
anything is unpacked, then the arrays, then the facts against the fields of the message's class.

The server sends an :class:`Order`, a client returns an :class:`Answer`. Secure sums have their own
two messages in ``sum_messages``, written with the same codec.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import ConfigDict, Field, Strict, TypeAdapter, ValidationError

from fedgradnorm._errors import FedGradNormError

if TYPE_CHECKING:
    from torch import Tensor
else:  # the SuperLink's process needs no torch
    Tensor = Any

FACTS, SALT = "facts", "salt"
"""The salt is random. The SuperLink stores parts of messages by their content, so nobody may be
able to guess one and register it before its owner does."""
SLACK = 4096  # bytes of a message beyond its arrays and long values: names, numbers, shapes
ORDERS = 32 << 10  # the same of an order
TOLERANCE = 1e-3  # relative, between a gradient norm and the update that it is reported for
ABSURD = 1e30  # no loss, ratio or length of a running training is as large
NOT_FACTS = {"shared", "update", "head", "masked", "scalars", "words", "clients"}
"""Fields that no client or server says in its facts: arrays, what is made of other facts, and what
the sender alone knows."""

Message = TypeVar("Message")
Kinds = tuple[str, tuple[int, ...]]
"""Dtype and shape of an array."""
Text = Annotated[str, Strict(), Field(max_length=200)]
Word = Annotated[str, Strict(), Field(pattern="^[A-Za-z0-9]{1,64}$")]
"""It may be the name of a folder."""
Count = Annotated[int, Strict(), Field(ge=0, lt=2**63)]
Number = Annotated[float, Strict(), Field(ge=-ABSURD, le=ABSURD, allow_inf_nan=False)]
STRICT = ConfigDict(extra="forbid")


class Refused(FedGradNormError):
    """A message that was not used; the text says why."""


def like(tensor: Tensor) -> Kinds:
    """The dtype and shape of ``tensor``."""
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


def decode(
    kind: type[Message],
    content: bytes,
    most: int,
    arrays: Mapping[str, Kinds],
    scalars: Sequence[str] = (),
    **same: Any,
) -> Message:
    """The message of this ``kind``, checked; Refused unless it is exactly what was agreed.

    It has at most ``most`` bytes, an array like each of ``arrays``, a number by each name of
    ``scalars``, and the values of ``same``.
    """
    if len(content) > most:
        raise Refused(f"the message has {len(content)} bytes, more than {most}")
    facts, found = unpack(content)
    same_names("message", {name: 0 for name in NOT_FACTS if name in facts}, ())
    same_names("arrays", found, tuple(arrays))
    values: dict[str, Any] = {k: _checked(k, found[k], *v) for k, v in arrays.items()}
    if "scalars" in kind.__annotations__:
        values["scalars"] = {name: facts.pop(name) for name in scalars if name in facts}
        same_names("message", values["scalars"], scalars)
    message = validated(kind, {**facts, **values})
    for name, value in same.items():
        if (said := getattr(message, name)) != value:
            raise Refused(f"{name}: {str(said)[:40]!r} instead of {value!r}")
    return message


def validated(kind: type[Message], table: Mapping[str, Any]) -> Message:
    """What ``kind`` makes of a table; Refused with the first thing that is wrong."""
    wanted: Any = kind
    try:
        found: Message = _adapter(wanted).validate_python(table)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part)[:40] for part in first["loc"]).removeprefix("scalars.")
        raise Refused(f"{where}: {first['msg'][:100]}") from None
    return found


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


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


@dataclass(frozen=True)
class Order:
    """A server's request to one client.

    ``digest`` identifies the agreed settings, ``state_round`` how many rounds the client has
    completed according to the server, ``weight`` its weight after the last one. ``head`` is the
    shared head of the client's ``group``; both are missing where its head is personal.
    """

    __pydantic_config__ = STRICT

    kind: Literal["train", "finish"]
    run: Word
    digest: Text
    round: Count
    state_round: Count
    shared: Tensor
    weight: Number | None = None
    group: Text = ""
    head: Tensor | None = None

    def encoded(self) -> bytes:
        names = ("kind", "run", "digest", "round", "state_round", "weight", "group")
        facts = {name: getattr(self, name) for name in names}
        return encode(facts, _arrays(shared=self.shared, head=self.head))

    def room(self) -> int:
        """Bytes of the largest answer."""
        return largest_answer(self.shared.nbytes, 0 if self.head is None else self.head.nbytes)


def largest_answer(update: int, head: int = 0) -> int:
    """Bytes of the largest answer with an update and a head of so many bytes."""
    return 2 * SLACK + update + head


def _arrays(**given: Tensor | None) -> dict[str, Tensor]:
    return {name: array for name, array in given.items() if array is not None}


def decode_order(
    content: bytes, shared: Tensor, group: str = "", head: Tensor | None = None
) -> Order:
    """The order, checked; ``shared`` is a tensor like the network.

    A head may be in it only where the client has agreed to share its own: then ``head`` is a tensor
    like it, and ``group`` the name of those to share it with.
    """
    if head is not None and not unpack(content)[0].get("group"):
        group, head = "", None  # nobody else of its group participates
    arrays = _arrays(shared=shared, head=head)
    room = ORDERS + sum(array.nbytes for array in arrays.values())
    kinds = {name: like(array) for name, array in arrays.items()}
    return decode(Order, content, room, kinds, group=group)


@dataclass(frozen=True)
class Answer:
    """A client's reply: the update and the agreed scalars; ``state_round`` is its new state's.

    ``head`` is present where the order had one. An answer to ``finish`` has none of them.
    """

    __pydantic_config__ = STRICT

    run: Word
    round: Count
    state_round: Count
    update: Tensor | None = None
    scalars: Mapping[str, Number] = field(default_factory=dict)
    head: Tensor | None = None


def encode_answer(answer: Answer) -> bytes:
    facts = {"run": answer.run, "round": answer.round, "state_round": answer.state_round}
    arrays = _arrays(update=answer.update, head=answer.head)
    return encode({**facts, **answer.scalars}, arrays)


def decode_answer(content: bytes, order: Order, scalars: Sequence[str], longest: float) -> Answer:
    """The answer to ``order``, checked: names, types, shape, round, finiteness, length."""
    training = order.kind == "train"
    wanted = _arrays(update=order.shared, head=order.head) if training else {}
    arrays = {name: like(array) for name, array in wanted.items()}
    names = scalars if training else ()
    about = {"run": order.run, "round": order.round, "state_round": order.state_round + training}
    answer = decode(Answer, content, order.room(), arrays, names, **about)
    for name, number in answer.scalars.items():
        _check_possible(name, number)
    for what, array in _arrays(update=answer.update, head=answer.head).items():
        if (length := float(array.double().norm())) > longest:
            raise Refused(f"its {what} has length {length:.3g}, over the {longest:.3g} allowed")
    return answer


def _check_possible(name: str, number: float) -> None:
    """Refuse a number that no honest client can have computed.

    A loss of 0 is possible, and so is its ratio. A custom loss may be negative, but then it has no
    ratio: choose a method that needs none.
    """
    if name in ("loss_ratio", "grad_norm") and number < 0:
        raise Refused(f"{name}: {number:.3g} is negative")
    if name == "size" and not (number >= 1 and number.is_integer()):
        raise Refused(f"size: {number:.6g} is not a whole number >= 1")


def check_grad_norm(update: Tensor, reported: float, norm_layer: Tensor) -> None:
    """Refuse an answer whose gradient norm is not that of its own update."""
    measured = float(update[norm_layer].double().norm())
    if abs(reported - measured) > TOLERANCE * max(reported, measured):
        raise Refused(f"its gradient norm is {measured:.4g}, but it reports {reported:.4g}")
