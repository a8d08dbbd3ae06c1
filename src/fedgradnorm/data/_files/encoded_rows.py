"""Rows of files as what a network sees, by what the training rows teach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm.data._arrays import Standardize
from fedgradnorm.data._encoding.column_kinds import CategoryColumn
from fedgradnorm.data._encoding.column_plan import ColumnPlan, recoded
from fedgradnorm.data._encoding.encoding import Encoding, tell_unknown
from fedgradnorm.data._files.read_rows import FileRows
from fedgradnorm.data._scaling import Scaling

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    Part = tuple[FileRows, NDArray[np.int64]]


@dataclass(frozen=True)
class Encoded:
    """The inputs of each split, how they were made, and what is still to be standardised.

    ``scaling`` is that of inputs which no longer are one table: those are scaled here.
    """

    x: dict[str, Any]
    encoding: Encoding | None
    standardize: Standardize
    scaling: Scaling | None = None

    @property
    def flat(self) -> bool:
        """Whether the inputs are one table of numbers, whose columns have names."""
        return self.encoding is None or self.encoding.flat

    def merged(self, of_targets: Scaling | None) -> Scaling | None:
        """What was done to the inputs here, and to the targets elsewhere."""
        if self.scaling is None or of_targets is None:
            return self.scaling or of_targets
        inputs = self.scaling.input_mean, self.scaling.input_std
        return replace(of_targets, input_mean=inputs[0], input_std=inputs[1])


def encoded(
    name: str, plan: ColumnPlan, parts: Mapping[str, Part], standardize: Standardize
) -> Encoded:
    """The inputs of each split; with an encoding where columns are more than plain numbers."""
    if plan.plain or parts["train"][0].inputs is None:  # archives and images have no columns
        x = {part: rows.inputs_at(at) for part, (rows, at) in parts.items()}
        _check_ids(name, x["train"], standardize)
        return Encoded(x, None, standardize)
    train, at = parts["train"]
    assert train.inputs is not None
    encoding = plan.learned(train.inputs, train.inputs_at(at), train.texts, train.bad.source)
    codes = {
        part: _codes(f"client {name!r}, {part} data", encoding, rows, index)
        for part, (rows, index) in parts.items()
    }
    numbers = {part: encoding.encode(own) for part, own in codes.items()}
    if encoding.flat:
        return Encoded({part: own.numpy() for part, own in numbers.items()}, encoding, standardize)
    if isinstance(standardize, Mapping):
        raise ConfigError(
            f"client {name!r}: constants in standardize are for one table of numbers; scale the "
            "data beforehand"
        )
    scaling = _input_scaling(name, encoding, numbers["train"], standardize)
    if scaling is not None:
        numbers = {part: scaling.scale_inputs(own) for part, own in numbers.items()}
    arranged = {part: encoding.arranged(own, codes[part]) for part, own in numbers.items()}
    left: Standardize = False if standardize in (False, "inputs") else "targets"
    return Encoded(arranged, encoding, left, scaling)


def _check_ids(name: str, x: Any, standardize: Standardize) -> None:
    if isinstance(x, np.ndarray) and x.dtype.kind == "i" and standardize in (True, "inputs"):
        raise ConfigError(
            f"client {name!r}: ids are not standardised; use standardize = 'targets', or leave it "
            "out"
        )


def _input_scaling(
    name: str, encoding: Encoding, numbers: Tensor, standardize: Standardize
) -> Scaling | None:
    """Mean and deviation of the training rows' or steps' numbers; ids are left as they are."""
    if standardize not in (True, "inputs") or not any(encoding.scalable):
        return None
    try:
        learned = Scaling.fit(numbers, numbers)
    except DataError as error:
        raise DataError(f"client {name!r}, training data: {error}") from error
    assert learned.input_mean is not None
    assert learned.input_std is not None
    free = torch.tensor(encoding.scalable)
    mean = torch.where(free, learned.input_mean, 0.0)
    return Scaling(mean, torch.where(free, learned.input_std, 1.0))


def _codes(where: str, encoding: Encoding, rows: FileRows, at: NDArray[np.int64]) -> Tensor:
    codes = rows.inputs_at(at).astype(np.float64)
    for i, column in enumerate(encoding.columns):
        if isinstance(column, CategoryColumn) and not column.absent:
            texts = rows.texts.get(column.name, ())
            cells = [texts[int(code)] if code >= 0 else "" for code in codes[:, i]]
            codes[:, i] = recoded(column, codes[:, i], texts)
            tell_unknown(column, cells, codes[:, i], where)
    return torch.from_numpy(codes)
