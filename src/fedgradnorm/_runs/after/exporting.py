"""One client of a run as one program: raw inputs in, outputs in the targets' units out.

Whoever runs it needs neither this library nor the classes that the network is made of.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm._client import Encoder, Scaler
from fedgradnorm._errors import ConfigError, FedGradNormError, ModelError, choose
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.after.program_formats import FORMATS, Format
from fedgradnorm._runs.prediction_inputs import raw_inputs
from fedgradnorm._runs.run import Run, TrainedClient
from fedgradnorm._runs.writing import writing
from fedgradnorm.models._dividing import put_parts
from fedgradnorm.models._fitting import as_input
from fedgradnorm.models._input_rows import call
from fedgradnorm.models._stem import in_front
from fedgradnorm.tasks._answers import told

ROWS = 5
"""Rows that a program is tried on, where none are given."""


class Deployed(nn.Module):
    """Encoding, scaling, network with the client's statistics, and head, one after the other."""

    def __init__(self, client: TrainedClient, network: nn.Module) -> None:
        super().__init__()
        self.network, self.head = copy.deepcopy(network), copy.deepcopy(client.head)
        self.stem = copy.deepcopy(client.stem)
        self.scaling: Scaler | None = client.scaling
        self.encoding: Encoder | None = client.encoding
        self.client = client
        put_parts(self.network, client.buffers)
        self.requires_grad_(False).eval()

    def forward(self, x: Tensor) -> Tensor:
        """What ``run.predict(..., outputs=True)`` gives."""
        raw = x if self.encoding is None else self.encoding.encode(x)
        scaled = raw if self.scaling is None else self.scaling.scale_inputs(raw)
        values = as_input(scaled, self.network, x.device, self.stem)
        output: Tensor = self.head(call(in_front(self.stem, self.network), values))
        return told(self.client, output)


def export(run: Run, name: str, path: str | Path, x: Any = None) -> Path:
    """Write the program of one client; nothing is written unless it answers as the run does."""
    choose(name, run.clients, "client")
    target = _target(name, path)
    if isinstance(run.about.get("clients", {}).get(name, {}).get("inputs"), dict):
        raise ConfigError(
            f"client {name!r} cannot be exported: a program takes one tensor, its rows are named "
            "inputs or sequences; use run.predict, or torch.export with run.networks and run.heads"
        )
    rows = _made_up(run, name) if x is None else _given(run, name, x)
    form = FORMATS[target.suffix]
    deployed = Deployed(run.clients[name], run.network_of(name))
    try:
        program = form.written(deployed, rows, _columns(run.clients[name]))
    except Exception as error:  # whatever a network does that cannot be written down
        raise _impossible(name, error) from error
    _check(run, name, form, program, rows)
    with writing(target, "choose another file"):
        checkpoint.write_atomically(target, program)
    return target


def _target(name: str, path: str | Path) -> Path:
    """Where the program goes; its ending says in which format."""
    target = Path(path)
    why = "it must end with .pt2 or .onnx" if target.suffix not in FORMATS else ""
    why = f"there is no folder {target.parent}" if not target.parent.is_dir() else why
    why = "it is a folder" if target.is_dir() else why
    if why:
        raise ConfigError(f"client {name!r} cannot be exported to {target}: {why}")
    FORMATS[target.suffix].check()
    return target


def _columns(client: TrainedClient) -> str:
    """What the columns of the program's input are, as JSON."""
    if client.encoding is not None:
        return json.dumps(client.encoding.plain(), ensure_ascii=False)
    return json.dumps([{"kind": "number", "name": name} for name in client.columns or ()])


def _given(run: Run, name: str, x: Any) -> Tensor:
    """Rows to try the program on; at least two, since one row would fix the number of rows."""
    where = f"client {name!r}"
    rows = raw_inputs(x, run.clients[name], where)
    run.predict(name, rows)  # which says what is wrong with them
    return rows if len(rows) > 1 else torch.cat([rows, rows])


def _made_up(run: Run, name: str) -> Tensor:
    """Rows like those of training, as far as a run knows them.

    Scaled inputs are float64: in float32 a time stamp would lose its spread before it is scaled.
    """
    row = run.about.get("clients", {}).get(name, {}).get("inputs")
    if row is None:
        raise ConfigError(f"client {name!r}: the run does not know its rows; give some as x")
    network, scaling = run.network_of(name), run.clients[name].scaling
    if run.clients[name].encoding is not None:
        return _made_up_codes(run.clients[name].encoding)
    if any(isinstance(module, nn.Embedding) for module in network.modules()):
        return torch.zeros(ROWS, *row, dtype=torch.int64)
    noise = torch.randn(ROWS, *row, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean, spread = getattr(scaling, "input_mean", None), getattr(scaling, "input_std", None)
    if mean is not None and spread is not None:
        return torch.addcmul(mean, spread, noise)
    return noise.to(next(network.parameters()).dtype)


def _made_up_codes(encoding: Encoder) -> Tensor:
    """Rows of codes: numbers, categories and times that are known, and no gaps."""
    turns = torch.arange(ROWS, dtype=torch.float64)
    limits = [len(table.get("categories", ())) for table in encoding.plain()]
    return torch.stack([turns % most if most else turns for most in limits], dim=1)


def _check(run: Run, name: str, form: Format, program: bytes, rows: Tensor) -> None:
    """A ModelError unless the program, read back, answers as the run does, for one row too."""
    try:
        answer = form.read(program)
        for part in (rows, rows[:1]):
            _compare(name, answer(part), run.predict(name, part, outputs=True))
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
        f"down as a program: {reason}"
    )
