"""What a user asks of a client's outputs: classes, names, probabilities, or as they are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from torch import Tensor

from fedgradnorm._checks import one_of
from fedgradnorm._errors import ConfigError
from fedgradnorm.tasks._kind import Kind
from fedgradnorm.tasks._targets import Shape, outputs_first, positions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedgradnorm._runs.trained import TrainedClient

Answer = Literal["class", "label", "probability", "output"]


def asked_for(name: str, client: TrainedClient, kind: Answer | None, outputs: bool) -> Answer:
    """What ``predict`` is to give; a ConfigError where the client has no such thing."""
    real = client.form.real
    if kind is None:
        plain = type(client.form).answer is Kind.answer
        return "output" if outputs or plain else "class"
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


def answered(client: TrainedClient, output: Tensor, wanted: Answer) -> Tensor | NDArray[Any]:
    """The outputs as they were asked for; those with a shape are [rows, numbers, *shape], and
    classes [rows, *shape].
    """
    form, labels, rows = client.form, client.labels or (), len(output)
    if wanted == "output":
        return in_target_units(client, output)
    flat = positions(_outputs_first(output, client.shape))
    if wanted == "probability":
        return _shaped(form.probability(flat), rows, client.shape)
    found = form.answer(flat)
    if wanted == "class":
        return _shaped(found, rows, client.shape)
    names = form.names(flat.shape[1])
    if len(labels) != names:
        raise ConfigError(f"the run has {len(labels)} names for {names} classes; use kind='class'")
    named = _names(found.numpy(), labels)
    return named.reshape(rows, *client.shape) if client.shape else named


def in_target_units(client: TrainedClient, output: Tensor) -> Tensor:
    """The outputs of a head, in the units of the targets."""
    output = _outputs_first(output, client.shape)
    if client.scaling is None:
        return output
    restored: Tensor = client.scaling.restore_targets(output)
    return restored


def _outputs_first(output: Tensor, shape: Shape) -> Tensor:
    """[rows, outputs, *shape], whichever way the head gives them."""
    if not shape:
        return output
    outputs = math.prod(output.shape[1:]) // math.prod(shape)
    found = outputs_first(output, outputs, shape)
    if found is None:
        raise ConfigError(f"outputs of shape {tuple(output.shape[1:])} do not fit {shape}")
    return found


def _shaped(found: Tensor, rows: int, shape: Shape) -> Tensor:
    """Numbers of single positions, where they belong."""
    if not shape:
        return found
    whole = found.reshape(rows, *shape, *found.shape[1:])
    return whole if found.ndim == 1 else whole.movedim(-1, 1)


def _names(found: NDArray[Any], labels: tuple[str, ...]) -> NDArray[Any]:
    """The name of each row's class; of rows of 0 and 1, the names of the ones."""
    rows: NDArray[Any] = np.empty(len(found), dtype=object)
    for i, row in enumerate(found):  # one by one: rows of one length would become a table
        rows[i] = labels[row] if found.ndim == 1 else _ones(row, labels)
    return rows


def _ones(row: NDArray[Any], labels: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name, one in zip(labels, row, strict=True) if one)
