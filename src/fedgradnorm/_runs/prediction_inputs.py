"""Inputs for predictions: by column name, in the training rows' form, and finite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm._client import Scaler, as_tensor
from fedgradnorm._columns import picked
from fedgradnorm._errors import DataError
from fedgradnorm.models._fitting import as_input


def network_inputs(
    client: str,
    x: Any,
    network: nn.Module,
    columns: Sequence[str] | None,
    scaling: Scaler | None,
    row: Sequence[int] | None,
) -> Tensor:
    """Raw ``x`` as the network takes it, or a DataError that names what is wrong with it.

    ``row`` is the shape of a training row; other lengths are the network's business, other numbers
    of axes are not.
    """
    where = f"client {client!r}"
    raw = as_tensor(where, picked(x, columns, where), "x")
    if row is not None and raw.ndim != len(row) + 1:
        raise DataError(
            f"{where}: x has shape {tuple(raw.shape)}, a training row {tuple(row)}; give one row "
            "per sample (x[None] for a single one)"
        )
    try:
        scaled = raw if scaling is None else scaling.scale_inputs(raw)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    values = as_input(scaled, network, "cpu")
    _check_finite(where, raw, values, columns)
    return values


def refused(client: str, x: Tensor, error: Exception) -> DataError:
    """The error for inputs that the network itself cannot take."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return DataError(
        f"client {client!r}: its network cannot take rows of shape {tuple(x.shape[1:])}: {reason}; "
        "give rows like those it was trained on"
    )


def _check_finite(where: str, raw: Tensor, values: Tensor, columns: Sequence[str] | None) -> None:
    bad = ~torch.isfinite(values)
    if not bad.any():
        return
    row, *rest = bad.nonzero()[0].tolist()
    value = raw[(row, *rest)].item()
    column = f", column {columns[rest[0]]!r}" if columns else f", column {rest}" if rest else ""
    why = f", too large for {values.dtype}" if abs(value) < float("inf") else ""
    raise DataError(
        f"{where}: row {row} of x{column} is {value}{why}; remove or fill the rows that are not "
        "finite before predicting"
    )
