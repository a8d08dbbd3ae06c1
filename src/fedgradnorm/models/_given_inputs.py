"""Arrays, tables and lists that are given, as tensors; a DataError says whose and what is wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgradnorm._checks import shown
from fedgradnorm._errors import DataError
from fedgradnorm.models._input_rows import Composite, Fields, Inputs, Sequences, leaves
from fedgradnorm.tasks._targets import is_na, numbers_with_gaps


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
    sizes = {
        name: 0 if isinstance(part, Tensor) and not part.ndim else len(part)
        for name, part in fields.items()
    }
    if len(set(sizes.values())) > 1 or 0 in sizes.values():
        raise DataError(f"{where}: the parts of x must have one number of rows each: {sizes}")
    return Fields(fields)


def _leaf(where: str, values: Any, name: str) -> Tensor:
    """A named part of the inputs; true and false stay what they are, as masks want it."""
    kind = getattr(values, "dtype", None)
    if kind == torch.bool or kind == np.bool_:
        return torch.as_tensor(values).detach().cpu()
    return as_tensor(where, values, f"x[{name!r}]" if name != "x" else "x")


def form_words(form: list[int] | dict[str, Any]) -> str:
    return str(tuple(form)) if isinstance(form, list) else str(form)


def as_tensor(where: str, values: Any, name: str) -> Tensor:
    """``values`` as a tensor on the CPU, or a DataError unless they are numbers of one shape."""
    if isinstance(values, Tensor) and values.layout != torch.strided:
        raise DataError(f"{where}: {name} is a sparse tensor; give {name}.to_dense()")
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
    if isinstance(values, torch.utils.data.Dataset) and not hasattr(values, "__array__"):
        # NumPy would ask for items until the memory is full: many a Dataset has no last one.
        raise DataError(
            f"{where}: {name} is a Dataset; give one Dataset of pairs (x, y) as the whole split, "
            "in which x may be a dict of named inputs"
        )
    try:
        array = np.asarray(values)
    except ValueError as error:
        way = "; for rows of different lengths give fgn.sequences(x)" if name == "x" else ""
        raise DataError(f"{where}: the rows of {name} differ in shape{way}") from error
    if array.dtype.kind == "O" and (name == "y" or _all_numbers(array)):
        array = numbers_with_gaps(array)
    if array.dtype.kind not in "fiubc":
        raise DataError(
            f"{where}: {name} must hold numbers, not {array.dtype}{_way_out(values, array)}"
        )
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise DataError(
            f"{where}: {name} holds {array.max()}, more than a 64-bit integer can hold "
            f"({np.iinfo(np.int64).max}); give floating-point numbers"
        )
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    return array.astype(array.dtype.newbyteorder("="), order="C")


def _all_numbers(array: NDArray[Any]) -> bool:
    """Whether a table of objects holds numbers, truth values and gaps, as mixed columns give."""
    kinds = (bool, int, float, np.bool_, np.integer, np.floating)
    return array.ndim > 1 and all(
        cell is None or is_na(cell) or isinstance(cell, kinds) for cell in array.flat
    )


def _way_out(values: Any, array: NDArray[Any]) -> str:
    """What to do with values that are not numbers, where that is known."""
    if hasattr(values, "toarray"):
        return "; it is a sparse matrix: give x.toarray()"
    if isinstance(values, torch.utils.data.DataLoader):
        return "; give loader.dataset, or tensors"
    texts = (place for place, cell in np.ndenumerate(array) if isinstance(cell, str))
    place = next(texts, None) if array.dtype.kind in "OUS" else None
    if place is not None:
        cell = f"row {place[0]}, column {place[1]}" if len(place) == 2 else f"place {list(place)}"
        return f"; {cell} is {shown(str(array[place]))}: {_TABLE}"
    if array.dtype.kind == "M" or any(hasattr(cell, "isoformat") for cell in array.flat[:100]):
        return f"; there are dates in it: {_TABLE}"
    return ""


_TABLE = "fgn.data.Table takes a DataFrame with columns of text (categories) and dates"


def check_fits(
    where: str,
    x: Inputs,
    dtype: torch.dtype,
    *,
    name: str = "x",
    columns: Sequence[str] | None = None,
    ids: bool = False,
) -> None:
    """A DataError where a number is too large for ``dtype``, or a whole number would be rounded.

    Whole numbers are looked at where they become floating-point ones: in a single tensor, unless
    they are ``ids``.
    """
    for key, leaf in leaves(x).items():
        whole = not leaf.is_floating_point()
        if leaf.dtype == dtype or not leaf.numel() or (whole and (ids or key)):
            continue
        limit = 2 / torch.finfo(dtype).eps if whole else torch.finfo(dtype).max
        low, high = (end.item() for end in leaf.aminmax())  # in Python no number is rounded
        if -limit <= low and high <= limit:
            continue
        bad = leaf.to(dtype).to(leaf.dtype) != leaf if whole else leaf.abs() > limit
        if bad.any():
            place = bad.nonzero()[0].tolist()
            cell, kind = leaf[tuple(place)], str(dtype).removeprefix("torch.")
            column = f" (column {columns[place[1]]!r})" if columns and len(place) == 2 else ""
            if whole:
                why = f"which {kind} would round to {int(cell.to(dtype).item())}"
                way = (
                    "rescale the column (standardize=True), treat it as categories or ids, or give "
                    "floating-point numbers if rounding is fine"
                )
            else:
                why = f"more than {kind} can hold ({limit:.3g})"
                way = "rescale it (standardize=True), remove it, or train in float64"
                way = f"{way} (network.double())"
            called = f"{name}[{key!r}]" if key else name
            raise DataError(f"{where}: {called}{place}{column} is {cell.item()}, {why}; {way}")


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
