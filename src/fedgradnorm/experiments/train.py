"""``fgn.train``: the one function that trains."""

from __future__ import annotations

import logging
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedgradnorm.checks import flag
from fedgradnorm.client import SPLITS, Client
from fedgradnorm.client_round import FirstLoss, ReportLoss, Schedule, Update
from fedgradnorm.engines.ranks import RankLost, World, stoppable
from fedgradnorm.errors import ConfigError, Interrupted, TrainingError
from fedgradnorm.experiments.due import Checkpoints
from fedgradnorm.experiments.inputs import (
    check_network,
    check_progress,
    checked_clients,
    checked_folder,
    checked_weighting,
)
from fedgradnorm.experiments.interrupt import held_back
from fedgradnorm.experiments.ranked import Keeper, agreed, meet, open_folder
from fedgradnorm.experiments.run import FORMAT, Run, blueprints
from fedgradnorm.experiments.trainer import Progress, Trainer
from fedgradnorm.instructions import require_bf16
from fedgradnorm.numerics import numerics
from fedgradnorm.participation import Participation
from fedgradnorm.seeding import number
from fedgradnorm.server import Aggregate, Order
from fedgradnorm.settings import EngineName, Key, Precision, Settings, Share
from fedgradnorm.weighting import Weighting

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
    first_loss: FirstLoss = "dataset",
    update: Update = "gradient",
    report_loss: ReportLoss = "before",
    schedule: Schedule = "alternating",
    proximal: float = 0.0,
    final_head_steps: int = 0,
    average_heads: bool = False,
    ditto: float = 0.0,
    aggregate: Aggregate = "mean",
    order: Order = "new",
    key: Key = "client",
    share: Share = "all",
    participation: Participation = 1.0,
    gauge: str | list[str] | None = None,
    engine: EngineName = "auto",
    device: str = "auto",
    precision: Precision = "float32",
    compile: bool = False,
    seed: int = 0,
    log_every: int = 1,
    eval_every: int | None = None,
    checkpoint_every: int | None = None,
    record_conflict: int = 0,
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool | Callable[[Progress], None] = False,
) -> Run:
    """Train one shared network and a personal head per client.

    Args:
        network: any module from an input row to a feature vector; it is copied, never changed.
        clients: who takes part; see :class:`fedgradnorm.Client`.
        weighting: how the server weighs clients; the paper's ``GradNorm(gamma=0.9)`` by default.
        rounds, epochs: how long; a round is one communication, an epoch one pass over the largest
            client's training rows. Ten epochs if neither is given.
        batch_size: rows per local step (a smaller client uses all its rows); None for all rows.
        head_steps, shared_steps: local steps per round on the head, then on the shared network.
        lr: learning rate of every network optimiser that does not name its own.
        head_optimizer, server_optimizer, local_optimizer: a torch.optim class by name, or a table
            such as ``{"name": "sgd", "lr": 0.1, "momentum": 0.9}``. The head's is kept across
            rounds, the server's steps ``shared``, the local one steps a client's copy of it.
        first_loss: F_0: over the training ``dataset`` before any update, of the ``first_round``,
            or ``log_classes``.
        update: a client sends the mean raw ``gradient``, the ``delta`` of its copy over
            (steps x lr), or its ``model``: with server SGD of rate 1 the server then averages
            models. The gauge norm is always that of the mean raw gradient.
        report_loss: measured ``before`` each local step, or ``after`` it.
        schedule: ``alternating`` (head, then shared network) or both ``together``.
        proximal: FedProx's mu: local steps are pulled back to the shared network they began with.
        final_head_steps: steps on each head alone after the last round (FedBABU).
        average_heads: heads are averaged in every round too (FedAvg); they must be of one shape.
        ditto: Ditto's lambda: if > 0 each client also trains a network of its own, pulled toward
            the shared one; evaluations and predictions are then the personal networks'.
        aggregate: clients count the same (``mean``), or ``by_size``.
        order: the network steps with the ``new`` weights (FedGradNorm) or the ``old`` (GradNorm).
        key: one weight per ``client``, or per ``task`` (clients whose tasks share a name).
        share: ``all`` train one network, or ``none``: each client trains alone.
        participation: share of clients per round, drawn from the seed; or a list of names; or a
            list of such lists, taken in turn.
        gauge: layers or parameters whose gradient is measured; the last layer by default.
        engine: who runs the clients; ``auto`` picks the fastest that is right, and under torchrun
            spreads them over its processes (``distributed``).
        device: "cpu", "cuda", or "auto".
        precision: of products: ``float32``, ``tf32`` (GPU), or ``bf16`` for those of the shared
            network, evaluations included.
        compile: on a GPU, let torch.compile fuse a round's small kernels. It takes some seconds at
            the start, so it pays in long runs; numbers change by rounding only.
        seed: decides heads, batches, participation and dropout.
        log_every: rounds between two rows of a client's own reports in the history.
        eval_every: rounds between two evaluations; once an epoch by default; 0 is at the end alone.
        checkpoint_every: rounds between two checkpoints; by default an epoch, or as many as make
            checkpoints a twentieth of the time, but no more than the epoch that ends after 5 s.
        record_conflict: the cosine between every two clients' updates is recorded in the first of
            so many rounds, see ``Run.conflict``; 0 is never. It changes nothing else.
        folder: where to keep config, log, metrics and checkpoints; nothing is written without it.
        resume: go on with the run in ``folder``.
        progress: True for a live display in the terminal, or a function to call after each round.

    Returns:
        A :class:`fedgradnorm.experiments.run.Run`.
    """
    given = locals()
    settings = Settings(**{f.name: given[f.name] for f in fields(Settings)})
    weighting, clients = checked_weighting(weighting), checked_clients(clients)
    check_network(network)
    check_progress(progress)
    resume, place = flag("resume", resume), checked_folder(folder)
    world = meet(settings.engine)
    found = usable_device(settings)
    network = world.same_network(network)
    trainer = Trainer(network, clients, weighting, settings, found)
    about = _about(trainer, network, weighting)
    keeper: Keeper | None = None
    if place is not None:
        keeper = open_folder(place, trainer, about, resume, world)
        about = keeper.about
    display = _display(progress if world.leads else False, trainer)
    try:
        with display as show, numerics(settings.precision, trainer.device), stoppable(world):
            _fit(trainer, keeper, show, world)
        run = trainer.result(about)
        if keeper is not None:
            keeper.finish(run)
        return run
    except KeyboardInterrupt:
        where = f"; resume from {folder}" if folder is not None else ""
        message = f"stopped after round {trainer.round} of {trainer.rounds}{where}"
        raise Interrupted(message, trainer.result(about)) from None
    finally:
        if keeper is not None:
            keeper.close()


def _fit(
    trainer: Trainer,
    keeper: Keeper | None,
    show: Callable[[Progress], None] | None,
    world: World,
) -> None:
    """All remaining rounds, with evaluations and checkpoints on the way."""
    started = time.perf_counter()
    evaluate = trainer.every(trainer.settings.eval_every)
    checkpoints = Checkpoints(keeper, trainer, world)
    log.info("round %d of %d: training starts", trainer.round, trainer.rounds)
    trainer.announce()
    with held_back() as held:
        let_through = agreed(world, held)
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
                    show(replace(event, rows=trainer.history.news()))
                let_through()
            except KeyboardInterrupt:
                checkpoints.write()
                raise
    log.info("round %d: finished in %.1f s", trainer.round, time.perf_counter() - started)


def _until_next(round_number: int, *intervals: int) -> int:
    """Rounds until the next evaluation or checkpoint is due."""
    return min((every - round_number % every for every in intervals if every), default=1 << 30)


def _display(progress: bool | Callable[[Progress], None], trainer: Trainer) -> Any:
    if progress is True:
        from fedgradnorm.experiments.display import live_display

        return live_display(trainer.round)
    return nullcontext(progress or None)


def usable_device(settings: Settings) -> torch.device:
    """Where a run is trained; a ConfigError unless device and precision can be used here.

    It is asked before anything is computed: later, oneDNN's instructions cannot be chosen.
    """
    device = _device(settings.device)
    if settings.precision == "bf16":
        require_bf16(device)
    return device


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {name!r} cannot be used here: {reason}") from error
    return device


def _about(trainer: Trainer, network: nn.Module, weighting: Weighting) -> dict[str, Any]:
    """What is stored with every run, so that anyone can make it again."""
    from fedgradnorm.version import __version__

    argv0 = Path(sys.argv[0]).name  # where it lies on this machine is nobody's business
    heads = {n: h for f in trainer.federations for n, h in f.engine.heads().items()}
    return {
        "format": FORMAT,
        "finished": False,
        "settings": asdict(trainer.settings),
        "weighting": describe_weighting(weighting),
        "clients": {name: _client_info(client) for name, client in trainer.clients.items()},
        "rounds": trainer.rounds,
        "gauge": list(trainer.federations[0].gauge),
        "network": describe_network(network),
        "blueprints": blueprints(network, heads),
        "command": ["fedgradnorm" if argv0 == "__main__.py" else argv0, *sys.argv[1:]],
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": {
            "fedgradnorm": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "platform": platform.platform(),
            "threads": torch.get_num_threads(),
        },
    }


def describe_network(network: nn.Module) -> dict[str, Any]:
    """The network's class, its size, and a hash of its layers and shapes."""
    layers = [(name, type(part).__qualname__) for name, part in network.named_modules()]
    shapes = [(name, tuple(p.shape)) for name, p in network.named_parameters()]
    return {
        "class": type(network).__qualname__,
        "parameters": sum(p.numel() for p in network.parameters()),
        "structure": f"{number(layers, shapes):016x}",
    }


def describe_weighting(weighting: Weighting) -> dict[str, Any]:
    """The weighting's class and plain settings."""
    plain = (bool, int, float, str)
    settings: Mapping[str, Any] = {
        key: value
        for key, value in vars(weighting).items()
        if not key.startswith("_") and isinstance(value, plain)
    }
    weights = getattr(weighting, "weights", None)
    extra = {"weights": weights} if isinstance(weights, dict) else {}
    return {"name": type(weighting).__name__, **settings, **extra}


def _client_info(client: Client) -> dict[str, Any]:
    return {
        "kind": client.task.kind,
        "outputs": client.task.outputs,
        "task": client.task_name,
        "loss_scale": client.task.loss_scale,
        "size": client.size,
        "labels": list(client.labels) if client.labels else None,
        "columns": list(client.columns) if client.columns else None,
        "splits": {s: len(pair[0]) for s in SPLITS if (pair := getattr(client, s)) is not None},
        "inputs": list(client.train[0].shape[1:]),
        "fingerprint": client.fingerprint(),
    }
