"""The work that is measured: clients, networks and a federation ready to run rounds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from plain import PlainLoop

import fedgradnorm as fgn
from fedgradnorm.data.batches import Batches
from fedgradnorm.federation import Federation, federations, make_head
from fedgradnorm.settings import Settings


@dataclass(frozen=True)
class Work:
    """A set-up whose rounds are timed."""

    name: str
    clients: int
    batch: int
    size: int = 1024
    head_steps: int = 1
    shared_steps: int = 1
    network: str = "network2"


def make_clients(work: Work, seed: int = 0) -> list[fgn.Client]:
    """Random signals (or pictures) with three kinds of task in turn."""
    rng = np.random.default_rng(seed)
    shape = (1, 40, 40) if work.network == "network1" else (256,)
    kinds = [fgn.classification(6), fgn.classification(2), fgn.regression(1)]
    clients = []
    for i in range(work.clients):
        x = rng.normal(size=(work.size, *shape)).astype(np.float32)
        task = kinds[i % 3]
        flat = x.reshape(work.size, -1)
        y = flat[:, :1] if task.kind == "regression" else flat[:, : task.outputs].argmax(axis=1)
        clients.append(fgn.Client(f"client-{i}", task, (x, y)))
    return clients


def make_network(work: Work) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return getattr(fgn.models, work.network)()


def make_ours(
    work: Work,
    clients: list[fgn.Client],
    weighting: fgn.Weighting | None = None,
    device: str = "cpu",
    engine: str = "auto",
    compile: bool = False,
) -> Federation:
    settings = Settings(
        rounds=10**6,
        batch_size=work.batch,
        head_steps=work.head_steps,
        shared_steps=work.shared_steps,
        first_loss="first_round",
        engine=engine,
        compile=compile,
    )
    weighting = fgn.GradNorm() if weighting is None else weighting
    return federations(make_network(work), clients, weighting, settings, torch.device(device))[0]


def make_plain(
    work: Work, clients: list[fgn.Client], weigh: bool = True, device: str = "cpu"
) -> PlainLoop:
    network = make_network(work)
    steps = max(work.head_steps, work.shared_steps)
    return PlainLoop(
        network,
        {c.name: make_head(network, c, 0) for c in clients},
        clients,
        Batches({c.name: c.size for c in clients}, work.batch, 0, steps),
        head_steps=work.head_steps,
        shared_steps=work.shared_steps,
        lr=2e-4,
        weigh=weigh,
        device=device,
    )


def seconds(
    rounds: Callable[[int, int], None], count: int, repeats: int = 5, warm: int = 4
) -> float:
    """Median seconds of one round: ``rounds(first, count)`` runs some."""
    rounds(0, warm)
    times, at = [], warm
    for _ in range(repeats):
        started = time.perf_counter()
        rounds(at, count)
        times.append((time.perf_counter() - started) / count)
        at += count
    return statistics.median(times)
