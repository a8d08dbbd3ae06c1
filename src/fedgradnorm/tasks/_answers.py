"""What a user asks of a client's outputs: classes, names, probabilities, or as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

import numpy as np
from torch import Tensor

from fedgradnorm._checks import one_of
from fedgradnorm._errors import ConfigError
from fedgradnorm.tasks._kinds import KINDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

Answer = Literal["class", "label", "probability", "output"]


class Answering(Protocol):
    """What is needed of a trained client."""

    kind: str
    scaling: Any
    labels: tuple[str, ...] | None


def asked_for(name: str, client: Answering, kind: Answer | None, outputs: bool) -> Answer:
    """What ``predict`` is to give; a ConfigError where the client has no such thing."""
    real = KINDS[client.kind].real
    if kind is None:
        return "output" if outputs or real else "class"
    one_of("kind", kind, get_args(Answer))
    if outputs and kind != "output":
        raise ConfigError(f"outputs=True and kind={kind!r} are both given; choose one")
    if real and kind != "output":
        raise ConfigError(f"client {name!r} predicts numbers, and has no {kind}; use kind='output'")
    if kind == "label" and client.labels is None:
        raise ConfigError(
            f"client {name!r} has no names of its classes; use kind='class', or train it with "
            "fgn.Client(..., labels=(...))"
        )
    return kind


def answered(client: Answering, output: Tensor, wanted: Answer) -> Tensor | NDArray[Any]:
    """The outputs as they were asked for."""
    kind = KINDS[client.kind]
    if wanted == "probability":
        return kind.probability(output)
    if wanted == "output":
        return output if client.scaling is None else client.scaling.restore_targets(output)
    found, labels = kind.answer(output), client.labels or ()
    if wanted == "class":
        return found
    names = kind.names(output.shape[1])
    if len(labels) != names:
        raise ConfigError(f"the run has {len(labels)} names for {names} classes; use kind='class'")
    return _names(found.numpy(), labels)


def _names(found: NDArray[Any], labels: tuple[str, ...]) -> NDArray[Any]:
    """The name of each row's class; of rows of 0 and 1, the names of the ones."""
    rows: NDArray[Any] = np.empty(len(found), dtype=object)
    for i, row in enumerate(found):  # one by one: rows of one length would become a table
        rows[i] = labels[row] if found.ndim == 1 else _ones(row, labels)
    return rows


def _ones(row: NDArray[Any], labels: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name, one in zip(labels, row, strict=True) if one)
