"""Inputs for predictions: by column name, in the training rows' form, and finite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedgradnorm._columns import picked
from fedgradnorm._errors import DataError
from fedgradnorm._task_rows import as_tensor
from fedgradnorm.models._fitting import as_input

if TYPE_CHECKING:
    from fedgradnorm._runs.run import TrainedClient


def network_inputs(
    client: str,
    x: Any,
    network: nn.Module,
    trained: TrainedClient,
    row: Sequence[int] | None,
) -> Tensor:
    """Raw ``x`` as the network takes it, or a DataError that names what is wrong with it.

    ``row`` is the shape of a training row; other lengths are the network's business, other numbers
    of axes are not.
    """
    where = f"client {client!r}"
    raw = raw_inputs(x, trained, where)
    if trained.encoding is not None:
        raw = trained.encoding.encode(raw)
    if row is not None and raw.ndim != len(row) + 1:
        raise DataError(
            f"{where}: x has shape {tuple(raw.shape)}, a training row {tuple(row)}; give one row "
            "per sample (x[None] for a single one)"
        )
    try:
        scaled = raw if trained.scaling is None else trained.scaling.scale_inputs(raw)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    values = as_input(scaled, network, "cpu")
    _check_finite(where, raw, values, trained.columns)
    return values


def raw_inputs(x: Any, trained: TrainedClient, where: str) -> Tensor:
    """``x`` as a tensor of numbers: its columns by name, and one number for each cell."""
    if trained.encoding is not None:
        codes: Tensor = trained.encoding.codes(x, where)
        return codes
    return as_tensor(where, picked(x, trained.columns, where), "x")


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
