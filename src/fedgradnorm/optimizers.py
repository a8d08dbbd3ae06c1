"""Optimisers by the names of torch.optim's classes."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from fedgradnorm.errors import ConfigError, choose
from fedgradnorm.fusing import Fused

OptimizerSpec = str | Mapping[str, Any]
"""A torch.optim class by name ("adam"), or a table {"name": "sgd", "lr": 0.1, "momentum": 0.9}."""

_UNUSABLE = (torch.optim.Optimizer, torch.optim.LBFGS, torch.optim.SparseAdam)
"""The base class, one that needs a closure, and one that needs sparse gradients."""

_CLASSES: dict[str, type[torch.optim.Optimizer]] = {
    name.lower(): value
    for name, value in vars(torch.optim).items()
    if isinstance(value, type)
    and issubclass(value, torch.optim.Optimizer)
    and value not in _UNUSABLE
}


def resolve(spec: OptimizerSpec, lr: float) -> dict[str, Any]:
    """The specification as a full table: name, lr, and the class's own options."""
    table: dict[str, Any] = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = choose(str(table.pop("name", "adam")).lower(), _CLASSES, "optimizer")
    table = {"name": name, "lr": lr, **table}
    if not 0 < table["lr"] < float("inf"):
        raise ConfigError(f"learning rate of optimizer {name!r} must be > 0, not {table['lr']!r}")
    build([torch.zeros(1, requires_grad=True)], table)
    return table


def build(parameters: Iterable[Tensor], table: Mapping[str, Any]) -> torch.optim.Optimizer:
    """An optimiser from a resolved table, in its fastest form for where the parameters are."""
    parameters = list(parameters)
    options = {key: value for key, value in table.items() if key != "name"}
    options = {**_fastest(_CLASSES[table["name"]], parameters), **options}
    try:
        return _CLASSES[table["name"]](parameters, **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"optimizer {table['name']!r}: {error}") from error


def _fastest(kind: type[torch.optim.Optimizer], parameters: list[Tensor]) -> dict[str, bool]:
    """One fused kernel, which on a GPU can also be captured into a graph, where there is one."""
    known = inspect.signature(kind.__init__).parameters
    on_gpu = all(p.is_cuda for p in parameters)
    usable = all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in parameters)
    options = {"fused": usable and bool(parameters), "capturable": on_gpu and bool(parameters)}
    return {key: True for key, wanted in options.items() if wanted and key in known}


def fuse(optimizer: torch.optim.Optimizer) -> None:
    """Let the compiler make the step's kernel: torch's own leaves half of a large GPU idle.

    Not in float64: the compiled step counts in float32, which would show.
    """
    if any(p.dtype == torch.float64 for group in optimizer.param_groups for p in group["params"]):
        return
    for group in optimizer.param_groups:
        if group.get("fused") and "foreach" in group:
            group["fused"], group["foreach"] = None, True
    optimizer.step = Fused(optimizer.step)  # type: ignore[method-assign, assignment]


def restore(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Take over moments from a ``state_dict``, but not its options: those follow the device."""
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state["state"], "param_groups": groups})
