"""Rows that a program is tried on: given ones, or made up as far as a run knows its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm._errors import ConfigError
from fedgradnorm._runs.prediction_inputs import given_inputs, raw_inputs
from fedgradnorm._runs.run import Run
from fedgradnorm.models._input_rows import Fields, Inputs, Sequences

ROWS = 5


@dataclass(frozen=True)
class Trial:
    """The program's inputs, and the same rows as ``predict`` is asked for them."""

    inputs: Inputs
    asked: Any

    def first(self) -> Trial:
        """One row, a step shorter where it has several: their number must not be fixed."""
        one = _shorter(self.inputs[:1])
        if self.asked is self.inputs:
            return Trial(one, one)
        steps = len(one.rows[0]) if isinstance(one, Sequences) else 1
        return Trial(one, self.asked[:steps])


def _shorter(x: Inputs) -> Inputs:
    if isinstance(x, Fields):
        return Fields({name: _shorter(part) for name, part in x.fields.items()})
    return (
        Sequences([row[:-1] if len(row) > 1 else row for row in x.rows])
        if isinstance(x, Sequences)
        else x
    )


def given(run: Run, name: str, x: Any) -> Trial:
    """Given rows; at least two, since one row would fix the number of rows."""
    client, where = run.clients[name], f"client {name!r}"
    run.predict(name, x)  # which says what is wrong with them
    if client.encoding is not None:
        return _coded(client.encoding, raw_inputs(x, client, where))
    row = run.manifest.get("clients", {}).get(name, {}).get("inputs")
    rows = given_inputs(where, x, client, row)
    rows = rows if len(rows) > 1 else rows[torch.tensor([0, 0])]
    return Trial(rows, rows)


def made_up(run: Run, name: str) -> Trial:
    """Rows like those of training, as far as a run knows them.

    Scaled inputs are float64: in float32 a time stamp would lose its spread before it is scaled.
    """
    row = run.manifest.get("clients", {}).get(name, {}).get("inputs")
    network, scaling = run.network_of(name), run.clients[name].scaling
    if run.clients[name].encoding is not None:
        encoding = run.clients[name].encoding
        return _coded(encoding, _made_up_codes(encoding.plain()))
    if row is None or isinstance(row, dict):
        why = "the run does not know its rows"
        why = why if row is None else "its rows are named inputs or sequences"
        raise ConfigError(f"client {name!r}: {why}; give some as x")
    front = run.clients[name].stem or network
    rows = torch.randn(ROWS, *row, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean, spread = getattr(scaling, "input_mean", None), getattr(scaling, "input_std", None)
    if any(isinstance(module, nn.Embedding) for module in front.modules()):
        rows = torch.zeros(ROWS, *row, dtype=torch.int64)
    elif mean is not None and spread is not None:
        rows = torch.addcmul(mean, spread, rows)
    else:
        rows = rows.to(next(network.parameters()).dtype)
    return Trial(rows, rows)


def _coded(encoding: Any, codes: Tensor) -> Trial:
    """Rows of codes; the steps of a sequence are one row of the program."""
    if not encoding.has_steps:
        rows = codes if len(codes) > 1 else torch.cat([codes, codes])
        return Trial(rows, rows)
    inputs = encoding.step_codes(codes)
    if len(inputs) == 1:
        inputs = inputs[torch.tensor([0, 0])]
    return Trial(inputs, encoding.long(inputs.rows))


def _made_up_codes(columns: list[dict[str, Any]]) -> Tensor:
    """Rows of codes: numbers, categories and times that are known, and no gaps."""
    turns = torch.arange(2 * ROWS, dtype=torch.float64)
    return torch.stack([_made_up_code(column, turns) for column in columns], dim=1)


def _made_up_code(column: dict[str, Any], turns: Tensor) -> Tensor:
    if column["kind"] == "id":
        return torch.zeros_like(turns)
    if column["kind"] == "step" and column["role"] == "sequence":
        return torch.floor(torch.sqrt(turns))  # of different lengths
    most = len(column.get("categories", ()))
    return turns % most if most else turns
