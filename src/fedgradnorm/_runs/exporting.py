"""One client of a run as one program: raw inputs in, outputs in the targets' units out.

It runs with PyTorch alone, without this library or the network's classes. ``torch.onnx.export``
turns it into an ONNX model.
"""

from __future__ import annotations

import copy
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm._client import Scaler
from fedgradnorm._errors import ConfigError, FedGradNormError, ModelError, choose
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.files import writing
from fedgradnorm._runs.predicting import given_inputs, in_target_units, raw_inputs
from fedgradnorm._runs.run import Run
from fedgradnorm._runs.trained import TrainedClient
from fedgradnorm.models._dividing import put_parts
from fedgradnorm.models._fitting import as_input, with_stem
from fedgradnorm.models._input_rows import call

ELSEWHERE = "choose another file"


class Deployed(nn.Module):
    """Encoding, scaling, network with the client's statistics, and head, one after the other."""

    def __init__(self, client: TrainedClient, network: nn.Module) -> None:
        super().__init__()
        self.network, self.head = copy.deepcopy(network), copy.deepcopy(client.head)
        self.stem = copy.deepcopy(client.stem)
        self.scaling: Scaler | None = client.scaling
        self.encoding: Any = client.encoding
        self.client = client
        put_parts(self.network, client.buffers)
        self.requires_grad_(False).eval()

    def forward(self, x: Tensor) -> Tensor:
        """What ``run.predict(..., outputs=True)`` gives."""
        raw = x if self.encoding is None else self.encoding.encode(x)
        scaled = raw if self.scaling is None else self.scaling.scale_inputs(raw)
        values = as_input(scaled, self.network, x.device, self.stem)
        output: Tensor = self.head(call(with_stem(self.stem, self.network), values))
        return in_target_units(self.client, output)


def export(run: Run, name: str, path: str | Path, x: Any = None) -> Path:
    """Write the program of one client; nothing is written unless it answers as the run does."""
    choose(name, run.clients, "client")
    target = _target(name, path)
    rows = _made_up(run, name) if x is None else _given(run, name, x)
    client = run.clients[name]
    deployed = Deployed(client, run.network_of(name))
    columns = [{"kind": "number", "name": column} for column in client.columns or ()]
    columns = columns if client.encoding is None else client.encoding.plain()
    try:
        program = _written(deployed, rows, json.dumps(columns, ensure_ascii=False))
    except Exception as error:  # whatever a network does that cannot be written down
        raise _impossible(name, error) from error
    # From here on arrays are in the run's own order of columns.
    ordered = replace(client, given_columns=None)
    _check(replace(run, clients={name: ordered}), name, program, rows)
    with writing(target, ELSEWHERE):
        checkpoint.write_atomically(target, program)
    return target


def _target(name: str, path: str | Path) -> Path:
    target = Path(path)
    why = "it must end with .pt2, which torch.onnx.export turns into an ONNX model"
    why = "" if target.suffix == ".pt2" else why
    with writing(target, ELSEWHERE):
        why = f"there is no folder {target.parent}" if not target.parent.is_dir() else why
        why = "it is a folder" if target.is_dir() else why
    if why:
        raise ConfigError(f"client {name!r} cannot be exported to {target}: {why}")
    return target


def _check(run: Run, name: str, program: bytes, rows: Tensor) -> None:
    """A ModelError unless the program, read back, answers as the run does, for one row too."""
    try:
        answer = torch.export.load(io.BytesIO(program)).module()
        for part in (rows, rows[:1]):
            expected = run.predict(name, part, outputs=True)
            _compare(name, answer(part), torch.as_tensor(expected))
    except FedGradNormError:
        raise
    except Exception as error:  # a program that cannot be run
        raise _impossible(name, error) from error


def _compare(name: str, found: Tensor, expected: Tensor) -> None:
    same_form = found.shape == expected.shape and found.dtype == expected.dtype
    away = (found - expected).abs().max().item() if same_form else float("inf")
    largest = expected.abs().max().item()
    if not away <= 100 * torch.finfo(expected.dtype).eps * max(largest, 1.0):
        raise ModelError(
            f"client {name!r} cannot be exported: for {len(expected)} rows its program is "
            f"{away:.3g} away from run.predict, whose largest output is {largest:.3g}; a layer "
            "does something else when it is exported"
        )


def _impossible(name: str, error: Exception) -> ModelError:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return ModelError(
        f"client {name!r} cannot be exported: its scaling, network or head is not to be written "
        f"down as a program: {reason}; use run.predict"
    )


ROWS = 5
"""Rows that are made up to try a program on."""


def _given(run: Run, name: str, x: Any) -> Tensor:
    """Given rows; at least two, since one row would fix the number of rows."""
    client, where = run.clients[name], f"client {name!r}"
    run.predict(name, x)  # which says what is wrong with them
    row = _row_form(run, name)
    coded = client.encoding is not None
    rows = raw_inputs(x, client, where) if coded else given_inputs(where, x, client, row)
    assert isinstance(rows, Tensor)
    return rows if len(rows) > 1 else torch.cat([rows, rows])


def _made_up(run: Run, name: str) -> Tensor:
    """Rows like those of training, as far as a run knows them.

    Scaled inputs are float64: in float32 a time stamp would lose its spread before it is scaled.
    """
    row, encoding = _row_form(run, name), run.clients[name].encoding
    if encoding is not None:  # numbers, categories and times that are known, and no gaps
        turns = torch.arange(2 * ROWS, dtype=torch.float64)
        most = [len(column.get("categories", ())) for column in encoding.plain()]
        return torch.stack([turns % count if count else turns for count in most], dim=1)
    if row is None:
        raise ConfigError(f"client {name!r}: the run does not know its rows; give some as x")
    network, scaling = run.network_of(name), run.clients[name].scaling
    front = run.clients[name].stem or network
    rows = torch.randn(ROWS, *row, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean, spread = getattr(scaling, "input_mean", None), getattr(scaling, "input_std", None)
    if any(isinstance(module, nn.Embedding) for module in front.modules()):
        return torch.zeros(ROWS, *row, dtype=torch.int64)
    if mean is not None and spread is not None:
        return torch.addcmul(mean, spread, rows)
    return rows.to(next(network.parameters()).dtype)


def _row_form(run: Run, name: str) -> list[int] | None:
    """The shape of a row, where it is known; a ConfigError unless a row is one tensor."""
    row = run.manifest["clients"][name].get("inputs")
    if isinstance(row, dict):
        raise ConfigError(
            f"client {name!r} cannot be exported: its rows are named inputs or sequences, and a "
            "program takes one table of numbers; use run.predict, or run.networks and run.heads"
        )
    shape: list[int] | None = row if isinstance(row, list) else None
    return shape


def _written(module: nn.Module, rows: Tensor, columns: str) -> bytes:
    """A program of torch.export for any number of rows; ``columns`` is among its extra files."""
    file = io.BytesIO()
    any_rows = {"x": {0: torch.export.Dim("rows", min=1)}}
    program = torch.export.export(module, (rows,), dynamic_shapes=any_rows, strict=False)
    torch.export.save(program, file, extra_files={"columns.json": columns})
    return file.getvalue()
