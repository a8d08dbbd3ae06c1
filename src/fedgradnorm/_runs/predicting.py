"""Predictions: inputs by column name, checked; answers as classes, names, probabilities."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedgradnorm._checks import one_of
from fedgradnorm._client import Scaler
from fedgradnorm._columns import is_frame, picked
from fedgradnorm._errors import ConfigError, DataError
from fedgradnorm._round.evaluation import rows_at_once
from fedgradnorm._runs.trained import TrainedClient
from fedgradnorm.models._fitting import as_input, takes_ids
from fedgradnorm.models._given_inputs import as_inputs, as_tensor, check_fits, form_words
from fedgradnorm.models._input_rows import Fields, Inputs, Sequences, leaves, row_form, sequences
from fedgradnorm.models._streamed import Streamed, as_feed, pieces
from fedgradnorm.tasks._kind import Kind
from fedgradnorm.tasks._targets import Shape, outputs_first, positions


def network_inputs(
    client: str,
    x: Any,
    network: nn.Module,
    one: TrainedClient,
    row: Sequence[int] | Mapping[str, Any] | None,
) -> Inputs:
    """Raw ``x`` as the network takes it, or a DataError that names what is wrong with it.

    ``row`` is the form of a training row; other lengths are the network's business, other numbers
    of axes and other names are not.
    """
    where = f"client {client!r}"
    check_order(where, x, one)
    if one.encoding is not None:
        numbers: Tensor = one.encoding.encode(raw_inputs(x, one, where))
        coded = _scaled(where, numbers, one.scaling)
        single = coded.to(next(network.parameters()).dtype)
        _check_finite(where, numbers, single, one.encoding.features)
        return as_input(coded, network, "cpu", one.stem)
    given = given_inputs(where, x, one, row)
    _check_form(where, given, row)
    scaled = _scaled(where, given, one.scaling) if isinstance(given, Tensor) else given
    values = as_input(scaled, network, "cpu", one.stem)
    if isinstance(scaled, Tensor) and not scaled.is_floating_point():
        ids, dtype = takes_ids(network, one.stem), next(network.parameters()).dtype
        check_fits(where, scaled, dtype, columns=one.columns, ids=ids)
    both = zip(leaves(given).items(), leaves(values).values(), strict=True)
    for (name, raw), leaf in both:
        _check_finite(f"{where}, {name}" if name else where, raw, leaf, one.columns)
    return values


def check_order(where: str, x: Any, one: TrainedClient) -> None:
    """A DataError for plain arrays where the client had its columns in another order than the run.

    The array may have either order, and nothing in it tells.
    """
    if one.given_columns is not None and not is_frame(x):
        raise DataError(
            f"{where}: its columns were given in the order {', '.join(one.given_columns)} and the "
            f"run has {', '.join(one.columns or ())}, so an array without names may mean either; "
            "give a DataFrame with these columns, such as pd.DataFrame(x, columns=[...])"
        )


def given_inputs(
    where: str, x: Any, one: TrainedClient, row: Sequence[int] | Mapping[str, Any] | None
) -> Inputs:
    """``x`` as numbers that are not scaled yet; lists are sequences where training had some."""
    return as_inputs(where, _in_form(where, picked(x, one.columns, where), row), empty=True)


def in_pieces(client: str, x: Any) -> Iterator[Inputs] | None:
    """Raw inputs that are read batch by batch, such as a Dataset; None if they are in memory."""
    pairs = False
    if isinstance(x, Dataset):
        first = x[0]
        pairs = isinstance(first, tuple | list) and len(first) == 2
    feed = as_feed(x, f"client {client!r}", pairs=pairs)
    if feed is None:
        return None
    rows = Streamed(feed)
    return (part for part, _ in pieces(rows, torch.zeros(len(rows)), rows_at_once(rows)))


def raw_inputs(x: Any, one: TrainedClient, where: str) -> Tensor:
    """``x`` as a tensor of numbers: its columns by name, and one number for each cell."""
    if one.encoding is not None:
        codes: Tensor = one.encoding.codes(x, where)
        return codes
    return as_tensor(where, picked(x, one.columns, where), "x")


def holds_tensors(x: Any) -> bool:
    """Whether inputs were given as tensors, so that answers are."""
    if isinstance(x, Mapping):
        return all(map(holds_tensors, x.values()))
    if isinstance(x, Fields):
        return holds_tensors(x.fields)
    return isinstance(x, Tensor)


def refused(client: str, x: Inputs, error: Exception) -> DataError:
    """The error for inputs that the network itself cannot take."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return DataError(
        f"client {client!r}: its network cannot take rows of shape {form_words(row_form(x))}: "
        f"{reason}; give rows like those it was trained on"
    )


def _scaled(where: str, raw: Tensor, scaling: Scaler | None) -> Tensor:
    try:
        return raw if scaling is None else scaling.scale_inputs(raw)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def _in_form(where: str, x: Any, row: Any) -> Any:
    """Lists as sequences, where the client was trained on such."""
    step = isinstance(row, Mapping) and set(row) == {"step"} and isinstance(row["step"], list)
    if step and not isinstance(x, Sequences | Mapping):
        try:
            return sequences(x)
        except DataError as error:
            raise DataError(f"{where}: {error}") from error
    if isinstance(row, Mapping) and isinstance(x, Mapping):
        return {name: _in_form(where, part, row.get(name)) for name, part in x.items()}
    return x


def _check_form(where: str, x: Inputs, row: Any) -> None:
    """A DataError unless ``x`` has the axes of training rows, or their names."""
    if row is None:
        return
    form = row_form(x)
    if isinstance(row, Mapping) or isinstance(form, Mapping):
        if not _alike(form, row):
            raise DataError(
                f"{where}: a row of x is {form_words(form)}, a training row "
                f"{form_words(row if isinstance(row, dict) else list(row))}; give rows like those"
            )
        return
    assert isinstance(x, Tensor)
    if x.ndim != len(row) + 1:
        raise DataError(
            f"{where}: x has shape {tuple(x.shape)}, a training row {tuple(row)}; give one row "
            "per sample (x[None] for a single one)"
        )


def _alike(form: Any, row: Any) -> bool:
    """Whether two forms have the same names and numbers of axes."""
    if isinstance(form, Mapping) and isinstance(row, Mapping):
        return set(form) == set(row) and all(_alike(form[key], row[key]) for key in form)
    return isinstance(form, list) and isinstance(row, list) and len(form) == len(row)


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
        several = found.ndim > 1
        rows[i] = tuple(itertools.compress(labels, row)) if several else labels[row]
    return rows
