"""Optimisers by the names of torch.optim's classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from fedgradnorm.errors import ConfigError, choose

OptimizerSpec = str | Mapping[str, Any]
"""A torch.optim class by name ("adam"), or a table {"name": "sgd", "lr": 0.1, "momentum": 0.9}."""

_CLASSES: dict[str, type[torch.optim.Optimizer]] = {
    name.lower(): value
    for name, value in vars(torch.optim).items()
    if isinstance(value, type)
    and issubclass(value, torch.optim.Optimizer)
    and value is not torch.optim.Optimizer
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
    """An optimiser from a resolved table."""
    options = {key: value for key, value in table.items() if key != "name"}
    try:
        return _CLASSES[table["name"]](parameters, **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"optimizer {table['name']!r}: {error}") from error
