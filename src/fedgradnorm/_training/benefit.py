"""``fgn.benefit``: the same clients trained together and alone, and what each gains."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

from torch import nn

from fedgradnorm._benefit.benefit import HEADS, Benefit, validation_gains
from fedgradnorm._benefit.measuring import By, testable
from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError
from fedgradnorm._federation.checks import check_shared_tasks
from fedgradnorm._launched import is_leader
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs.files import present
from fedgradnorm._runs.layout import MANIFEST
from fedgradnorm._runs.run import Run
from fedgradnorm._training.callbacks import Callback, Progress, Show, ShowProgress
from fedgradnorm._training.inputs import CHOICES, checked_folder, chosen, refused
from fedgradnorm._training.recording import ALL_AT_END
from fedgradnorm._training.train import Option, train_with
from fedgradnorm.weighting import Equal, Weighting

log = logging.getLogger("fedgradnorm")

JOINED, STAGE = "joined", "alone"
"""The folders of the two runs; the second is also the stage of its events."""
TRIED = tuple(reversed(HEADS))
"""In the order of training: the one that asks most of clients is refused first."""


def benefit(
    network: nn.Module,
    clients: Sequence[Client],
    *,
    by: By = "score",
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    try_heads: bool = False,
    callbacks: Sequence[Callback | Option | Show] = (),
    **training: Any,
) -> Benefit:
    """Train together and alone, and compare both on each client's test examples.

    Args:
        network, clients: as for :func:`fedgradnorm.train`; every client needs test examples.
        by: compare classifiers by accuracy (``score``) or by ``loss``; regressions always by loss.
        folder: where to save both runs, in the subfolders ``joined`` and ``alone``.
        resume: continue the runs in ``folder``, and start those that are not there yet.
        try_heads: train with personal heads, with shared heads (``heads="task"``), and with shared
            heads and a personal bias, and pick the least validation loss. Each has its own folder.
        callbacks: as for :func:`fedgradnorm.train`, called in all runs. An event's ``stage`` is
            "alone" in the run without sharing, and names the heads in those that try them.
        training: method, weighting and settings, as for :func:`fedgradnorm.train`. Alone,
            ``sharing.share`` is "none", and what needs a server or tunes a shared network
            (``heads``, ``weight_per``, ``aggregate``, ``ditto``, ``personalize``) is left out.

    Returns:
        A benefit with ``table``, ``sentence``, and the two runs, ``joined`` and ``alone``. With
        ``try_heads`` it also has the gain of each (``tried``) and the one that was ``picked``.
    """
    weighting, how, found = _chosen({**training, "callbacks": callbacks})
    given = testable(clients, by)
    if try_heads:
        check_heads(given, weighting, how)
    warn_of_overfitting(given, how)
    place = checked_folder(folder)

    def run(name: str, weighting: Weighting, how: Settings) -> Run:
        own = None if place is None else Path(place) / name
        begun = resume and own is not None and present(own / MANIFEST)
        with ExitStack() as stack:
            mine = [stack.enter_context(_shown(name, one)) for one in found]
            return train_with(network, given, weighting, how, mine, folder=own, resume=begun)

    if not try_heads:
        joined = run(JOINED, weighting, how)
        return joined.benefit(run(STAGE, Equal(), how.alone()), given, by=by)
    runs = {
        name: run(name, copy.deepcopy(weighting), replace(how, **HEADS[name])) for name in TRIED
    }
    alone = run(STAGE, Equal(), how.alone())
    tried = validation_gains(runs, alone, given)
    best = max(tried, key=tried.__getitem__)
    return replace(runs[best].benefit(alone, given, by=by), tried=tried)


def check_heads(clients: Sequence[Client], weighting: Weighting, settings: Settings) -> None:
    """Refuse to try heads before anything is trained, where they cannot be shared or judged."""
    if settings.heads != "own":
        raise ConfigError(
            f"benefit tries heads, and sharing.heads = {settings.heads!r} is set; leave it out, "
            "choose a method that does not set it, or leave try_heads out"
        )
    if all(client.validation is None for client in clients):
        raise ConfigError(
            "benefit picks heads by validation, and no client has validation examples; give "
            "clients validation=(x, y), or the data source a validation_share, or leave try_heads "
            "out"
        )
    if settings.eval_clients is not None and len({c.owner for c in clients}) > ALL_AT_END:
        raise ConfigError(
            "benefit picks heads by the validation of all clients, and evaluation.clients = "
            f"{settings.eval_clients!r} evaluates some of more than {ALL_AT_END:,}; leave it out"
        )
    check_shared_tasks(clients, replace(settings, heads="task"), weighting)


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
        stage = "" if name == JOINED else name

        @wraps(tell)  # whose name is told where it fails
        def told(event: Progress) -> None:
            tell(replace(event, stage=stage) if stage else event)

        yield ShowProgress(told)
    elif is_leader():
        from fedgradnorm._training.display import live_display

        with live_display(None, name) as show:
            yield ShowProgress(show)
    else:
        yield callback
