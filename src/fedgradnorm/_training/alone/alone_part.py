"""The part of a run in which each client trains alone: a trainer of its own, nothing shared."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import replace

from fedgradnorm._engines.ranks import RankLost, World
from fedgradnorm._errors import TrainingError
from fedgradnorm._training.alone.candidates import Alone, started
from fedgradnorm._training.ending.best import SPLIT
from fedgradnorm._training.trainer import Progress, Trainer
from fedgradnorm.weighting import Equal

log = logging.getLogger("fedgradnorm")

Show = Callable[[Progress], None]
Go = Callable[[Trainer, Show | None], None]
"""All rounds of a trainer, with its evaluations."""

STAGE = "alone"
"""What the progress of this part is called."""


def train_alone(trainer: Trainer, go: Go, show: Show | None, world: World) -> Alone:
    """Every client of ``trainer`` by itself, as ``share="none"`` trains it, from the same start.

    It depends on nothing that the run has learned, so a run that was stopped in it begins it again.
    Where it fails, nobody has anything to choose, and the run ends as it would have without it.
    """
    own = _nested(trainer)
    log.info("personalize: each client trains alone, %d rounds at most", own.rounds)

    def shown(event: Progress) -> None:
        if show is not None:
            show(replace(event, rows=(), spread=(), ended="", stage=STAGE))

    try:
        go(own, shown)
    except RankLost:
        raise
    except TrainingError as error:
        log.warning("personalize: nobody keeps what was trained alone: %s", error)
        return Alone()
    losses = {row["client"]: row["loss"] for row in own.history.rows if row["split"] == SPLIT}
    return Alone(own.result({}).clients, world.leaders(losses))


def _nested(trainer: Trainer) -> Trainer:
    network = copy.deepcopy(trainer.network)
    network.load_state_dict(trainer.start["network"])
    seed, start = trainer.settings.seed, trainer.start
    clients = [started(client, network, seed, start) for client in trainer.clients.values()]
    settings = replace(trainer.settings.alone(), eval_clients=None)  # everybody has the choice
    if not settings.keeps_best:  # nobody chooses between evaluations
        settings = replace(settings, eval_every=0)
    own = Trainer(network, clients, Equal(), settings, trainer.device)
    if statistics := trainer.start.get("statistics"):
        own.begin(statistics, {})
    return own
