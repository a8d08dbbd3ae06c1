"""Clients that share nothing: a round of all at once, one after another, and of FedRep.

    python benchmarks/alone.py                  # alone.json and a table
    python benchmarks/alone.py --device cuda    # alone-gpu.json

139 schools with a small network, the real ones where FEDGRADNORM_DATA names the folder, and ten
clients with Network 1. All three are run in turn, so the ratios are of neighbors in time. On a GPU
whole runs of Network 1 are timed too, with set-up: bare ones, and with evaluations.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import record
import torch
from timing import alternate, quartiles, ratio
from torch import nn
from work import Work, make_clients, make_network

import fedgradnorm as fgn
from fedgradnorm._federation.federation import make_federation
from fedgradnorm._round.numerics import numerics
from fedgradnorm._round.settings import Settings, keywords

COLUMNS = {
    "work": "clients",
    "data": "data",
    "fedrep": "FedRep, ms",
    "at_once": "alone, ms",
    "in_turn": "alone in the loop, ms",
    "to_fedrep": "alone / FedRep",
    "to_loop": "loop / alone",
    "setup": "set-up, s",
    "setup_loop": "set-up of the loop, s",
    "whole": "1,000 rounds, s",
    "weighed": "with evaluations, s",
}
WAYS = {
    "fedrep": {"share": "all"},
    "at_once": {"share": "none"},
    "in_turn": {"share": "none", "executor": "loop"},
}
SCHOOLS, CONVOLUTION = "139 schools, 28-32-16", "10 clients, Network 1"
WHOLE = 3  # runs of 1,000 rounds on a GPU
SIZES = range(16, 189)  # training rows of a school


def schools(count: int) -> tuple[list[fgn.Client], str]:
    """The schools, or as many generated ones of the same shape."""
    if os.environ.get("FEDGRADNORM_DATA"):
        from fedgradnorm.data import school

        return school.clients(schools=range(1, count + 1)), "School"
    rng = np.random.default_rng(0)
    found = []
    for k in range(count):
        x = rng.normal(size=(int(rng.choice(SIZES)), 28)).astype(np.float32)
        y = (x[:, :1] + rng.normal(size=(len(x), 1))).astype(np.float32)
        found.append(fgn.Client(f"school-{k}", fgn.regression(1), (x, y)))
    return found, "generated"


def small_network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(28, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())


class Contestant:
    """One way to train all clients, and how long it took to set it up."""

    def __init__(
        self, network: nn.Module, clients: list[fgn.Client], device: str, **settings: str
    ) -> None:
        how = Settings(rounds=10**6, batch_size=32, first_loss="first_round", **settings)
        started = time.perf_counter()
        self.made = make_federation(network, clients, fgn.Equal(), how, torch.device(device))
        self.setup = time.perf_counter() - started

    def rounds(self, first: int, count: int) -> None:
        done = 0
        while done < count:
            together = min(self.made.rounds_per_call, count - done)
            self.made.rounds(first + done, [self.made.names] * together)
            done += together


def measured(
    name: str,
    data: str,
    clients: list[fgn.Client],
    network: nn.Module,
    device: str,
    count: int,
    repeats: int,
) -> record.Row:
    """A row of the table."""
    with numerics("float32", torch.device(device)):
        Contestant(network, clients[:2], device)  # what is done once in a process
        made = {way: Contestant(network, clients, device, **how) for way, how in WAYS.items()}
        runs: dict[str, Callable[[int, int], None]] = {way: one.rounds for way, one in made.items()}
        times = alternate(runs, count, repeats)
    middle = {way: statistics.median(values) * 1e3 for way, values in times.items()}
    return {
        "work": name,
        "data": data,
        **middle,
        "to_fedrep": ratio(times["at_once"], times["fedrep"]),
        "to_fedrep_quartiles": quartiles(times["at_once"], times["fedrep"]),
        "to_loop": ratio(times["in_turn"], times["at_once"]),
        "to_loop_quartiles": quartiles(times["in_turn"], times["at_once"]),
        "setup": made["at_once"].setup,
        "setup_loop": made["in_turn"].setup,
    }


def whole_run(network: nn.Module, clients: list[fgn.Client], device: str) -> record.Row:
    """Seconds of 1,000 rounds on a GPU: set-up, rounds, history, and networks on the host.

    Bare runs have no evaluations on the way; the others have one after each epoch.
    """

    def seconds(rounds: int, **how: Any) -> float:
        options = keywords({"device": device, "batch_size": 32, "share": "none", **how})
        started = time.perf_counter()
        fgn.train(network, clients, rounds=rounds, **options)
        return time.perf_counter() - started

    row: record.Row = {}
    for kind, how in (("whole", {"eval_every": 0}), ("weighed", {})):
        seconds(10, **how)  # libraries are loaded
        row[kind] = statistics.median(seconds(1000, **how) for _ in range(WHOLE))
    return row


def main() -> None:
    parser = record.options(__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    given = parser.parse_args()
    record.begin(given)
    gpu = given.device == "cuda"
    target: Path = given.out / ("alone-gpu.json" if gpu else "alone.json")
    here, rows = record.about(gpu), []
    count = 1 if given.quick else 200 if gpu else 10  # a GPU runs many rounds at once
    before = record.earlier(target, here, given)
    if record.wanted(SCHOOLS, given):
        clients, data = schools(3 if given.quick else 139)
        how = data, clients, small_network(), given.device, count, given.repeats
        rows.append(measured(SCHOOLS, *how))
    if record.wanted(CONVOLUTION, given):
        work = Work(CONVOLUTION, 3 if given.quick else 10, 32, size=256, network="network1")
        how = (
            "generated",
            make_clients(work),
            make_network(work),
            given.device,
            count,
            given.repeats,
        )
        rows.append(measured(CONVOLUTION, *how))
        if gpu:
            rows[-1] |= whole_run(how[2], how[1], given.device)
    rows = record.merge(before, rows, "work", [SCHOOLS, CONVOLUTION])
    record.write(target, here, rows, COLUMNS)


if __name__ == "__main__":
    main()
