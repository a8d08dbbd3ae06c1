"""The work that is measured: clients, networks and a federation ready to run rounds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from plain import PlainLoop

import fedgradnorm as fgn
from fedgradnorm._federation.federation import Federation, make_federation
from fedgradnorm._federation.heads import make_head
from fedgradnorm._round.batches import Batches
from fedgradnorm._round.settings import Precision, Settings


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
    weigh: bool = True  # FedGradNorm; without, FedRep: every client counts the same
    rounds: int = 1  # a repeat


LR = 2e-4  # of heads, local steps and server


def tiny(work: Work) -> Work:
    """The same, so small that it only shows that everything still runs."""
    return replace(
        work,
        clients=min(work.clients, 3),
        batch=8,
        size=16,
        head_steps=min(work.head_steps, 4),
        shared_steps=min(work.shared_steps, 2),
        rounds=1,
    )


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


class Ours:
    """A federation of this package, run like every other contestant."""

    def __init__(self, federation: Federation) -> None:
        self.federation, self.engine = federation, federation.engine.name
        self.loss: dict[str, float] = {}

    def rounds(self, first: int, count: int) -> None:
        """Rounds ``first`` to ``first + count``, as many per call as the engine runs."""
        names, done = self.federation.names, 0
        while done < count:
            together = min(self.federation.rounds_per_call, count - done)
            outcome = self.federation.rounds(first + done, [names] * together)[-1]
            done += together
        self.loss = dict(zip(names, outcome.columns["loss"], strict=True))


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
    precision: Precision = "float32",
) -> Ours:
    settings = Settings(
        rounds=10**6,
        batch_size=work.batch,
        head_steps=work.head_steps,
        shared_steps=work.shared_steps,
        first_loss="first_round",
        executor=engine,
        compile=compile,
        precision=precision,
        lr=LR,
        head_init="random",  # as every rival's, see make_heads
    )
    if weighting is None:
        weighting = fgn.GradNorm() if work.weigh else fgn.Equal()
    network, place = make_network(work), torch.device(device)
    federation = make_federation(network, clients, weighting, settings, place)
    assert isinstance(federation, Federation)
    return Ours(federation)


def make_heads(network: torch.nn.Module, clients: list[fgn.Client]) -> dict[str, torch.nn.Module]:
    """The heads that our federation starts with."""
    return {client.name: make_head(network, client, 0) for client in clients}


def make_batches(work: Work, clients: list[fgn.Client]) -> Batches:
    """The rows that our federation reads."""
    steps = max(work.head_steps, work.shared_steps)
    return Batches({client.name: client.size for client in clients}, work.batch, 0, steps)


def make_plain(work: Work, clients: list[fgn.Client], device: str = "cpu") -> PlainLoop:
    network = make_network(work)
    return PlainLoop(
        network,
        make_heads(network, clients),
        clients,
        make_batches(work, clients),
        head_steps=work.head_steps,
        shared_steps=work.shared_steps,
        lr=LR,
        weigh=work.weigh,
        device=device,
    )


def loss_gap(one: dict[str, float], other: dict[str, float]) -> float:
    """The largest relative difference between two contestants' losses."""
    return max(abs(other[name] - loss) / abs(loss) for name, loss in one.items())
