"""One client of a run as one program: raw inputs in, outputs in the targets' units out.

Whoever runs it needs neither this library nor the classes that the network is made of.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm._client import Scaler
from fedgradnorm._errors import ConfigError, FedGradNormError, ModelError, choose
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.after.program_formats import FORMATS, Format
from fedgradnorm._runs.files import writing
from fedgradnorm._runs.prediction_inputs import given_inputs, raw_inputs
from fedgradnorm._runs.run import Run
from fedgradnorm._runs.trained import TrainedClient
from fedgradnorm.models._dividing import put_parts
from fedgradnorm.models._fitting import as_input
from fedgradnorm.models._input_rows import Fields, Inputs, Padded, Sequences, call
from fedgradnorm.models._stem import in_front
from fedgradnorm.tasks._answers import told


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
        arranged = scaled if self.encoding is None else self.encoding.fields(scaled)
        return self._answer(as_input(arranged, self.network, x.device, self.stem))

    def _answer(self, values: Inputs) -> Tensor:
        output: Tensor = self.head(call(in_front(self.stem, self.network), values))
        return told(self.client, output)


class DeployedFields(Deployed):
    """The same for named inputs, which are the program's keyword arguments."""

    def __init__(self, client: TrainedClient, network: nn.Module, names: Iterable[str]) -> None:
        super().__init__(client, network)

        def forward(**named: Tensor) -> Tensor:
            return self._answer(as_input(Fields(named), self.network, "cpu", self.stem))

        # torch.export reads the names of a program's inputs from its signature.
        every = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
        vars(forward)["__signature__"] = inspect.Signature(every)
        vars(self)["forward"] = forward


class DeployedSteps(Deployed):
    """The same for sequences: ``x`` padded to one length, and ``mask`` for what of it is real."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """What ``run.predict(..., outputs=True)`` gives."""
        assert mask is not None
        if self.encoding is None:
            return self._answer(as_input(Padded({"": x}, mask), self.network, "cpu", self.stem))
        plain = self.encoding.without_steps()
        flat = plain.encode(x.flatten(0, 1))
        scaled = flat if self.scaling is None else self.scaling.scale_inputs(flat)
        steps = scaled.reshape(*x.shape[:2], scaled.shape[-1])
        steps = torch.where(mask[..., None], steps, 0.0)
        parts = {str(name or ""): part for name, part in self.encoding.divided(steps).items()}
        return self._answer(as_input(Padded(parts, mask), self.network, "cpu", self.stem))


def export(run: Run, name: str, path: str | Path, x: Any = None) -> Path:
    """Write the program of one client; nothing is written unless it answers as the run does."""
    choose(name, run.clients, "client")
    target = _target(name, path)
    trial = made_up(run, name) if x is None else given(run, name, x)
    form = FORMATS[target.suffix]
    deployed = _deployed(trial.inputs, run.clients[name], run.network_of(name))
    try:
        program = form.written(deployed, trial.inputs, _columns(run.clients[name]))
    except Exception as error:  # whatever a network does that cannot be written down
        raise _impossible(name, error) from error
    # From here on arrays are in the run's own order of columns.
    ordered = replace(run.clients[name], given_columns=None)
    _check(replace(run, clients={name: ordered}), name, form, program, trial)
    with writing(target, "choose another file"):
        checkpoint.write_atomically(target, program)
    return target


def _deployed(rows: Inputs, client: TrainedClient, network: nn.Module) -> Deployed:
    """The client as a module that takes rows of this form."""
    if isinstance(rows, Fields):
        return DeployedFields(client, network, rows.arguments()[1])
    kind = DeployedSteps if isinstance(rows, Sequences) else Deployed
    return kind(client, network)


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
        return json.dumps(client.encoding.without_steps().plain(), ensure_ascii=False)
    return json.dumps([{"kind": "number", "name": name} for name in client.columns or ()])


def _check(run: Run, name: str, form: Format, program: bytes, trial: Trial) -> None:
    """A ModelError unless the program, read back, answers as the run does, for one row too."""
    try:
        answer = form.read(program)
        for part in (trial, trial.first()):
            expected = run.predict(name, part.asked, outputs=True)
            _compare(name, answer(part.inputs), torch.as_tensor(expected))
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
    first = error.__cause__ or error  # torch.onnx wraps what torch.export says
    reason = " ".join(str(first).split())[:200] or type(first).__name__
    return ModelError(
        f"client {name!r} cannot be exported: its scaling, network or head is not to be written "
        f"down as a program: {reason}; use run.predict"
    )


ROWS = 5
"""Rows that are made up to try a program on."""


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
