"""Shared networks by name, as a config gives them."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedgradnorm import models
from fedgradnorm.client import Client
from fedgradnorm.data.batches import number
from fedgradnorm.errors import ConfigError, ModelError, choose
from fedgradnorm.options import check_options, options_of

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "leaky_relu": nn.LeakyReLU,
    "tanh": nn.Tanh,
}


def mlp(widths: Sequence[int], inputs: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers of these ``widths``, each followed by the activation; inputs are flattened."""
    if not widths or not all(isinstance(w, int) and w > 0 for w in (inputs, *widths)):
        raise ConfigError(f"mlp: widths must be whole numbers > 0, not {list(widths)!r}")
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in itertools.pairwise((inputs, *widths)):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers)


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "network1": models.network1,
    "network2": models.network2,
    "mlp": mlp,
}


def build_network(
    name: str, options: Mapping[str, Any], clients: Sequence[Client], seed: int
) -> nn.Module:
    """The network of that name, or of ``package.module:factory``, started from the seed alone.

    An option ``inputs`` that is not given is the size of the clients' input rows.
    """
    factory = _imported(name) if ":" in name else NETWORKS[choose(name, NETWORKS, "network")]
    allowed = options_of(factory)
    given = dict(options)
    if "inputs" in allowed and "inputs" not in given and clients:
        given["inputs"] = int(clients[0].train[0][0].numel())
    check_options(f"network {name!r}", given, allowed)
    if isinstance(given.get("activation"), str) and ":" not in name:
        given["activation"] = ACTIVATIONS[choose(given["activation"], ACTIVATIONS, "activation")]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number(seed, "network") % 2**63)
        return _made(name, factory, given)


def _made(name: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> nn.Module:
    try:
        network = factory(**options)
    except (TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"network {name!r} with options {dict(options)}: {reason}") from error
    if not isinstance(network, nn.Module):
        raise ModelError(f"network {name!r} gave a {type(network).__name__}, not an nn.Module")
    return network


def _imported(name: str) -> Callable[..., Any]:
    """The factory that ``package.module:factory`` names, looked for in the working folder too."""
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(f"network {name!r} cannot be imported: {error}") from error
    except ValueError as error:
        raise ConfigError(f"network {name!r} is not package.module:factory") from error
    finally:
        sys.path.remove(here)
    found = getattr(module, attribute, None)
    if not callable(found):
        public = [key for key, value in vars(module).items() if callable(value)]
        choose(attribute, public, f"factory in module {module_name!r}")
        raise ConfigError(f"network {name!r} is not callable")
    return found  # type: ignore[no-any-return]
