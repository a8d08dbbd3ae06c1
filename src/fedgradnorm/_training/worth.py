"""``fgn.worth``: the same clients trained together and alone, and what joining is worth to each."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from fedgradnorm._benefit.benefit import Benefit
from fedgradnorm._benefit.measuring import By, testable
from fedgradnorm._client import Client
from fedgradnorm._errors import ConfigError, choose
from fedgradnorm._launched import is_leader
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs.layout import ABOUT
from fedgradnorm._runs.reading import present
from fedgradnorm._runs.run import Run
from fedgradnorm._training.alone import STAGE
from fedgradnorm._training.callbacks import Progress
from fedgradnorm._training.inputs import check_progress, checked_folder
from fedgradnorm._training.train import train_with
from fedgradnorm.weighting import Equal, Weighting

log = logging.getLogger("fedgradnorm")

Show = bool | Callable[[Progress], None]


def worth(
    network: nn.Module,
    clients: Sequence[Client],
    *,
    weighting: Weighting | None = None,
    by: By = "score",
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: Show = False,
    **settings: Any,
) -> Benefit:
    """Does joining pay? Train together, train alone, and compare on each client's test rows.

    Args:
        network, clients, weighting: as for :func:`fedgradnorm.train`; every client needs test rows.
        by: classes are judged by accuracy (``score``), or by their ``loss``; numbers by the loss.
        folder: where both runs are kept, as ``joined`` and ``alone`` inside it.
        resume: go on with what is in ``folder``; a run that is not there yet starts.
        progress: True for a live display, or a function to call after each round. In the run
            without sharing the event's ``stage`` is "alone".
        settings: those of :func:`fedgradnorm.train`, for both: rounds, rates, batches, stopping,
            seed. Alone, ``share`` is "none", and what needs a server or tunes a shared network
            (``heads``, ``key``, ``aggregate``, ``ditto``, ``personalize``) is left out.

    Returns:
        A benefit with ``table``, ``sentence``, and the two runs, ``joined`` and ``alone``.
    """
    how = _settings(settings)
    given = testable(clients, by)
    check_progress(progress)
    warn_of_overfitting(given, how)
    place = checked_folder(folder)

    def run(name: str, weighting: Weighting | None, how: Settings) -> Run:
        own = None if place is None else Path(place) / name
        begun = resume and own is not None and present(own / ABOUT)
        with _shown(name, progress) as show:
            return train_with(
                network, given, weighting, how, folder=own, resume=begun, progress=show
            )

    joined = run("joined", weighting, how)
    alone = run(STAGE, Equal(), how.alone())
    return joined.benefit(alone, given, by=by)


def warn_of_overfitting(clients: Sequence[Client], settings: Settings) -> None:
    """Warn, once, where both trainings end at their last round, however much was overfitted."""
    if settings.keeps_best:
        return
    rows = "" if any(c.validation for c in clients) else "validation rows (validation_share), "
    log.warning(
        "worth: keep = 'last' ends both trainings at the last round, where small clients overfit, "
        "alone most of all; set %skeep = 'best' and patience", rows,
    )  # fmt: skip


def _settings(given: dict[str, Any]) -> Settings:
    if "share" in given:
        raise ConfigError("worth trains with and without sharing; leave share out")
    for name in given:
        choose(name, [field.name for field in fields(Settings)], "setting")
    return Settings(**given)


def _shown(name: str, progress: Show) -> AbstractContextManager[Show]:
    """What ``train`` takes as progress, for the run of this name."""
    if progress is True and is_leader():
        from fedgradnorm._training.display import live_display

        return live_display(None, name)
    if callable(progress) and name == STAGE:
        tell = progress
        return nullcontext(lambda event: tell(replace(event, stage=STAGE)))
    return nullcontext(progress)
