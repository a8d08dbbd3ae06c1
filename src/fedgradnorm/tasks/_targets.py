"""Targets with gaps, where NaN is a missing label, and with a shape: a mask, tags, an image.

Class numbers with gaps are floating-point numbers; without gaps they are whole ones. Outputs are
[rows, outputs, *shape] inside, as torch's own losses take them. A head may also give
[rows, *shape, outputs], as a linear layer on the last axis does; for a shape with one axis that
form is looked for first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgradnorm._errors import ConfigError, DataError

Shape = tuple[int, ...]


def known(target: Tensor) -> Tensor:
    """Which single numbers are labels."""
    if target.is_floating_point():
        return ~target.isnan()
    return torch.ones_like(target, dtype=torch.bool)


def has_gaps(target: Tensor) -> bool:
    """Whether any number is missing; asks the device that holds them."""
    # A sum that is a number has none that is missing: one small question instead of two.
    if not target.is_floating_point() or not math.isnan(target.sum()):
        return False
    return bool(target.isnan().any())


def labelled(target: Tensor) -> Tensor:
    """Which rows have a label, or at least one of several."""
    found = known(target)
    return found if found.ndim == 1 else found.flatten(1).any(dim=1)


def all_labelled(target: Tensor) -> bool:
    """Whether every row has a label, or at least one of several."""
    return not has_gaps(target) or bool(labelled(target).all())


def without_gaps(target: Tensor) -> Tensor:
    """The same numbers with 0 where there is none."""
    return target.nan_to_num(nan=0.0) if target.is_floating_point() else target


def mean_of_labelled(losses: Tensor, there: Tensor) -> Tensor:
    """The mean of the losses that are ``there``, over the last axis; 0 where none is."""
    count = there.sum(dim=-1).clamp_min(1)
    return torch.where(there, losses, 0).sum(dim=-1) / count


def positions(values: Tensor) -> Tensor:
    """[rows, numbers, *shape] as [rows x positions, numbers]."""
    if values.ndim == 2:
        return values
    return values.movedim(1, -1).reshape(-1, values.shape[1])


def numbers_with_gaps(values: NDArray[Any]) -> NDArray[Any]:
    """Objects as numbers, NaN where None or pandas' NA stands; as they are if some are none."""
    nothing = np.array([value is None or is_na(value) for value in values.flat])
    nothing = nothing.reshape(values.shape)
    try:
        return np.where(nothing, np.nan, np.where(nothing, 0, values).astype(np.float64))
    except (TypeError, ValueError):
        return values


def is_na(value: object) -> bool:
    """Whether it is pandas' NA or NaT, asked without pandas."""
    return type(value).__name__ in ("NAType", "NaTType")


def checked_shape(shape: object) -> Shape:
    given = (shape,) if isinstance(shape, int) else shape
    whole = isinstance(given, Sequence) and all(
        isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in given
    )
    if not whole or isinstance(given, str):
        raise ConfigError(
            f"shape must be the sizes of a target's axes, such as (16, 16), not {shape!r}"
        )
    assert isinstance(given, Sequence)
    return tuple(int(size) for size in given)


def forms(outputs: int, shape: Shape) -> list[Shape]:
    """The shapes that a row of outputs may have, the likelier one first."""
    first, last = (outputs, *shape), (*shape, outputs)
    if first == last:
        return [first]
    return [last, first] if len(shape) == 1 else [first, last]


def outputs_first(values: Tensor, outputs: int, shape: Shape) -> Tensor | None:
    """[rows, outputs, *shape], from either form; None where ``values`` has neither."""
    row = tuple(values.shape[1:])
    if row not in forms(outputs, shape):
        return None
    last = (*shape, outputs)
    as_last = row == last and (len(shape) == 1 or row != (outputs, *shape))
    return values.movedim(-1, 1) if as_last else values


def laid_out(where: str, y: Tensor, outputs: int, shape: Shape, counted: bool) -> Tensor:
    """Targets as the loss takes them: classes [rows, *shape], else [rows, outputs, *shape]."""
    if not shape and not counted:
        return y.reshape(len(y), -1)
    row, numbers = tuple(y.shape[1:]), 1 if counted else outputs
    if numbers == 1 and row == shape:
        return y if counted else y.unsqueeze(1)
    found = outputs_first(y, numbers, shape)
    if found is None:
        what = "one number a row" if not shape else f"of shape {shape} a row"
        kind = "class labels" if counted else f"{outputs} numbers"
        raise DataError(f"{where}: {kind} must be {what}, y has shape {tuple(y.shape)}")
    return found[:, 0] if counted else found.contiguous()
