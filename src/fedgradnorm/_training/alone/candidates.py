"""What a client chooses from at a run's end: what was shared, what it tuned, what it did alone.

The choice is by the client's own validation rows. So nobody ends with less than it can see to be
best. Among equals what is shared comes first, then what was tuned.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from fedgradnorm._client import Client
from fedgradnorm._engines import Exported
from fedgradnorm._federation.alone import Alone as Separate
from fedgradnorm._federation.federation import Federation
from fedgradnorm._federation.making_heads import first_head, make_head
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs.run import TrainedClient
from fedgradnorm.models._flat import FlatNetwork

log = logging.getLogger("fedgradnorm")

Personal = dict[str, dict[str, Any]]
"""What each client kept, by name: a part of run.json."""


@dataclass(frozen=True)
class Alone:
    """The clients as each has trained alone, and the losses of their validation rows."""

    clients: Mapping[str, TrainedClient] = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)


def start_of(network: nn.Module, clients: Sequence[Client], settings: Settings) -> dict[str, Any]:
    """Network and heads before training: a run that is resumed may be given other ones."""
    heads = {c.name: dict(first_head(network, c, settings).state_dict()) for c in clients}
    stems = {c.name: dict(c.stem.state_dict()) for c in clients if c.stem is not None}
    table = {k: t.clone() for k, t in network.state_dict().items()}
    return {"network": table, "heads": heads, **({"stems": stems} if stems else {})}


def started(client: Client, network: nn.Module, seed: int, start: Mapping[str, Any]) -> Client:
    """The client with the head, and the first part if any, that it began with."""
    head, stem = make_head(network, client, seed), copy.deepcopy(client.stem)
    head.load_state_dict(start["heads"][client.name])
    if stem is not None:
        stem.load_state_dict(start["stems"][client.name])
    return replace(client, head=head, stem=stem)


def choose(personal: Personal, alone: Alone) -> Personal:
    """What each client keeps of all that it has, with the loss of each on its validation rows."""
    return {name: _chosen(one, alone.losses.get(name)) for name, one in personal.items()}


def _chosen(one: Mapping[str, Any], alone: float | None) -> dict[str, Any]:
    kept = "tuned" if one["step"] else "shared"
    if "after" not in one:  # no validation rows
        return {"kept": kept, **one}
    loss = alone if alone is not None and math.isfinite(alone) else None
    after = one["after"]
    if loss is not None and (after is None or loss < after):
        kept, after = "alone", loss
    return {"kept": kept, **one, "tuned": one["after"], "alone": loss, "after": after}


def install(federation: Federation | Separate, personal: Personal, alone: Alone) -> None:
    """Give clients that chose it what they trained alone."""
    for name, kept in personal.items():
        if kept["kept"] == "alone":
            federation.install(name, _exported(alone.clients[name]))


def _exported(client: TrainedClient) -> Exported:
    assert client.network is not None  # nothing is shared alone
    vector = FlatNetwork(client.network).vector
    return Exported(client.head, client.buffers, client.stem, vector)
