"""A module written down as plain data, so that a saved run can rebuild it without pickle.

Only layers of torch.nn and nn.Sequential of them can be written down; for any other module a
saved run is loaded with the module given again.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin as Lazy

from fedgradnorm._client import Client
from fedgradnorm._errors import RunFolderError

Blueprint = dict[str, Any]
_LEFT_OUT = ("self", "device", "dtype", "num_layers", "num_encoder_layers", "num_decoder_layers")
"""Arguments that are not written down. A number of layers is no attribute of any layer, and one
that was made up would keep a reader busy for ever."""
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
        # named_children() would leave out a layer that occurs in two places.
        parts = {key: describe(child) for key, child in module._modules.items()}
        return None if None in parts.values() else {"layer": name, "parts": parts}
    options = _options(module)
    return None if options is None else {"layer": name, "options": options}


def blueprints(
    network: nn.Module, heads: Mapping[str, nn.Module], clients: Iterable[Client] = ()
) -> dict[str, Any]:
    """What is needed to rebuild network, heads and stems, where that can be written down."""
    stems = {client.name: describe(client.stem) for client in clients if client.stem is not None}
    return {
        "network": describe(network),
        "heads": {name: describe(head) for name, head in heads.items()},
        **({"stems": stems} if stems else {}),
    }


def rebuild(blueprint: Blueprint | None) -> nn.Module:
    """The module that :func:`describe` wrote down, with fresh parameters."""
    try:
        return _build(blueprint)
    except RunFolderError:
        raise
    except Exception as error:  # torch's layers complain of bad options in many ways
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise RunFolderError(f"a layer of a saved run cannot be built: {reason}") from error


def sketch(blueprint: Blueprint | None) -> nn.Module:
    """The module without its numbers: it has names and shapes, and takes no memory."""
    with torch.device("meta"):
        return rebuild(blueprint)


def _build(blueprint: Any) -> nn.Module:
    if not isinstance(blueprint, dict):
        raise RunFolderError(f"a layer of a saved run must be a table, not {blueprint!r:.40}")
    name = blueprint.get("layer")
    kind = getattr(nn, name, None) if isinstance(name, str) else None
    # One that has no shapes before its first batch is never saved.
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)) or issubclass(kind, Lazy):
        raise RunFolderError(f"unknown layer {name!r:.40} in a saved run")
    if kind is nn.Sequential:
        sequence = nn.Sequential()
        for key, part in _table(blueprint, "parts").items():
            sequence.add_module(key, _build(part))
        return sequence
    options = _table(blueprint, "options")
    if unknown := sorted(set(options) - set(_known(kind))):  # describe() wrote none such
        raise RunFolderError(
            f"layer {kind.__name__} of a saved run has an unknown option {unknown[0]!r}"
        )
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in options.items()})


def _table(blueprint: Blueprint, key: str) -> dict[str, Any]:
    found = blueprint.get(key)
    if not isinstance(found, dict):
        raise RunFolderError(f"layer {blueprint['layer']} of a saved run has no table of {key}")
    return found


def _known(kind: type[nn.Module]) -> dict[str, inspect.Parameter]:
    """The constructor's arguments that can be written down."""
    return {
        name: parameter
        for name, parameter in inspect.signature(kind.__init__).parameters.items()
        if name not in _LEFT_OUT and parameter.kind not in _STARRED
    }


def _options(module: nn.Module) -> dict[str, Any] | None:
    """Constructor arguments read back from the layer's attributes; None if one is not to be had."""
    options: dict[str, Any] = {}
    for name, parameter in _known(type(module)).items():
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
