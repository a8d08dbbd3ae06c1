"""Shared networks by name, and the programs that a config names.

These are ``imports = ["module"]`` and networks ``package.module:factory``. A config, a run folder
and a federation's file come from others too. A network is therefore not imported before whoever
reads the file has allowed its module: ``--allow-module`` on the command line,
``FEDGRADNORM_ALLOW_MODULES`` in the environment, ``load_config(..., allow=[...])`` in Python.
``imports`` is for the config that you run; in a run folder or a federation's file it needs the same
permission, unless the module is imported already.
"""

from __future__ import annotations

import copy
import importlib
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from fedgradnorm import models
from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError, FedGradNormError, ModelError, choose
from fedgradnorm._memory import memory_limit
from fedgradnorm._options import OF_RUN, check_options, options_of
from fedgradnorm._round.seeding import number
from fedgradnorm.models._fitting import as_input
from fedgradnorm.models._input_rows import call
from fedgradnorm.models._networks import ACTIVATIONS, mlp

COPIES = 4
"""Parameters, gradient and the optimizer's two moments: what training holds at the least."""

NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "network1": models.network1,
    "network2": models.network2,
    "mlp": mlp,
}


def build_network(
    name: str,
    options: Mapping[str, Any],
    clients: Sequence[Client],
    seed: int,
    allow: Collection[str] = (),
) -> nn.Module:
    """The network of that name, or of ``package.module:factory``, started from the seed alone.

    An option ``inputs`` that is not given is the size of the clients' input rows, or of what their
    first parts give. ``allow`` names the modules whose factories may be called.
    """
    inputs = _row_size(name, options, clients)
    make = _maker(name, options, inputs, allow)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number(seed, "network") % 2**63)
        return _made(name, make)


def _row_size(name: str, options: Mapping[str, Any], clients: Sequence[Client]) -> int | None:
    """How many numbers of a row reach the network; None where that is not one tensor."""
    if not clients:
        return None
    first = next((client for client in clients if client.stem is None), clients[0])
    rows = first.train[0][:1]
    if first.stem is not None:
        with torch.no_grad():
            between = call(copy.deepcopy(first.stem).eval(), as_input(rows, first.stem, "cpu"))
        return between[0].numel() if isinstance(between, torch.Tensor) else None
    if isinstance(rows, torch.Tensor):
        return int(rows[0].numel())
    if ":" not in name and "inputs" not in options:
        raise ConfigError(
            f"network {name!r} takes one tensor, but the rows of client {first.name!r} are named "
            "inputs or sequences; use a custom network: name = 'module:function'"
        )
    return None


def check_network_options(
    name: str, options: Mapping[str, Any], allow: Collection[str] = ()
) -> None:
    """Refuse a name or options that no network can have, before data is read or made."""
    _maker(name, options, 1, allow)


def _maker(
    name: str, options: Mapping[str, Any], inputs: int | None, allow: Collection[str]
) -> Callable[[], Any]:
    """The factory with its options, checked; nothing large is made here."""
    own = ":" in name
    factory = find_factory(name, allow) if own else NETWORKS[choose(name, NETWORKS, "network")]
    allowed = options_of(factory)
    given = dict(options)
    if "inputs" in allowed and "inputs" not in given and inputs is not None:
        given["inputs"] = inputs
    check_options(f"network {name!r}", given, allowed, OF_RUN)
    if isinstance(given.get("activation"), str) and not own:
        given["activation"] = ACTIVATIONS[choose(given["activation"], ACTIVATIONS, "activation")]
    if not own and isinstance(given.get("widths"), int):
        raise ConfigError(
            f"network {name!r}: widths must be a list, one width per layer: "
            f"widths = [{given['widths']}]"
        )
    make = partial(factory, **given)
    if not own:
        _check_size(name, make)
    return make


def _made(name: str, make: Callable[[], Any]) -> nn.Module:
    try:
        network = make()
    except FedGradNormError:
        raise
    except Exception as error:  # a custom factory may raise anything
        reason = str(error) or type(error).__name__
        raise ConfigError(f"network {name!r} cannot be made with its options: {reason}") from error
    if not isinstance(network, nn.Module):
        raise ModelError(f"network {name!r} gave a {type(network).__name__}, not an nn.Module")
    return network


def _check_size(name: str, make: Callable[[], nn.Module]) -> None:
    """Refuse a network that cannot be trained in this machine's memory: counted, not tried."""
    with torch.device("meta"):
        network = _made(name, make)
    size = sum(p.numel() * p.element_size() for p in network.parameters())
    most = memory_limit() // COPIES
    if size > most:
        raise ConfigError(
            f"network {name!r} would have {size / 2**30:.1f} GiB of parameters; training keeps "
            f"{COPIES} copies, so this machine has room for {most / 2**30:.1f} GiB; make it smaller"
        )


VARIABLE = "FEDGRADNORM_ALLOW_MODULES"
"""Names of modules, between commas, that this user allows everywhere."""


def find_factory(name: str, allow: Collection[str]) -> Callable[..., Any]:
    """The factory that ``package.module:factory`` names, looked for in the working folder too."""
    place, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*place.split("."), attribute)):
        raise ConfigError(f"network {name!r} is not package.module:factory")
    _check_allowed(f"network {name!r}", place, allow)
    module = _imported(f"network {name!r}", place)
    known = vars(module).items()
    factories: dict[str, Callable[..., Any]] = {k: v for k, v in known if _is_factory(v, place)}
    return factories[choose(attribute, factories, f"factory in module {place!r}")]


def import_modules(imports: Any) -> None:
    """Import the modules that ``imports`` names, so that they register what they have."""
    for place in _module_names(imports):
        _imported(f"imports = [{place!r}]", place)


def check_imports(imports: Any, allow: Collection[str]) -> None:
    """A ConfigError if a file that others may have written names a module nobody asked for."""
    for place in _module_names(imports):
        if place not in sys.modules:
            _check_allowed(f"imports = [{place!r}]", place, allow)


def _module_names(imports: Any) -> list[str]:
    fine = isinstance(imports, list | tuple) and all(
        isinstance(place, str) and all(part.isidentifier() for part in place.split("."))
        for place in imports
    )
    if not fine:
        raise ConfigError(f"imports = {imports!r} should be a list of modules, such as ['mine']")
    return list(imports)


def _check_allowed(what: str, place: str, allow: Collection[str]) -> None:
    here = {word.strip() for word in os.environ.get(VARIABLE, "").split(",")}
    if place not in here.union(allow):
        raise ConfigError(
            f"{what} is a program, and module {place!r} is not allowed here; if you trust it, "
            f"allow it with --allow-module {place}, with {VARIABLE}={place} in the environment, "
            f"or with load_config(..., allow=[{place!r}])"
        )


def _imported(what: str, place: str) -> ModuleType:
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        return importlib.import_module(place)
    except Exception as error:  # the module's own code may raise anything
        raise ConfigError(f"{what} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(here)


def _is_factory(value: Any, place: str) -> bool:
    """Whether the module made it itself, or it is a network: ``mine:os.system`` is neither."""
    if isinstance(value, type) and issubclass(value, nn.Module):
        return True
    return callable(value) and getattr(value, "__module__", None) == place
