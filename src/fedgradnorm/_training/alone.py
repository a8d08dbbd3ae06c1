"""Clients that also train alone, and choose at the end of a run: what is shared, what they tuned or
what they trained alone.

Each client chooses by its own validation examples, so none ends with less than it can see to be
best. Among equals what is shared comes first, then what was tuned.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import nn

from fedgradnorm._client import Client
from fedgradnorm._engines import Exported
from fedgradnorm._engines.ranks import RankLost
from fedgradnorm._errors import TrainingError, listed
from fedgradnorm._federation.alone import Alone as Separate
from fedgradnorm._federation.federation import Federation
from fedgradnorm._federation.making_heads import first_head, make_head
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs.about import chosen_words
from fedgradnorm._runs.run import TrainedClient
from fedgradnorm._training.callbacks import VALIDATION
from fedgradnorm.models._flat import FlatNetwork
from fedgradnorm.weighting import Equal

if TYPE_CHECKING:
    from fedgradnorm._training.trainer import Trainer

log = logging.getLogger("fedgradnorm")

STAGE = "alone"
"""What the progress of this part is called."""

Personal = dict[str, dict[str, Any]]
"""What each client kept, by name: a part of run.json."""


@dataclass(frozen=True)
class Alone:
    """The clients as each has trained alone, and the losses of their validation examples."""

    clients: Mapping[str, TrainedClient] = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)


def train_alone(trainer: Trainer) -> Alone:
    """Train every client of a run by itself, as ``share="none"`` does, from the same start.

    It depends on nothing that the run has learned, so a run that was stopped in it begins it again.
    Where it fails, nobody has anything to choose, and the run ends as it would have without it.
    """
    network = copy.deepcopy(trainer.network)
    network.load_state_dict(trainer.start["network"])
    seed, start = trainer.settings.seed, trainer.start
    clients = [_started(client, network, seed, start) for client in trainer.clients.values()]
    settings = replace(trainer.settings.alone(), eval_clients=None)  # everybody has the choice
    if not settings.keeps_best:  # nobody chooses between evaluations
        settings = replace(settings, eval_every=0)
    own = type(trainer)(network, clients, Equal(), settings, trainer.device, world=trainer.world)
    if statistics := start.get("statistics"):
        own.begin(statistics, {})
    log.info("personalize: each client trains alone, %d rounds at most", own.rounds)
    try:
        own.train(show=trainer.show, stage=STAGE, interrupt=trainer.interrupt)
    except RankLost:
        raise
    except TrainingError as error:
        log.warning("personalize: nobody keeps what was trained alone: %s", error)
        return Alone()
    losses = {row["client"]: row["loss"] for row in own.history.rows if row["split"] == VALIDATION}
    return Alone(own.result().clients, trainer.world.leaders(losses))


def start_of(network: nn.Module, clients: Sequence[Client], settings: Settings) -> dict[str, Any]:
    """Network and heads before training: a resumed run may be given other ones."""
    heads = {c.name: dict(first_head(network, c, settings).state_dict()) for c in clients}
    stems = {c.name: dict(c.stem.state_dict()) for c in clients if c.stem is not None}
    table = {k: t.clone() for k, t in network.state_dict().items()}
    return {"network": table, "heads": heads, **({"stems": stems} if stems else {})}


def _started(client: Client, network: nn.Module, seed: int, start: Mapping[str, Any]) -> Client:
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


def log_personal(kept: Mapping[str, Mapping[str, Any]]) -> None:
    """Say how many clients are better off with what they tuned, and who could not tell."""
    if chosen_words(kept):  # which the run's last line in the log says
        if blind := [name for name, one in kept.items() if "after" not in one]:
            why = "no validation rows to choose by, so not what was trained alone"
            log.info("personalize: %s: %s", why, listed(blind))
        return
    judged = [one for one in kept.values() if "after" in one]
    if judged:
        moved = sum(one["step"] > 0 for one in judged)
        log.info("personalize: %d of %d clients keep what they tuned", moved, len(judged))
    if blind := [name for name, one in kept.items() if "after" not in one]:
        log.info("personalize: no validation rows, so the last step is taken: %s", listed(blind))
