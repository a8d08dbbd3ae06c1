"""What server and clients say to each other, as Flower's records; nothing that arrives is trusted.

An order goes down: which run, which round, which of the client's states to start from, and
``shared``. An answer comes back: the same numbers, the update, and the scalars that were agreed on.
Where clients share a head, it goes both ways too, under the name of the group that shares it.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.app.message import Array

from fedgradnorm._errors import FedGradNormError

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["train", "finish"]
MESSAGE_TYPE = "train"  # Flower's word for any message of ours; what is asked for is inside
SLACK = 1024  # bytes of a stored array beside its numbers
SALT = "salt"
"""Chance in each part of an answer. The SuperLink keeps parts by their content, so nobody else may
be able to guess it, and register it before its owner does."""
GRAINS = 4  # numbers of chance at the end of a head: two clients may well have the same one
TOLERANCE = 1e-3  # relative, between a gradient norm and the update it is said to be of
ABSURD = 1e30  # no loss, ratio or length of a training that goes on is as large


class Refused(FedGradNormError):
    """A message that was not used; the text says why."""


@dataclass(frozen=True)
class Order:
    """What the server asks of a client.

    ``digest`` names the settings that both sides agreed on, ``state_round`` how many rounds the
    client has completed so far as the server knows. ``head`` is the one that the client shares with
    others, ``group`` the name of what they have in common; None where its head is its own.
    ``updates`` is how many the answer has: one, or one for each of several tasks.
    """

    kind: Kind
    run: str
    digest: str
    round: int
    state_round: int
    shared: Tensor
    group: str = ""
    head: Tensor | None = None
    updates: int = 1

    def records(self) -> RecordDict:
        """As it travels."""
        return encode_order(self)

    def room(self) -> tuple[int, int]:
        """Bytes of the two vectors that an answer may have: the update, and a head."""
        return self.updates * self.shared.nbytes, 0 if self.head is None else self.head.nbytes


@dataclass(frozen=True)
class Answer:
    """What a client sends: the update, and the agreed scalars; ``state_round`` is its new state's.

    ``head`` is there where the order had one. An answer to ``finish`` has none of them. A client
    with several tasks sends one answer: its update is [tasks, numbers], its scalars have the name
    of their task at the end, as in "loss/state", and "there/state" says whether there was a label.
    """

    run: str
    round: int
    state_round: int
    update: Tensor | None = None
    scalars: Mapping[str, float] = field(default_factory=dict)
    group: str = ""
    head: Tensor | None = None

    def of_tasks(self, tasks: Sequence[str]) -> dict[str, tuple[Tensor, dict[str, float]]]:
        """Update and scalars of each task that took part; of one without a name where none is."""
        assert self.update is not None
        if not tasks:
            return {"": (self.update, dict(self.scalars))}
        found = {}
        for row, task in enumerate(tasks):
            own = {k.removesuffix(f"/{task}"): v for k, v in self.scalars.items() if _of(k, task)}
            if own.pop(THERE):
                found[task] = self.update[row], own
        return found


THERE = "there"
"""Whether a task of several took part: it sits a round out whose batches have no label of it."""


def _of(key: str, task: str) -> bool:
    return key.endswith(f"/{task}") and "/" not in key.removesuffix(f"/{task}")


def scalars_of(scalars: Sequence[str], tasks: Sequence[str]) -> tuple[str, ...]:
    """The names of a client's numbers, for each of its tasks where it has several."""
    if not tasks:
        return tuple(scalars)
    return tuple(f"{name}/{task}" for task in tasks for name in (THERE, *scalars))


def encode_order(order: Order) -> RecordDict:
    """The order as Flower's records."""
    facts: dict[str, Any] = {
        "kind": order.kind,
        "run": order.run,
        "digest": order.digest,
        "round": order.round,
        "state_round": order.state_round,
    }
    records: dict[str, Any] = {
        "order": ConfigRecord(facts),
        "shared": packed("shared", order.shared),
        **_packed_head(order.group, order.head),
    }
    return RecordDict(records)


def decode_order(
    content: RecordDict, like: Tensor, group: str = "", like_head: Tensor | None = None
) -> Order:
    """The order, checked; ``like`` is a tensor as ``shared`` must be.

    A head may be in it only where the client has agreed to share its own: then ``like_head`` is a
    tensor as that must be, and ``group`` the name of those to share it with.
    """
    shares = like_head is not None and "head" in content
    same_names("records", content, ("order", "shared", *(("head",) if shares else ())))
    facts = content["order"]
    if not isinstance(facts, ConfigRecord):
        raise Refused("order: not a table of settings")
    same_names("order", facts, ("kind", "run", "digest", "round", "state_round"))
    kind, run, digest = (text_of(facts, key) for key in ("kind", "run", "digest"))
    if kind not in ("train", "finish"):
        raise Refused(f"order: unknown kind {kind[:20]!r}")
    if not run.isalnum() or len(run) > 64:
        raise Refused("order: the run's name is no plain word")
    number, state = (count_of(facts, key) for key in ("round", "state_round"))
    shared = unpacked(content["shared"], "shared", like)
    known: Kind = "train" if kind == "train" else "finish"
    if not shares or like_head is None:
        return Order(known, run, digest, number, state, shared)
    head = _unpacked_head(content["head"], group, like_head)
    return Order(known, run, digest, number, state, shared, group, head)


def encode_answer(answer: Answer) -> RecordDict:
    """The answer as Flower's records."""
    numbers: dict[str, Any] = {
        "round": answer.round,
        "state_round": answer.state_round,
        **{name: float(value) for name, value in answer.scalars.items()},
    }
    records: dict[str, Any] = {
        "answer": MetricRecord({**numbers, SALT: secrets.randbits(62)}),
        "run": ConfigRecord({"run": answer.run, SALT: secrets.token_hex(8)}),
    }
    if answer.update is not None:
        records["update"] = packed("update", answer.update.flatten())
    return RecordDict({**records, **_packed_head(answer.group, answer.head)})


def decode_answer(
    content: RecordDict,
    order: Order,
    scalars: Sequence[str],
    longest: float,
    tasks: Sequence[str] = (),
) -> Answer:
    """The answer to ``order``, checked: names, types, shape, round, finiteness, length."""
    scalars = scalars_of(scalars, tasks)
    training = order.kind == "train"
    shares = training and order.head is not None
    more = (*(("update",) if training else ()), *(("head",) if shares else ()))
    same_names("records", content, ("answer", "run", *more))
    numbers, run = content["answer"], content["run"]
    if not isinstance(numbers, MetricRecord) or not isinstance(run, ConfigRecord):
        raise Refused("answer: records of the wrong kind")
    same_names("run", run, ("run", SALT))
    same_names("answer", numbers, ("round", "state_round", SALT, *(scalars if training else ())))
    if text_of(run, "run") != order.run:
        raise Refused("it answers to another run")
    if count_of(numbers, "round") != order.round:
        raise Refused(f"it answers to round {numbers['round']}, not {order.round}")
    expected = order.state_round + training
    if count_of(numbers, "state_round") != expected:
        raise Refused(f"its state is of round {numbers['state_round']}, not {expected}")
    if not training:
        return Answer(order.run, order.round, expected)
    found = {name: _possible(numbers, name) for name in scalars}
    update = unpacked(content["update"], "update", order.shared.repeat(max(1, len(tasks))))
    update = update.view(len(tasks), -1) if tasks else update
    for one in update if tasks else [update]:
        _check_length("update", one, longest)
    if order.head is None:
        return Answer(order.run, order.round, expected, update, found)
    head = _unpacked_head(content["head"], order.group, order.head)
    _check_length("head", head, longest)
    return Answer(order.run, order.round, expected, update, found, order.group, head)


def _check_length(what: str, vector: Tensor, longest: float) -> None:
    length = float(vector.double().norm())
    if length > longest:
        raise Refused(f"its {what} has length {length:.3g}, more than the {longest:.3g} allowed")


def check_grad_norm(update: Tensor, said: float, norm_layer: Tensor) -> None:
    """Refuse an answer whose gradient norm is not that of its own update."""
    measured = float(update[norm_layer].double().norm())
    if abs(said - measured) > TOLERANCE * max(said, measured):
        raise Refused(f"its gradient norm is {measured:.4g}, but it says {said:.4g}")


def size_in_bytes(content: RecordDict) -> int:
    """Bytes of all arrays and numbers in a message, as they travel."""
    arrays = [a for record in content.array_records.values() for a in record.values()]
    numbers = [n for record in content.metric_records.values() for n in record.values()]
    return sum(len(array.data) for array in arrays) + 8 * len(numbers)


def packed(name: str, tensor: Tensor) -> ArrayRecord:
    return ArrayRecord({name: Array(tensor.detach().cpu().contiguous().numpy())})


def _packed_head(group: str, head: Tensor | None) -> dict[str, ArrayRecord]:
    """The record of a shared head, if there is one. Chance at its end: see ``SALT``."""
    import torch

    if head is None:
        return {}
    numbers = head.detach().cpu()
    chance = [secrets.randbits(24) / 2**24 for _ in range(GRAINS)]
    return {"head": packed(group, torch.cat([numbers, numbers.new_tensor(chance)]))}


def _unpacked_head(record: Any, group: str, like: Tensor) -> Tensor:
    """The head of this group, and of no other."""
    import torch

    whole = unpacked(record, group, torch.cat([like, like.new_zeros(GRAINS)]), f"head {group!r}")
    return whole[:-GRAINS].clone()


def unpacked(record: Any, key: str, like: Tensor, name: str = "") -> Tensor:
    """The array as a tensor like ``like``; sizes are looked at before anything is unpacked."""
    import torch  # not at the top: the SuperLink needs this module's limits alone

    name = name or key
    if not isinstance(record, ArrayRecord):
        raise Refused(f"{name}: not an array")
    same_names(name, record, (key,))
    array = record[key]
    if len(array.data) > like.numel() * like.element_size() + SLACK:
        raise Refused(f"{name}: {len(array.data)} bytes for {like.numel()} numbers")
    try:
        values = array.numpy()
    except Exception as error:
        raise Refused(f"{name}: cannot be read ({type(error).__name__})") from error
    wanted = np.dtype(str(like.dtype).removeprefix("torch."))
    if values.dtype != wanted or values.shape != tuple(like.shape):
        raise Refused(
            f"{name}: {values.dtype}{list(values.shape)} instead of {wanted}{list(like.shape)}"
        )
    if not np.isfinite(values).all():
        raise Refused(f"{name}: holds numbers that are not finite")
    return torch.from_numpy(values.copy())


def same_names(what: str, table: Mapping[str, Any], wanted: Sequence[str]) -> None:
    """The names must be exactly these: nothing missing, nothing beside them."""
    odd = set(table) ^ set(wanted)
    if odd:
        names = ", ".join(sorted(map(str, odd)))[:80]
        raise Refused(f"{what}: missing or not agreed on: {names}")


def text_of(table: Mapping[str, Any], key: str) -> str:
    value = table[key]
    if not isinstance(value, str):
        raise Refused(f"{key}: not a text")
    return value


def count_of(table: Mapping[str, Any], key: str) -> int:
    value = table[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Refused(f"{key}: not a whole number >= 0")
    return value


def _possible(table: Mapping[str, Any], key: str) -> float:
    """A number that an honest client can have come to.

    A loss of 0 is possible, and so is its ratio. A loss of one's own making may be negative, but
    then it has no ratio: choose a method that needs none.
    """
    value = table[key]
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise Refused(f"{key}: not a finite number")
    if abs(value) > ABSURD:
        raise Refused(f"{key}: {value:.3g} is beyond {ABSURD:.0e}")
    kind = key.partition("/")[0]
    if kind == THERE and value not in (0, 1):
        raise Refused(f"{key}: {value:.3g} is neither 0 nor 1")
    if kind in ("loss_ratio", "grad_norm") and value < 0:
        raise Refused(f"{key}: {value:.3g} is negative")
    if kind == "size" and not (value >= 1 and float(value).is_integer()):
        raise Refused(f"size: {value:.6g} is no whole number >= 1")
    return float(value)
