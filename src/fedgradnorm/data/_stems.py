"""A first part of a client's own, as a config describes it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedgradnorm._checks import shown
from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError, choose
from fedgradnorm.data._arrays import Loaded
from fedgradnorm.models._networks import ACTIVATIONS, mlp

KEYS = ("widths", "activation")


def with_stem(loaded: Loaded, stem: Mapping[str, Any] | nn.Module, seed: int) -> Loaded:
    """The client with a first part: a module, or linear layers of these ``widths``.

    The layers take the rows of the client, whose size is known by now. Their first numbers follow
    from the seed and the client's name.
    """
    client = loaded.client
    made = stem if isinstance(stem, nn.Module) else _layers(client, stem, seed)
    return replace(loaded, client=replace(client, stem=made))


def _layers(client: Client, table: Any, seed: int) -> nn.Module:
    where = f"client {client.name!r}: stem"
    if not isinstance(table, Mapping) or not isinstance(table.get("widths"), list | tuple):
        raise ConfigError(
            f"{where} must be a table such as {{ widths = [16, 8] }}, not {shown(table)}"
        )
    for key in table:
        choose(str(key), KEYS, f"key of the stem of client {client.name!r}")
    rows = client.rows[0].train[0]
    if not isinstance(rows, Tensor) or not rows.is_floating_point():
        raise ConfigError(
            f"{where} of linear layers takes numbers in one tensor, not named inputs, sequences or "
            "ids; give a module of your own in Python: fgn.Client(..., stem=...)"
        )
    activation = ACTIVATIONS[
        choose(str(table.get("activation", "relu")), ACTIVATIONS, "activation")
    ]
    digest = hashlib.blake2b(f"stem {seed} {client.name}".encode(), digest_size=7).digest()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int.from_bytes(digest, "big"))
        return mlp(list(table["widths"]), int(rows[0].numel()), activation)
