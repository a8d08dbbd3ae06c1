"""Executors on the field's standard workloads: several local steps and dropout, loop against vmap.

    python benchmarks/executors.py                     # executors.json and a table, on a CPU
    python benchmarks/executors.py --device cuda       # executors-gpu.json; graphs too

FedAvg and FedRep train a CNN with dropout: 1,000 users of 50 images 3x32x32, 50 users per round,
five SGD steps of batch 10. The small federation has 100 clients, a 28-32-16 network with dropout,
batch 16 and five local steps. Executors run in turn; ratios are of neighbors in time. On a GPU a
whole FedAvg run of 1,500 rounds is timed too, and pfl-research on the same work where it is there.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import record
import torch
from timing import alternate, ratio
from torch import nn

import fedgradnorm as fgn
from fedgradnorm._federation.federation import make_federation
from fedgradnorm._round.numerics import numerics
from fedgradnorm._round.participation import participants
from fedgradnorm._round.settings import Settings, keywords

SGD = {"name": "sgd", "lr": 0.1}
FEDAVG = {
    "shared_steps": 5,
    "phases": "joint",
    "sends": "model",
    "heads": "all",
    "head_optimizer": SGD,
    "local_optimizer": SGD,
    "server_optimizer": {"name": "sgd", "lr": 1.0},
}
FEDREP = {"shared_steps": 5, "head_steps": 5, "local_optimizer": SGD, "head_optimizer": SGD}
COLUMNS = {
    "work": "work",
    "loop": "loop, ms",
    "vmap": "vmap, ms",
    "graph": "graph, ms",
    "pfl": "pfl, ms",
    "loop_over_vmap": "loop / vmap",
    "loop_over_graph": "loop / graph",
    "pfl_over_vmap": "pfl / vmap",
    "whole": "1,500 rounds, s",
}
WHOLE = 1500


@dataclass(frozen=True)
class Federated:
    """A workload: its clients, its network and its settings."""

    name: str
    clients: int
    share: float
    settings: dict[str, Any] = field(hash=False)
    images: bool = True

    def network(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return cnn() if self.images else small()

    def made(self) -> list[fgn.Client]:
        rng, found = np.random.default_rng(0), []
        shape, size, classes = ((3, 32, 32), 50, 10) if self.images else ((28,), 64, 3)
        for k in range(self.clients):
            x = rng.normal(size=(size, *shape)).astype(np.float32)
            y = rng.integers(classes, size=size)
            y[:classes] = np.arange(classes)
            found.append(fgn.Client(f"user-{k}", fgn.classification(classes), (x, y)))
        return found


def cnn() -> nn.Module:
    """Two convolutions and a dense layer with dropout; the head is the second dense layer."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout(0.25), nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Dropout(0.5),
    )  # fmt: skip


def small() -> nn.Module:
    return nn.Sequential(
        nn.Linear(28, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 16), nn.ReLU()
    )


WORKS = [
    Federated("FedAvg, CNN with dropout, 50 of 1,000 users", 1000, 0.05, FEDAVG),
    Federated("FedRep, CNN with dropout, 50 of 1,000 users", 1000, 0.05, FEDREP),
    Federated("100 clients, 28-32-16 with dropout", 100, 1.0, FEDREP, images=False),
]


class Contestant:
    """One executor on a workload; ``together`` rounds are asked for at once."""

    def __init__(self, work: Federated, clients: list[fgn.Client], engine: str, device: str):
        batch = 10 if work.images else 16
        how = {"first_loss": "first_round", "head_init": "random", "batch_size": batch}
        settings = Settings(rounds=10**6, lr=0.1, executor=engine, **how, **work.settings)
        self.federation = make_federation(
            work.network(), clients, fgn.Equal(), settings, torch.device(device)
        )
        self.share = work.share

    def rounds(self, first: int, count: int, together: int = 1) -> None:
        names, done = self.federation.names, 0
        while done < count:
            some = range(first + done, first + min(done + together, count))
            actives = [participants(self.share, 0, names, k) for k in some]
            self.federation.rounds(some.start, actives)
            done += len(some)
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def measured(work: Federated, device: str, repeats: int, quick: bool) -> record.Row:
    """Milliseconds per round of each executor."""
    clients = work.made()[: 4 if quick else None]
    work = Federated(work.name, len(clients), 0.5, work.settings, work.images) if quick else work
    loop, vmap = (Contestant(work, clients, engine, device) for engine in ("loop", "vmap"))
    count = 1 if quick else 3
    times = alternate({"loop": loop.rounds, "vmap": vmap.rounds}, count, repeats)
    row = {"work": work.name, **{k: 1e3 * statistics.median(v) for k, v in times.items()}}
    row["loop_over_vmap"] = ratio(times["loop"], times["vmap"])
    if device == "cuda":
        graphs = Contestant(work, clients, "vmap", device)
        graphs.rounds(0, 10, together=5)
        seconds = []
        for k in range(repeats):
            started = time.perf_counter()
            graphs.rounds(100 * (k + 1), 50, together=50)
            seconds.append((time.perf_counter() - started) / 50)
        row["graph"] = 1e3 * statistics.median(seconds)
        row["loop_over_graph"] = row["loop"] / row["graph"]
        row["why_no_graph"] = graphs.federation.graphs.why_not()
    if work.settings is FEDAVG and importlib.util.find_spec("pfl"):
        row |= beside_pfl(work, clients, vmap, device, repeats, count)
    return row


def beside_pfl(
    work: Federated,
    clients: list[fgn.Client],
    ours: Contestant,
    device: str,
    repeats: int,
    count: int,
) -> record.Row:
    """pfl-research and ours in turn, on the same network, clients and number of steps."""
    from rival_pfl import PflAveraging

    network = nn.Sequential(*work.network(), nn.Linear(128, 10))
    cohort = round(work.share * len(clients))
    pfl = PflAveraging(network, clients, device, cohort=cohort, batch=10, steps=5, lr=0.1)
    times = alternate({"pfl": pfl.rounds, "vmap": ours.rounds}, count, repeats)
    return {
        "pfl": 1e3 * statistics.median(times["pfl"]),
        "pfl_over_vmap": ratio(times["pfl"], times["vmap"]),
    }


def whole(work: Federated, rounds: int) -> float:
    """Seconds of a whole run through ``fgn.train``, from arrays to the trained network."""
    clients = work.made()
    started = time.perf_counter()
    fgn.train(
        work.network(),
        clients,
        weighting=fgn.Equal(),
        **keywords(
            {
                "rounds": rounds,
                "batch_size": 10,
                "lr": 0.1,
                "participation": work.share,
                "first_loss": "first_round",
                "eval_every": 0,
                "head_init": "random",
                "device": "cuda",
                "precision": "tf32",
                **work.settings,
            }
        ),
    )
    return time.perf_counter() - started


def main() -> None:
    parser = record.options(__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=WHOLE, help="of the whole run on a GPU")
    given = parser.parse_args()
    record.begin(given)
    gpu = given.device == "cuda"
    target: Path = given.out / ("executors-gpu.json" if gpu else "executors.json")
    here, rows = record.about(gpu), []
    before = record.earlier(target, here, given)
    for work in WORKS:
        if not record.wanted(work.name, given) or (work.images and not gpu and not given.quick):
            continue
        with numerics("tf32" if gpu else "float32", torch.device(given.device)):
            rows.append(measured(work, given.device, given.repeats, given.quick))
        if gpu and work is WORKS[0] and not given.quick:
            rows[-1]["whole"], rows[-1]["whole_rounds"] = whole(work, given.rounds), given.rounds
        print(rows[-1], flush=True)
    rows = record.merge(before, rows, "work", [work.name for work in WORKS])
    record.write(target, here, rows, COLUMNS)


if __name__ == "__main__":
    main()
