"""One client of a run as one program: raw inputs in, outputs in the targets' units out.

Whoever runs it needs neither this library nor the classes that the network is made of.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm._client import Scaler
from fedgradnorm._errors import ConfigError, FedGradNormError, ModelError, choose
from fedgradnorm._runs import checkpoint
from fedgradnorm._runs.after.program_formats import FORMATS, Format
from fedgradnorm._runs.after.trial_rows import Trial, given, made_up
from fedgradnorm._runs.run import Run, TrainedClient
from fedgradnorm._runs.writing import writing
from fedgradnorm.models._dividing import put_parts
from fedgradnorm.models._fitting import as_input
from fedgradnorm.models._input_rows import Fields, Inputs, Padded, Sequences, call
from fedgradnorm.models._stem import in_front
from fedgradnorm.tasks._answers import in_target_units


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
        return in_target_units(self.client, output)


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
