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
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from fedgradnorm._client import Client
from fedgradnorm._engines import Exported
from fedgradnorm._errors import RankLost, TrainingError, listed
from fedgradnorm._federation.heads import first_head, make_head
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs.manifest import chosen_words
from fedgradnorm._runs.run import TrainedClient
from fedgradnorm._training.callbacks import VALIDATION
from fedgradnorm.models._flat import FlatNetwork
from fedgradnorm.weighting import Equal

if TYPE_CHECKING:
    from fedgradnorm._training.trainer import Trainer

log = logging.getLogger("fedgradnorm")

STAGE = "alone"
"""What the progress of this part is called."""

Trained = tuple[Mapping[str, TrainedClient], Mapping[str, float]]
"""The clients as each has trained alone, and the losses of their validation examples."""


def start_of(network: nn.Module, clients: Sequence[Client], settings: Settings) -> dict[str, Any]:
    """Network and heads before training: a resumed run may be given other ones."""
    heads = {c.name: dict(first_head(network, c, settings).state_dict()) for c in clients}
    stems = {c.name: dict(c.stem.state_dict()) for c in clients if c.stem is not None}
    table = {k: t.clone() for k, t in network.state_dict().items()}
    return {"network": table, "heads": heads, **({"stems": stems} if stems else {})}


def train_alone(trainer: Trainer) -> Trained:
    """Train every client of a run by itself, as ``share="none"`` does, from the same start.

    It depends on nothing that the run has learned, so a run that was stopped in it begins it again.
    Where it fails, nobody has anything to choose, and the run ends as it would have without it.
    """
    start, network = trainer.start, copy.deepcopy(trainer.network)
    network.load_state_dict(start["network"])
    clients = list[Client]()
    for name, client in trainer.clients.items():
        head, stem = make_head(network, client, trainer.settings.seed), copy.deepcopy(client.stem)
        head.load_state_dict(start["heads"][name])
        if stem is not None:
            stem.load_state_dict(start["stems"][name])
        clients.append(replace(client, head=head, stem=stem))
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
        return {}, {}
    losses = {row["client"]: row["loss"] for row in own.history.rows if row["split"] == VALIDATION}
    return own.result().clients, trainer.world.leaders(losses)


def choose(trainer: Trainer, trained: Trained) -> None:
    """Let each client keep the best of all that it has, by its validation loss."""
    clients, losses = trained
    for name, one in trainer.personal.items():
        kept = {"kept": "tuned" if one["step"] else "shared", **one}
        if "after" in one:  # it has validation examples
            loss, after = losses.get(name, math.inf), one["after"]
            kept |= {"tuned": after, "alone": loss if math.isfinite(loss) else None}
            if math.isfinite(loss) and (after is None or loss < after):
                kept |= {"kept": "alone", "after": loss}
                client = clients[name]
                assert client.network is not None  # nothing is shared alone
                vector = FlatNetwork(client.network).vector
                own = Exported(client.head, client.buffers, client.stem, vector)
                trainer.federation.install(name, own)
        trainer.personal[name] = kept


def log_personal(kept: Mapping[str, Mapping[str, Any]]) -> None:
    """Say how many clients are better off with what they tuned, and who could not tell."""
    judged = [one for one in kept.values() if "after" in one]
    blind = listed([name for name, one in kept.items() if "after" not in one])
    if chosen_words(kept):  # which the run's last line in the log says
        why = "no validation rows to choose by, so not what was trained alone"
    else:
        why = "no validation rows, so the last step is taken"
        if judged:
            moved = sum(one["step"] > 0 for one in judged)
            log.info("personalize: %d of %d clients keep what they tuned", moved, len(judged))
    if blind:
        log.info("personalize: %s: %s", why, blind)
