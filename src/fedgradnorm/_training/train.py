"""``fgn.train``: the one function that trains."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedgradnorm._client import Client
from fedgradnorm._engines.ranks import stoppable
from fedgradnorm._errors import ConfigError, FedGradNormError, Interrupted, TrainingError
from fedgradnorm._federation.checks import aligned, check_clients, sized
from fedgradnorm._round.numerics import numerics
from fedgradnorm._round.settings import Checkpoints as CheckpointOptions
from fedgradnorm._round.settings import (
    Compute,
    EarlyStopping,
    Evaluation,
    History,
    KeepBest,
    Local,
    Personalization,
    Server,
    Settings,
    Sharing,
    completed,
    key_of,
    recorded,
    ungrouped,
)
from fedgradnorm._runs.folder import Place
from fedgradnorm._runs.manifest import diverged_words, read_manifest, stored_weighting
from fedgradnorm._runs.run import Run
from fedgradnorm._runs.starting import Start, checked_start
from fedgradnorm._training.callbacks import Callback, Progress, Show, ShowProgress
from fedgradnorm._training.checkpoints import Checkpoints, Writer, open_folder
from fedgradnorm._training.inputs import (
    CHOICES,
    check_is_module,
    checked_clients,
    checked_folder,
    chosen,
    divided_callbacks,
    explained,
    meet,
    started,
    usable_device,
)
from fedgradnorm._training.interrupt import deferred_interrupt
from fedgradnorm._training.trainer import Trainer, manifest_of
from fedgradnorm.models._dividing import divided
from fedgradnorm.weighting import Weighting

log = logging.getLogger("fedgradnorm")

KEPT_RUN = "the attribute run of this exception holds what was trained so far"

Option = Evaluation | KeepBest | EarlyStopping | CheckpointOptions | History


@explained
def train(
    network: nn.Module | Run,
    clients: Sequence[Client],
    *,
    method: str | None = None,
    weighting: Weighting | Mapping[str, Any] | None = None,
    rounds: int | None = None,
    epochs: float | None = None,
    lr: float = 1e-3,
    seed: int = 0,
    local: Local | Mapping[str, Any] | None = None,
    server: Server | Mapping[str, Any] | None = None,
    sharing: Sharing | Mapping[str, Any] | None = None,
    personalization: Personalization | Mapping[str, Any] | None = None,
    compute: Compute | Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback | Option | Show] = (),
    folder: str | os.PathLike[str] | None = None,
) -> Run:
    """Train one shared network and a personal head per client.

    Args:
        network: any module that maps a batch of inputs to features; it is copied, never changed.
            To continue from an earlier run, pass that :class:`fedgradnorm.Run`: you get its
            network, and the heads and running statistics of the clients it knows. Optimizers and
            weights start again, and new clients get new heads.
        clients: the clients of the federation; see :class:`fedgradnorm.Client`.
        method: the name of a method, one of :func:`fedgradnorm.methods`: a weighting and settings.
        weighting: how the server weights clients: an object, or a dict of options for the method's
            weighting. If you pass neither this nor a method, the method is ``fedgradnorm-direct``,
            which is ``GradNorm(rule="direct")``; or ``Equal()`` if nothing is shared.
        rounds, epochs: length of the run, ten epochs by default. A round is one exchange between
            server and clients, an epoch one pass over the largest client's training examples.
        lr: learning rate of every network optimizer that does not set its own.
        seed: determines heads, batches, participation and dropout.
        local: what a client does in a round, :class:`fedgradnorm.Local`.
        server: what the server does in a round, :class:`fedgradnorm.Server`.
        sharing: what clients share, :class:`fedgradnorm.Sharing`.
        personalization: what each client has for itself, :class:`fedgradnorm.Personalization`.
        compute: device, precision and executor, :class:`fedgradnorm.Compute`.
        callbacks: what happens between rounds. Use :class:`fedgradnorm.Evaluation`,
            :class:`fedgradnorm.EarlyStopping`, :class:`fedgradnorm.KeepBest`,
            :class:`fedgradnorm.Checkpoints` and :class:`fedgradnorm.History` to choose what is
            evaluated, kept and written. :class:`fedgradnorm.ShowProgress` and your own
            :class:`fedgradnorm.Callback` objects see every round and can stop the run. A plain
            function is called after each round.
        folder: where to save config, log, metrics and checkpoints, so that
            :func:`fedgradnorm.resume` can continue the run. By default nothing is written.

    The groups from ``local`` to ``compute`` may also be dicts: ``local={"head_steps": 5}``.

    Returns:
        A :class:`fedgradnorm.Run`.

    >>> import fedgradnorm as fgn
    >>> x = torch.randn(32, 4)
    >>> clients = [
    ...     fgn.Client("parity", fgn.classification(2), train=(x, torch.arange(32) % 2)),
    ...     fgn.Client("sum", fgn.regression(1), train=(x, x.sum(dim=1))),
    ... ]
    >>> run = fgn.train(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), clients, rounds=2)
    >>> run
    Run(GradNorm: 2 clients, 2 of 2 rounds, finished)
    >>> run.predict("sum", x).shape
    torch.Size([32, 1])
    """
    given = dict(locals())
    weighting, settings, own = chosen({name: given[name] for name in (*CHOICES, "callbacks")})
    start, network = started(network, clients)
    return train_with(network, clients, weighting, settings, own, start=start, folder=folder)


@explained
def resume(
    folder: str | os.PathLike[str],
    network: nn.Module | Run,
    clients: Sequence[Client],
    *,
    weighting: Weighting | None = None,
    callbacks: Sequence[Callback | Option | Show] = (),
) -> Run:
    """Continue the interrupted run in ``folder``, with the settings it was started with.

    Args:
        folder: the folder that you passed to :func:`fedgradnorm.train`.
        network: the network that you passed; or the run, if it continued one.
        clients: the same clients, with the same data.
        weighting: the weighting, if it is a custom one; others are restored from the folder.
        callbacks: as for :func:`fedgradnorm.train`. You may leave out options such as
            ``KeepBest()``; if you pass them, they must be those the run was started with.

    Returns:
        A :class:`fedgradnorm.Run`, on a CPU bit-for-bit that of an uninterrupted training.
    """
    place = checked_folder(folder)
    if place is None:
        raise ConfigError("folder must be the path of a run's folder, not None")
    manifest = read_manifest(Path(place))
    settings = Settings(**completed(manifest["settings"]))
    if weighting is None:
        weighting = stored_weighting(
            manifest, "fgn.resume(folder, network, clients, weighting=...)"
        )
    options, own = divided_callbacks(callbacks)
    for name, value in ungrouped(recorded(options)).items():
        if value != (there := getattr(settings, name)):
            raise ConfigError(
                f"{key_of(name)} is {there!r} in the run in {folder}, not {value!r}; a run "
                "continues with the settings it was started with, so leave the option out"
            )
    start, network = started(network, clients)
    return train_with(
        network, clients, weighting, settings, own, start=start, folder=folder, resume=True
    )


@torch.enable_grad()
def train_with(
    network: nn.Module,
    clients: Sequence[Client],
    weighting: Weighting,
    settings: Settings,
    callbacks: Sequence[Callback] = (),
    *,
    start: Run | None = None,
    folder: Place | None = None,
    resume: bool = False,
) -> Run:
    """What :func:`fedgradnorm.train` does, once its keywords are a weighting and settings."""
    clients = checked_clients(clients)
    check_is_module(network)
    network = sized(network, clients, settings.seed)
    network = divided(network, settings.shared, settings.frozen)
    shows = [one.show for one in callbacks if isinstance(one, ShowProgress)]
    own = [one for one in callbacks if not isinstance(one, ShowProgress)]
    place = checked_folder(folder)
    begin: Start | None = None
    if (other := checked_start(start)) is not None:
        check_clients(clients, settings)
        begin = Start(other, network, clients, settings)
        network, clients = begin.network, begin.clients
    world = meet(settings.executor)
    clients = aligned(clients, settings, None if begin is None else begin.columns)
    device = usable_device(settings)
    network = world.same_network(network)
    with numerics(settings.precision, device):  # kernels are built as the run will use them
        trainer = Trainer(network, clients, weighting, settings, device, own, world)
    trainer.folder = None if place is None else Path(place)
    trainer.manifest = manifest_of(trainer, weighting)
    if begin is not None:
        trainer.federation.begin(begin.statistics, begin.networks)
        trainer.manifest["start"] = begin.for_manifest()
    writer: Writer | None = None
    if place is not None:
        writer = open_folder(place, trainer, trainer.manifest, resume, world)
        trainer.manifest = writer.manifest
    try:
        with (
            _display(shows if world.leads else [], trainer) as show,
            numerics(settings.precision, trainer.device),
            stoppable(world),
            deferred_interrupt() as interrupt,
        ):
            started = time.perf_counter()
            log.info("round %d of %d: training starts", trainer.round, trainer.rounds)
            trainer.announce()
            checkpoints = Checkpoints(writer, trainer, world)
            if begin is not None and not trainer.history.rows:
                begin.announce()
                checkpoints.write()  # a resumed run does not need the other run
            trainer.train(checkpoints, show, interrupt=interrupt)
        seconds = time.perf_counter() - started
        log.info("round %d: finished in %.1f s", trainer.round, seconds)
        if trainer.ended:
            log.info("round %d: %s", trainer.round, trainer.ended)
        if trainer.diverged:
            log.warning("%s; lower %s", diverged_words(trainer.diverged), trainer.monitor.rates)
        run = trainer.result()
        if writer is not None:
            writer.finish(run)
        return run
    except KeyboardInterrupt:
        where = f"resume from {folder}" if folder is not None else KEPT_RUN
        message = f"stopped after round {trainer.round} of {trainer.rounds}; {where}"
        raise Interrupted(message, trainer.result()) from None
    finally:
        if writer is not None:
            writer.close()


@contextmanager
def _display(shows: Sequence[Show | None], trainer: Trainer) -> Iterator[Show | None]:
    """One function that calls all of these; None is the live display."""
    with ExitStack() as stack:
        each = list[Show]()
        for show in shows:
            if show is None:
                from fedgradnorm._training.display import live_display

                show = stack.enter_context(live_display(trainer.round))
            each.append(show)

        def tell(event: Progress) -> None:
            for show in each:
                try:
                    show(event)
                except (FedGradNormError, BrokenPipeError):
                    raise
                except Exception as error:
                    what = getattr(show, "__name__", type(show).__name__)
                    raise TrainingError(
                        f"callback {what} failed at round {event.round}: "
                        f"{type(error).__name__}: {error}"
                    ) from error

        yield tell if each else None
