"""A run from its settings: checked, opened, trained to its end or to an interruption."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from fedgradnorm._checks import flag
from fedgradnorm._client import Client
from fedgradnorm._engines import with_others
from fedgradnorm._engines.ranks import RankLost, World, stoppable
from fedgradnorm._errors import Interrupted, TrainingError
from fedgradnorm._federation.sharing import aligned, check_clients, sized
from fedgradnorm._round.numerics import numerics
from fedgradnorm._round.settings import Settings
from fedgradnorm._runs.after.starting import Start, checked_start
from fedgradnorm._runs.folder import Place
from fedgradnorm._runs.run import Run
from fedgradnorm._training.alone.alone_part import Show, train_alone
from fedgradnorm._training.describe import about_run
from fedgradnorm._training.device import usable_device
from fedgradnorm._training.due import Checkpoints
from fedgradnorm._training.inputs import (
    check_is_module,
    check_progress,
    checked_clients,
    checked_folder,
    checked_weighting,
)
from fedgradnorm._training.interrupt import held_back
from fedgradnorm._training.ranked import (
    Keeper,
    agreed,
    meet,
    open_folder,
)
from fedgradnorm._training.trainer import Progress, Trainer
from fedgradnorm.models._dividing import divided
from fedgradnorm.weighting import Equal, GradNorm, Weighting

log = logging.getLogger("fedgradnorm")


def train_with(
    network: nn.Module,
    clients: Sequence[Client],
    weighting: Weighting | None,
    settings: Settings,
    *,
    start: Run | None = None,
    folder: Place | None = None,
    resume: bool = False,
    progress: bool | Callable[[Progress], None] = False,
) -> Run:
    """What :func:`fedgradnorm.train` does, once its keywords are :class:`Settings`."""
    weighting, clients = checked_weighting(weighting), checked_clients(clients)
    check_is_module(network)
    network = sized(network, clients, settings.seed)
    network = divided(network, settings.shared, settings.frozen)
    check_progress(progress)
    resume, place = flag("resume", resume), checked_folder(folder)
    begin = _start(checked_start(start), network, clients, settings)
    if begin is not None:
        network, clients = begin.network, begin.clients
    world = meet(settings.engine)
    if weighting is None:
        weighting = GradNorm() if settings.share == "all" else Equal()
    clients = with_others(world, clients, settings.parting_obstacle(started=begin is not None))
    clients = aligned(clients, settings, None if begin is None else begin.columns)
    device = usable_device(settings)
    network = world.same_network(network)
    with numerics(settings.precision, device):  # kernels are built as the run will use them
        trainer = Trainer(network, clients, weighting, settings, device)
    about = about_run(trainer, network, weighting)
    if begin is not None:
        trainer.begin(begin.statistics, begin.networks)
        about["start"] = begin.about()
    keeper: Keeper | None = None
    if place is not None:
        keeper = open_folder(place, trainer, about, resume, world)
        about = keeper.about
    display = _display(progress if world.leads else False, trainer)
    try:
        with display as show, numerics(settings.precision, trainer.device), stoppable(world):
            _fit(trainer, keeper, show, world, begin)
        run = _result(trainer, about, place)
        if keeper is not None:
            keeper.finish(run)
        return run
    except KeyboardInterrupt:
        where = f"; resume from {folder}" if folder is not None else ""
        alone = ", while clients trained alone" if trainer.ending else ""
        message = f"stopped after round {trainer.round} of {trainer.rounds}{alone}{where}"
        raise Interrupted(message, _result(trainer, about, place)) from None
    finally:
        if keeper is not None:
            keeper.close()


def _result(trainer: Trainer, about: dict[str, Any], place: Place | None) -> Run:
    """The run as it stands, which knows its folder."""
    run = trainer.result(about)
    run.folder = None if place is None else Path(place)
    return run


def _fit(
    trainer: Trainer,
    keeper: Keeper | None,
    show: Show | None,
    world: World,
    begin: Start | None,
) -> None:
    """All remaining rounds, with evaluations and checkpoints on the way.

    What another run gave is in a checkpoint before the first round: to resume needs no other run.
    """
    started = time.perf_counter()
    checkpoints = Checkpoints(keeper, trainer, world)
    log.info("round %d of %d: training starts", trainer.round, trainer.rounds)
    trainer.announce()
    if begin is not None and not trainer.history.rows:
        begin.announce()
        checkpoints.write()
    with held_back() as held:
        let_through = agreed(world, held)
        _rounds(trainer, checkpoints, show, let_through)
        if trainer.ending:
            _end(trainer, checkpoints, show, let_through)
    log.info("round %d: finished in %.1f s", trainer.round, time.perf_counter() - started)
    if trainer.ended:
        log.info("round %d: %s", trainer.round, trainer.ended)


def _start(
    run: Run | None, network: nn.Module, clients: Sequence[Client], settings: Settings
) -> Start | None:
    """What the new run takes over of another one, if one is given."""
    if run is None:
        return None
    check_clients(clients, settings)
    return Start(run, network, clients, settings)


def _rounds(
    trainer: Trainer, checkpoints: Checkpoints, show: Show | None, let_through: Callable[[], None]
) -> None:
    """All rounds that are left of a trainer."""
    evaluate = trainer.every(trainer.settings.eval_every)
    if not trainer.history.rows:
        trainer.evaluate()
    while not trainer.done:
        try:
            event = trainer.advance(_until_next(trainer.round, evaluate, checkpoints.every))
        except TrainingError as error:
            if not isinstance(error, RankLost):
                checkpoints.write()
            raise
        if trainer.done or (evaluate and trainer.round % evaluate == 0):
            trainer.evaluate()
        checkpoints.after_round()
        try:
            if show is not None:
                show(_with_news(event, trainer))
            let_through()
        except KeyboardInterrupt:
            checkpoints.write()
            raise


def _end(
    trainer: Trainer, checkpoints: Checkpoints, show: Show | None, let_through: Callable[[], None]
) -> None:
    """Let each client train alone as well, then end the run with what each likes best.

    The last round's checkpoint is there already: a run that is stopped in here resumes here.
    """
    world = checkpoints.world

    def go(own: Trainer, shown: Show | None) -> None:
        _rounds(own, Checkpoints(None, own, world), shown, let_through)

    trainer.end(train_alone(trainer, go, show, world))
    checkpoints.write()
    if show is not None:
        event = Progress(trainer.round, trainer.rounds, trainer.epoch, {}, {})
        show(_with_news(event, trainer))


def _with_news(event: Progress, trainer: Trainer) -> Progress:
    """A progress with what was written down since the last one."""
    rows, spread = trainer.recording.news()
    return replace(event, rows=rows, spread=spread, ended=trainer.ended)


def _until_next(round_number: int, *intervals: int) -> int:
    """Rounds until the next evaluation or checkpoint is due."""
    return min((every - round_number % every for every in intervals if every), default=1 << 30)


def _display(progress: bool | Callable[[Progress], None], trainer: Trainer) -> Any:
    if progress is True:
        from fedgradnorm._training.display import live_display

        return live_display(trainer.round)
    return nullcontext(progress or None)
