"""``fgn.benefit``: the same clients trained together and alone, and what each gains."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from fedgradnorm._benefit.benefit import Benefit
from fedgradnorm._benefit.measuring import By, testable
from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError
from fedgradnorm._launched import is_leader
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs.files import present
from fedgradnorm._runs.layout import MANIFEST
from fedgradnorm._runs.run import Run
from fedgradnorm._training.callbacks import Callback, Show, ShowProgress
from fedgradnorm._training.inputs import CHOICES, checked_folder, chosen, refused
from fedgradnorm._training.train import Option, train_with
from fedgradnorm.weighting import Equal, Weighting

log = logging.getLogger("fedgradnorm")

STAGE = "alone"
"""The folder of the run without sharing, and the stage of its events."""


def benefit(
    network: nn.Module,
    clients: Sequence[Client],
    *,
    by: By = "score",
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback | Option | Show] = (),
    **training: Any,
) -> Benefit:
    """Train together and alone, and compare both on each client's test examples.

    Args:
        network, clients: as for :func:`fedgradnorm.train`; every client needs test examples.
        by: classes are judged by accuracy (``score``), or by their ``loss``; numbers by the loss.
        folder: where both runs are kept, as ``joined`` and ``alone`` inside it.
        resume: continue the runs in ``folder``; a run that is not there yet starts.
        callbacks: as for :func:`fedgradnorm.train`, called in both runs. In the run without sharing
            an event's ``stage`` is "alone".
        training: method, weighting and settings, as for :func:`fedgradnorm.train`. Alone,
            ``sharing.share`` is "none", and what needs a server or tunes a shared network
            (``heads``, ``weight_per``, ``aggregate``, ``ditto``, ``personalize``) is left out.

    Returns:
        A benefit with ``table``, ``sentence``, and the two runs, ``joined`` and ``alone``.
    """
    weighting, how, found = _chosen({**training, "callbacks": callbacks})
    given = testable(clients, by)
    warn_of_overfitting(given, how)
    place = checked_folder(folder)

    def run(name: str, weighting: Weighting, how: Settings) -> Run:
        own = None if place is None else Path(place) / name
        begun = resume and own is not None and present(own / MANIFEST)
        with ExitStack() as stack:
            mine = [stack.enter_context(_shown(name, one)) for one in found]
            return train_with(network, given, weighting, how, mine, folder=own, resume=begun)

    joined = run("joined", weighting, how)
    alone = run(STAGE, Equal(), how.alone())
    return joined.benefit(alone, given, by=by)


def warn_of_overfitting(clients: Sequence[Client], settings: Settings) -> None:
    """Warn, once, where both trainings end at their last round, however much was overfitted."""
    if settings.keeps_best:
        return
    judged = any(client.validation for client in clients)
    log.warning(
        "benefit: both trainings end at the last round, where small clients overfit, alone most "
        "of all; set %skeep_best and early_stopping",
        "" if judged else "validation examples (validation_share), ",
    )


def _chosen(training: dict[str, Any]) -> tuple[Weighting, Settings, list[Callback]]:
    for name in training:
        if name not in (*CHOICES, "callbacks"):
            raise refused("benefit", name)
    weighting, settings, callbacks = chosen(training)
    sharing = training.get("sharing")
    if settings.share == "none" or (isinstance(sharing, Mapping) and "share" in sharing):
        raise ConfigError("benefit trains with and without sharing; leave sharing.share out")
    return weighting, settings, callbacks


@contextmanager
def _shown(name: str, callback: Callback) -> Iterator[Callback]:
    if not isinstance(callback, ShowProgress):
        yield callback
    elif callback.show is not None:
        tell = callback.show
        alone = name == STAGE
        yield ShowProgress(lambda event: tell(replace(event, stage=STAGE) if alone else event))
    elif is_leader():
        from fedgradnorm._training.display import live_display

        with live_display(None, name) as show:
            yield ShowProgress(show)
    else:
        yield callback
