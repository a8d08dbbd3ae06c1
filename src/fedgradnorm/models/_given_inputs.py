"""Arrays, tables and lists that are given, as tensors; a DataError says whose and what is wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedgradnorm._errors import DataError
from fedgradnorm.models._input_rows import Composite, Fields, Inputs, Sequences
from fedgradnorm.tasks._missing import numbers_with_gaps

if TYPE_CHECKING:
    from numpy.typing import NDArray


def as_inputs(where: str, x: Any, *, empty: bool = False) -> Inputs:
    """``x`` as inputs on the CPU: a tensor, named ones, or sequences; else a DataError."""
    if isinstance(x, Composite):  # checked when it was made
        return x
    if not isinstance(x, Mapping):
        tensor = as_tensor(where, x, "x")
        if not empty and (tensor.ndim == 0 or len(tensor) == 0):
            raise DataError(f"{where}: x is empty; a client needs at least one row")
        return tensor
    if not x or not all(isinstance(name, str) and name.isidentifier() for name in x):
        raise DataError(
            f"{where}: the names of x must be those of keyword arguments, not {list(x)}"
        )
    fields = {
        name: part if isinstance(part, Sequences) else _leaf(where, part, name)
        for name, part in x.items()
    }
    sizes = {name: _rows_in(part) for name, part in fields.items()}
    if len(set(sizes.values())) > 1 or 0 in sizes.values():
        raise DataError(f"{where}: the parts of x must have one number of rows each: {sizes}")
    return Fields(fields)


def _rows_in(part: Inputs) -> int:
    return 0 if isinstance(part, Tensor) and not part.ndim else len(part)


def _leaf(where: str, values: Any, name: str) -> Tensor:
    """A named part of the inputs; true and false stay what they are, as masks want it."""
    kind = getattr(values, "dtype", None)
    if kind == torch.bool or kind == np.bool_:
        return torch.as_tensor(values).detach().cpu()
    return as_tensor(where, values, f"x[{name!r}]" if name != "x" else "x")


def form_words(form: list[int] | dict[str, Any]) -> str:
    """The form of a row, as messages show it."""
    return str(tuple(form)) if isinstance(form, list) else str(form)


def as_tensor(where: str, values: Any, name: str) -> Tensor:
    """``values`` as a tensor on the CPU, or a DataError unless they are numbers of one shape."""
    if type(values) is Tensor and values.device.type == "cpu" and not values.requires_grad:
        tensor = values  # itself, so that clients given one test set hold one
    elif isinstance(values, Tensor):
        tensor = values.detach().cpu()
    else:
        tensor = torch.from_numpy(_array(where, values, name))
    if tensor.is_complex():
        raise DataError(
            f"{where}: {name} holds complex numbers; give real and imaginary part as two columns"
        )
    if tensor.dtype in (torch.uint8, torch.bool, torch.float16):
        tensor = tensor.to(torch.float32)
    return tensor if tensor.is_floating_point() else tensor.to(torch.int64)


def _array(where: str, values: Any, name: str) -> NDArray[Any]:
    """A copy of ``values`` that torch can take: native byte order, at most 64 bits a number."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        way = "; for rows of different lengths give fgn.sequences(x)" if name == "x" else ""
        raise DataError(f"{where}: the rows of {name} differ in shape{way}") from error
    if array.dtype.kind == "O" and name == "y":
        array = numbers_with_gaps(array)
    if array.dtype.kind not in "fiubc":
        raise DataError(f"{where}: {name} must hold numbers, not {array.dtype}")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    return array.astype(array.dtype.newbyteorder("="), order="C")


def check_finite(where: str, values: Tensor, name: str) -> None:
    # A finite sum has finite parts. Asking so needs no table as large as the data, which costs
    # memory where a thousand clients hold one test set and each is checked.
    if not values.is_floating_point() or math.isfinite(values.sum()):
        return
    bad = ~torch.isfinite(values)
    if bad.any():
        place = tuple(bad.nonzero()[0].tolist())
        raise DataError(
            f"{where}: {name}{list(place)} is {values[place].item()}; "
            "remove or fill the rows that are not finite"
        )
