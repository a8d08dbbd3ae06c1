"""What privacy costs in accuracy: School and Landmine at several epsilons, shared and alone.

    python benchmarks/privacy.py [--seeds 5] [--only Landmine]     # about half an hour

Every client promises its rows (epsilon, delta)-differential privacy, with full batches. School is
prepared as in the repository of Liu et al. (arXiv 2206.07902): a fifth of each school's pupils is
held out, scores of 1 to 70 become 0 to 1, delta is 1e-3, clip 1, the model linear (ours has 8
linear features between inputs and output). Their optimizer, batches and 200 rounds are not ours.
They standardize inputs by school, which the budget does not cover: here indicators become -1 and 1,
and percentages -1 to 1. Private runs have 20 rounds, because every round costs; the others 40.
Every arm at every epsilon has a rate and a momentum of its own: those of RATES that do best on the
test rows of seed 0, for clients alone on those of every fourth client. The table has the seeds from
1 on, whose splits are others. It needs the data in the folder named by FEDGRADNORM_DATA; with
--quick toys take its place.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from record import Row, about, begin, earlier, options, wanted, write
from torch import nn

import fedgradnorm as fgn
from fedgradnorm.data import landmine, school

EPSILONS = (1.0, 3.0, 6.0, 8.0, None)
ROUNDS = {"private": 20, "plain": 40}
RATES = ((0.03, 0.0), (0.1, 0.0), (0.3, 0.0), (0.3, 0.7))
"""Learning rates of heads and network, and the momentum of the network."""
Rate = tuple[float, float]
PERCENTAGES = [3, 4]
"""Inputs of School that go from 0 to 100; the others are 0 or 1."""
ARMS = {"shared": {"heads": "all"}, "alone": {"share": "none"}}
THEIRS = {"shared (FedAvg)": 0.02564, "alone": 0.02628, "MR-MTL": 0.02394}
"""Test MSE on School at epsilon 6 that the README of their repository gives."""
COLUMNS = {
    "work": "data, clients", "epsilon": "epsilon", "noise": "noise", "rate": "rate",
    "momentum": "momentum", "mean": "mean", "deviation": "deviation of seeds", "measure": "of",
    "seconds": "s a run",
}  # fmt: skip


class Work(NamedTuple):
    """One data set: its clients, its network and how it is trained and measured."""

    clients: list[fgn.Client]
    features: int
    delta: float
    clip: float
    measures: tuple[str, ...]


def school_work(seed: int, quick: bool) -> Work:
    def unit(pair: Any) -> tuple[torch.Tensor, torch.Tensor]:
        x = pair[0]
        if not quick:
            half = torch.full((x.shape[1],), 0.5)
            half[PERCENTAGES] = 50.0
            x = (x - half) / half
        return x, (pair[1] - 1) / 69

    made = toys("score") if quick else school.clients(test_share=0.2, scaling="none", seed=seed)
    clients = [replace(c, train=unit(c.train), test=unit(c.test)) for c in made]
    return Work(clients, 8, 1e-3, 1.0, ("mse", "explained variance"))


def landmine_work(seed: int, quick: bool) -> Work:
    clients = toys("mine") if quick else landmine.clients(scaling="none", seed=seed)
    return Work(clients, 16, 1e-4, 0.5, ("auc",))


WORKS = {"School": school_work, "Landmine": landmine_work}


def toys(kind: str) -> list[fgn.Client]:
    """Three small clients, where there is no data."""
    rng, found = np.random.default_rng(0), []
    for name in "abc":
        x = rng.normal(size=(60, 5)).astype("float32")
        y = np.clip(35 + 10 * x[:, :1], 1, 70) if kind == "score" else (x[:, 0] > 0).astype(int)
        task = fgn.regression(1) if kind == "score" else fgn.classification(2, metrics=["auroc"])
        found.append(fgn.Client(name, task, train=(x[:40], y[:40]), test=(x[40:], y[40:])))
    return found


def trained(work: Work, epsilon: float | None, arm: str, seed: int, rate: Rate) -> fgn.Run:
    """One run of plain steps, all with the same rate."""
    terms = None if epsilon is None else fgn.Privacy(epsilon, work.delta, work.clip, loss_share=0.0)
    clients = [replace(client, privacy=terms) for client in work.clients]
    torch.manual_seed(seed)
    inputs = int(work.clients[0].train[0].shape[1])
    act = [nn.Tanh()] if "auc" in work.measures else []
    head: dict[str, Any] = {"name": "sgd", "lr": rate[0]}
    server = {**head, "momentum": rate[1]}
    rounds = ROUNDS["plain" if epsilon is None else "private"]
    return fgn.train(
        nn.Sequential(nn.Linear(inputs, work.features), *act), clients,
        weighting=fgn.Equal(),
        seed=seed,
        rounds=rounds,
        local=fgn.Local(batch_size=None, phases="joint", head_optimizer=head),
        server=fgn.Server(server_optimizer=server),
        sharing=fgn.Sharing(head_init="random", **ARMS[arm]),
        callbacks=[fgn.Evaluation(every=0)],
    )  # fmt: skip


def measured(run: fgn.Run, work: Work) -> dict[str, float]:
    """Of all test rows together, or the mean over clients of the area under the curve."""
    table = run.history[run.history["split"] == "test"]
    last = table[table["round"] == table["round"].max()].set_index("client")
    if work.measures == ("auc",):
        return {"auc": float(last["auc" if "auc" in last else "auroc"].mean())}
    true = torch.cat([torch.as_tensor(client.test[1]).reshape(-1) for client in work.clients])
    sizes = {client.name: len(client.test[0]) for client in work.clients}
    error = sum(size * last["loss"][name] for name, size in sizes.items()) / len(true)
    return {"mse": float(error), "explained variance": 1 - float(error / true.double().var())}


def chosen_rate(name: str, arm: str, epsilon: float | None, quick: bool) -> Rate:
    """The rate that does best on seed 0, which is not in the table; one that diverged does not."""
    work, found = WORKS[name](0, quick), dict[Rate, float]()
    if arm == "alone" and not quick:  # each learns by itself, so a part of them tells as much
        work = work._replace(clients=work.clients[::4])
    for rate in RATES[1:3] if quick else RATES:
        try:
            first = next(iter(measured(trained(work, epsilon, arm, 0, rate), work).items()))
        except fgn.TrainingError as error:
            print(f"{name}, {arm}, {epsilon}: rate {rate}: {error}", flush=True)
            continue
        found[rate] = first[1] if first[0] == "auc" else -first[1]
        print(f"{name}, {arm}, {epsilon}: rate {rate}: {first[0]} {first[1]:.4g}", flush=True)
    return max(found, key=lambda rate: found[rate] if math.isfinite(found[rate]) else -math.inf)


def rows_of(name: str, arm: str, epsilon: float | None, seeds: int, quick: bool) -> list[Row]:
    found: list[dict[str, float]] = []
    noises: Sequence[float] = []
    rate = chosen_rate(name, arm, epsilon, quick)
    began = time.perf_counter()
    for seed in range(1, 1 + seeds):
        work = WORKS[name](seed, quick)
        run = trained(work, epsilon, arm, seed, rate)
        found.append(measured(run, work))
        noises = noise_of(run, work, epsilon)
    seconds = (time.perf_counter() - began) / seeds
    about_it = {"work": f"{name}, {arm}", "epsilon": "none" if epsilon is None else epsilon}
    return [
        {
            **about_it,
            "measure": measure,
            "noise": statistics.median(noises) if noises else None,
            "rate": rate[0],
            "momentum": rate[1],
            "mean": statistics.mean(one[measure] for one in found),
            "deviation": statistics.stdev(one[measure] for one in found) if seeds > 1 else 0.0,
            "seeds": seeds,
            "seconds": seconds,
        }
        for measure in work.measures
    ]


def noise_of(run: fgn.Run, work: Work, epsilon: float | None) -> list[float]:
    """The noise multipliers of the clients; all use all rows, so it is one number."""
    if epsilon is None:
        return []
    from fedgradnorm._privacy.plan import Plan

    rounds = int(run.history["round"].max())
    return [Plan(1.0, 1, rounds).noise(fgn.Privacy(epsilon, work.delta))]


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    begin(given)
    path, here = given.out / "privacy.json", {**about(), "theirs": THEIRS}
    rows = earlier(path, here, given)
    for name in WORKS:
        for arm in ARMS:
            for epsilon in EPSILONS:
                if wanted(f"{name}, {arm}, {epsilon}", given):
                    found = rows_of(name, arm, epsilon, given.seeds, given.quick)
                    rows = [row for row in rows if not any(same(row, new) for new in found)]
                    rows = sorted([*rows, *found], key=place)
                    write(path, here, rows, COLUMNS)  # a long run that is stopped leaves its part


def same(one: Row, other: Row) -> bool:
    return all(one[key] == other[key] for key in ("work", "epsilon", "measure"))


def place(row: Row) -> tuple[int, int, str]:
    """A row's place in the table."""
    works = [f"{name}, {arm}" for name in WORKS for arm in ARMS]
    epsilon = None if row["epsilon"] == "none" else row["epsilon"]
    return works.index(row["work"]), EPSILONS.index(epsilon), row["measure"]


if __name__ == "__main__":
    main()
