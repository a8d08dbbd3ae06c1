"""Targets that are not there: NaN is a missing label.

Class numbers with gaps are therefore floating-point numbers; without gaps they are whole ones.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
    nothing = np.array([_is_nothing(value) for value in values.flat]).reshape(values.shape)
    try:
        return np.where(nothing, np.nan, np.where(nothing, 0, values).astype(np.float64))
    except (TypeError, ValueError):
        return values


def _is_nothing(value: object) -> bool:
    return value is None or type(value).__name__ in ("NAType", "NaTType")
