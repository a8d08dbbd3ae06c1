"""A module written down as plain data, so that a saved run can rebuild it without pickle.

Only layers of torch.nn and nn.Sequential of them can be written down; for any other module a
saved run is loaded with the module given again.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from fedgradnorm.errors import RunFolderError

Blueprint = dict[str, Any]
_STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def describe(module: nn.Module) -> Blueprint | None:
    """The module as JSON-ready data, or None if that cannot be done faithfully.

    >>> describe(nn.Linear(2, 3))
    {'layer': 'Linear', 'options': {'in_features': 2, 'out_features': 3, 'bias': True}}
    """
    name = type(module).__name__
    if getattr(nn, name, None) is not type(module):
        return None
    if isinstance(module, nn.Sequential):
        # named_children() would leave out a layer that stands in two places.
        parts = {key: describe(child) for key, child in module._modules.items()}
        return None if None in parts.values() else {"layer": name, "parts": parts}
    options = _options(module)
    return None if options is None else {"layer": name, "options": options}


def rebuild(blueprint: Blueprint) -> nn.Module:
    """The module that :func:`describe` wrote down, with fresh parameters."""
    kind = getattr(nn, str(blueprint.get("layer")), None)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise RunFolderError(f"unknown layer {blueprint.get('layer')!r} in a saved run")
    if kind is nn.Sequential:
        sequence = nn.Sequential()
        for key, part in blueprint["parts"].items():
            sequence.add_module(key, rebuild(part))
        return sequence
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in blueprint["options"].items()}
    module = kind(**options)
    assert isinstance(module, nn.Module)
    return module


def _options(module: nn.Module) -> dict[str, Any] | None:
    """Constructor arguments read back from the layer's attributes; None if one is not to be had."""
    options: dict[str, Any] = {}
    for name, parameter in inspect.signature(type(module).__init__).parameters.items():
        if name in ("self", "device", "dtype") or parameter.kind in _STARRED:
            continue
        if name == "bias":
            options[name] = getattr(module, "bias", None) is not None
            continue
        value = getattr(module, name, inspect.Parameter.empty)
        if not _plain(value):
            if parameter.default is inspect.Parameter.empty:
                return None
            continue
        options[name] = value
    try:
        with torch.device("meta"):  # no memory, and no draw from the global generator
            same = repr(type(module)(**options)) == repr(module)
    except (TypeError, ValueError, RuntimeError):
        return None
    return options if same else None


def _plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))
