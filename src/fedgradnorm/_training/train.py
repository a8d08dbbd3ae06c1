"""``fgn.train``: the one function that trains."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import nn

from fedgradnorm._checks import flag
from fedgradnorm._client import Client
from fedgradnorm._engines.ranks import stoppable
from fedgradnorm._errors import Interrupted
from fedgradnorm._federation.sharing import aligned, check_clients, sized
from fedgradnorm._privacy.terms import ClientPrivacy
from fedgradnorm._round.local_update import FirstLoss, ReportLoss, Schedule, Update
from fedgradnorm._round.numerics import numerics
from fedgradnorm._round.participation import Participation
from fedgradnorm._round.server import Aggregate, Order
from fedgradnorm._round.settings import (
    EngineName,
    Heads,
    HeadStart,
    Keep,
    Key,
    Precision,
    Settings,
    Share,
)
from fedgradnorm._runs.about import diverged_words
from fedgradnorm._runs.after.starting import Start, checked_start
from fedgradnorm._runs.folder import Place
from fedgradnorm._runs.run import Run
from fedgradnorm._training.callbacks import Callback, Show
from fedgradnorm._training.checkpoints import Checkpoints, Writer, open_folder
from fedgradnorm._training.describe import about_run
from fedgradnorm._training.inputs import (
    check_is_module,
    check_progress,
    checked_callbacks,
    checked_clients,
    checked_folder,
    checked_weighting,
    meet,
    usable_device,
)
from fedgradnorm._training.interrupt import deferred_interrupt
from fedgradnorm._training.trainer import Trainer
from fedgradnorm.models._dividing import divided
from fedgradnorm.weighting import Equal, GradNorm, Weighting

log = logging.getLogger("fedgradnorm")


def train(
    network: nn.Module,
    clients: Sequence[Client],
    *,
    weighting: Weighting | None = None,
    rounds: int | None = None,
    epochs: float | None = None,
    batch_size: int | None = 64,
    head_steps: int = 1,
    shared_steps: int = 1,
    lr: float = 2e-4,
    head_optimizer: str | dict[str, Any] = "adam",
    server_optimizer: str | dict[str, Any] = "adam",
    local_optimizer: str | dict[str, Any] = "sgd",
    server_schedule: str | dict[str, Any] | list[Any] | None = None,
    head_schedule: str | dict[str, Any] | list[Any] | None = None,
    clip: float | None = None,
    head_clip: float | None = None,
    first_loss: FirstLoss = "dataset",
    update: Update = "gradient",
    report_loss: ReportLoss = "before",
    schedule: Schedule = "alternating",
    proximal: float = 0.0,
    final_head_steps: int = 0,
    heads: Heads = "own",
    head_own: str | list[str] | None = None,
    head_start: HeadStart = "auto",
    personalize: dict[str, Any] | None = None,
    ditto: float = 0.0,
    aggregate: Aggregate = "mean",
    order: Order = "new",
    key: Key = "client",
    share: Share = "all",
    participation: Participation = 1.0,
    shared: str | list[str] = "*",
    frozen: str | list[str] | None = None,
    privacy: ClientPrivacy | dict[str, Any] | None = None,
    gauge: str | list[str] | None = None,
    engine: EngineName = "auto",
    device: str = "auto",
    precision: Precision = "float32",
    compile: bool = False,
    seed: int = 0,
    log_every: int = 1,
    eval_every: int | None = None,
    keep: Keep = "last",
    patience: int | None = None,
    checkpoint_every: int | None = None,
    record_conflict: int = 0,
    eval_clients: int | float | None = None,
    record_clients: int | list[str] | None = None,
    start: Run | None = None,
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool | Show = False,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Train one shared network and a personal head per client.

    Args:
        network: any module from an input row to a feature vector; it is copied, never changed.
        clients: who takes part; see :class:`fedgradnorm.Client`.
        weighting: how the server weighs clients; the paper's ``GradNorm(gamma=0.9)`` by default,
            or ``Equal()`` where nothing is shared.
        rounds, epochs: how long; a round is one communication, an epoch one pass over the largest
            client's training rows. Ten epochs if neither is given.
        batch_size: rows per local step (a smaller client uses all its rows); None for all rows.
        head_steps, shared_steps: local steps per round on the head, then on the shared network.
        lr: learning rate of every network optimiser that does not name its own.
        head_optimizer, server_optimizer, local_optimizer: a torch.optim class by name, or a table
            such as ``{"name": "sgd", "lr": 0.1, "momentum": 0.9}``. The head's is kept across
            rounds, the server's steps ``shared``, the local one steps a client's copy of it. Weight
            decay is an option of theirs: ``{"name": "adamw", "weight_decay": 0.01}``.
        server_schedule, head_schedule: how the rate of the server's optimiser, or of the heads',
            goes from round to round: a class of torch.optim.lr_scheduler by name ("cosine",
            "StepLR"), a table with its options, or a list of these, which act one after the other.
        clip: the largest length of a client's gradient on the shared network; at every local step,
            before anything is weighed, a longer one is scaled to it. Gauge norms are those of what
            is left.
        head_clip: the same for the gradient of a client's head and all that is private to it.
        first_loss: F_0: over the training ``dataset`` before any update, of the ``first_round``,
            or ``log_classes``.
        update: a client sends the mean raw ``gradient``, the ``delta`` of its copy over
            (steps x lr), or its ``model``: with server SGD of rate 1 the server then averages
            models. The gauge norm is always that of the mean raw gradient.
        report_loss: measured ``before`` each local step, or ``after`` it.
        schedule: ``alternating`` (head, then shared network) or both ``together``.
        proximal: FedProx's mu: local steps are pulled back to the shared network they began with.
        final_head_steps: steps on each head alone after the last round (FedBABU).
        heads: each client keeps its ``own``; or clients of one ``task`` have one head, the average
            of their heads after every round; or ``all`` have (FedAvg). Tasks with the same name are
            one task. Tasks without names are one if kind, outputs and label names agree; without
            label names they are taken for one, with a warning, only if all such tasks agree. It
            is an error if no two clients share a task. Heads that are averaged must have one shape
            and the same labels in the same order.
        head_own: which parameters of a shared head each client keeps for itself, trained on its own
            data and never averaged: names or patterns of names, such as "bias" or "*.bias". With
            "bias", clients share the weights and differ in level or prevalence.
        head_start: what a head first answers, where we make it: the mean (for classes: the shares)
            of the client's training ``targets``, or something ``random``, as in the paper. At the
            targets, first losses are those of the trivial answer, and loss ratios mean the same for
            all tasks. ``auto`` begins there, but at random with ``privacy`` of the client, heads in
            common (unless ``head_own`` has the bias), a loss or kind of one's own, and targets that
            are read with their rows.
        personalize: after everything else each client tunes a copy of its own on its training rows,
            such as ``{"steps": 200, "lr": 2e-4, "what": "head"}``: the head alone, with the whole
            ``network``, or with a list of its layers. It keeps the step with the best validation
            loss, step 0 included; a client without validation rows takes the last one. With
            ``"alone": True`` each client also trains alone (``share="none"``, the same settings)
            and keeps what does best on its validation rows: shared, tuned (``steps`` may be 0) or
            alone.
        ditto: Ditto's lambda: if > 0 each client also trains a network of its own, pulled toward
            the shared one; evaluations and predictions are then the personal networks'.
        aggregate: clients count the same (``mean``), or ``by_size``.
        order: the network steps with the ``new`` weights (FedGradNorm) or the ``old`` (GradNorm).
        key: one weight per ``client``, or per ``task``. Which clients share a task is decided as
            for ``heads``. It is an error if no two do, except with MGDA, which is FSMGDA then.
        share: ``all`` train one network, or ``none``: each client trains alone.
        participation: share of clients per round, drawn from the seed; or a list of names; or a
            list of such lists, taken in turn.
        shared: which parameters are shared: patterns of names of parameters or layers, or of
            classes of layers; all by default. One that begins with ``!`` takes out what it matches:
            ``["!*Norm*"]`` is FedBN. The rest is private: each client has its own copy, trained
            with its head. Parameters without ``requires_grad`` are frozen.
        frozen: which parameters are not trained at all, by such patterns.
        privacy: client-level differential privacy of the shared network, for hundreds of clients:
            see :class:`fedgradnorm.ClientPrivacy`. The privacy of records is a client's own.
        gauge: layers or parameters whose gradient is measured; the last shared one by default.
        engine: how clients are run: one at a time (``loop``, the reference), all clients of one
            structure in one call (``vmap``), or all clients in one pass (``joint``). ``auto`` picks
            the fastest that can run them, and under torchrun spreads clients over the processes.
        device: "cpu", "cuda", or "auto".
        precision: of matrix products: ``float32``, or on a GPU ``tf32``, or ``bf16`` for those of
            the shared network, evaluations included.
        compile: on a GPU, let torch.compile fuse the small operations of weights and optimizers.
            Compiling takes some seconds, so use it for long runs; results change by rounding only.
        seed: decides heads, batches, participation and dropout.
        log_every: rounds between two rows of a client's own reports in the history.
        eval_every: rounds between two evaluations; once an epoch by default; 0 is at the end alone.
        keep: the ``last`` state, or the ``best`` one of all evaluations: that with the highest mean
            over clients of (first - loss) / max(first, loss), with losses of the validation rows.
            With ``own_best`` the shared network is that of ``best``, and each client whose own loss
            was lowest in another round has network and head of that round for itself.
        patience: end a run that keeps its best after this many evaluations without a better one.
            With the default ``eval_every``, at least 50 rounds must have passed as well: an epoch
            of small clients is a single round. With "own_best" each client waits that long, and
            the run ends when no client waits any more.
        checkpoint_every: rounds between two checkpoints; by default an epoch, or as many as make
            checkpoints a twentieth of the time, but no more than the epoch that ends after 5 s.
        record_conflict: the cosine between every two clients' updates is recorded in the first of
            so many rounds, see ``Run.conflict``; 0 is never. It changes results by rounding only.
        eval_clients: how many clients an evaluation is of (100), or which share of them (0.1),
            drawn for each evaluation from the seed; all by default. The last evaluation is of all
            clients where there are 1,000 at most.
        record_clients: whose rows the history keeps: so many clients, drawn from the seed, or these
            names. By default everybody's; of more than 500 clients those of 48, and of everybody
            the first and the last evaluation. ``Run.spread`` has quantiles over all clients.
        start: go on from a finished run: its network, and the heads and running statistics of
            clients that it knows. Optimisers and weights start again; new clients get fresh heads.
        folder: where to keep config, log, metrics and checkpoints; nothing is written without it.
        resume: go on with the run in ``folder``.
        progress: True for a live display in the terminal, or a function to call after each round.
        callbacks: your own :class:`fedgradnorm.Callback` objects, such as
            :class:`fedgradnorm.EarlyStopping`: they see every round, and can stop the run.

    Returns:
        A :class:`fedgradnorm.Run`.
    """
    given = dict(locals())
    settings = Settings(**{field.name: given[field.name] for field in fields(Settings)})
    return train_with(
        network,
        clients,
        weighting,
        settings,
        start=start,
        folder=folder,
        resume=resume,
        progress=progress,
        callbacks=callbacks,
    )


def train_with(
    network: nn.Module,
    clients: Sequence[Client],
    weighting: Weighting | None,
    settings: Settings,
    *,
    start: Run | None = None,
    folder: Place | None = None,
    resume: bool = False,
    progress: bool | Show = False,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """What :func:`fedgradnorm.train` does, once its keywords are :class:`Settings`."""
    weighting, clients = checked_weighting(weighting), checked_clients(clients)
    check_is_module(network)
    network = sized(network, clients, settings.seed)
    network = divided(network, settings.shared, settings.frozen)
    check_progress(progress)
    callbacks = checked_callbacks(callbacks)
    resume, place = flag("resume", resume), checked_folder(folder)
    begin: Start | None = None
    if (other := checked_start(start)) is not None:
        check_clients(clients, settings)
        begin = Start(other, network, clients, settings)
        network, clients = begin.network, begin.clients
    world = meet(settings.engine)
    if weighting is None:
        weighting = GradNorm() if settings.share == "all" else Equal()
    clients = aligned(clients, settings, None if begin is None else begin.columns)
    device = usable_device(settings)
    network = world.same_network(network)
    with numerics(settings.precision, device):  # kernels are built as the run will use them
        trainer = Trainer(network, clients, weighting, settings, device, callbacks, world)
    trainer.folder = None if place is None else Path(place)
    trainer.about = about_run(trainer, network, weighting)
    if begin is not None:
        trainer.begin(begin.statistics, begin.networks)
        trainer.about["start"] = begin.about()
    writer: Writer | None = None
    if place is not None:
        writer = open_folder(place, trainer, trainer.about, resume, world)
        trainer.about = writer.about
    try:
        with (
            _display(progress if world.leads else False, trainer) as show,
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
        where = f"; resume from {folder}" if folder is not None else ""
        alone = ", while clients trained alone" if trainer.training_alone else ""
        message = f"stopped after round {trainer.round} of {trainer.rounds}{alone}{where}"
        raise Interrupted(message, trainer.result()) from None
    finally:
        if writer is not None:
            writer.close()


def _display(progress: bool | Show, trainer: Trainer) -> AbstractContextManager[Show | None]:
    if progress is True:
        from fedgradnorm._training.display import live_display

        return live_display(trainer.round)
    return nullcontext(progress or None)
