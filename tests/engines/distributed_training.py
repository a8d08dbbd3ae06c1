"""Trainings for ranks to agree on: ``torchrun ... distributed_training.py FOLDER [CASE...]``.

Rank 0 writes what each case gave to FOLDER/found.json; ``results`` gives the same in this process.
Every rank writes down which threads are left when it ends.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import TensorDataset

import fedgradnorm as fgn
import flat
import toys
from fedgradnorm._launched import asked_for, is_leader, rank
from fedgradnorm.weighting._directions import TrimmedMean
from fedgradnorm.weighting._products import MGDA

SINGLE = torch.float32
PROMISE: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-3, "noise": "seeded"}
LOCAL: dict[str, Any] = {"shared_steps": 2, "participation": 0.7}


def with_statistics(dtype: torch.dtype, bias: bool = False) -> torch.nn.Module:
    """Running statistics without dropout, which depends on who runs in one call."""
    network = toys.noisy_network(dtype, bias=bias)
    network[3].p = 0.0
    return network


class LastRankStops(fgn.Callback):
    """Ends a run at round 5, on the one rank that has it."""

    every = 5

    def on_round(self, state: Any) -> None:
        state.stop("enough")


STILL: dict[str, Any] = {**LOCAL, "network": with_statistics}
CASES: dict[str, dict[str, Any]] = {
    "joint": {},
    "float32": {"dtype": SINGLE},
    "vmap": {"shared_steps": 3, "head_steps": 2},
    "statistics": STILL,
    "private parts": {
        **STILL,
        "shared": "!*Norm*",
        "clip": 1.0,
        "head_clip": 0.5,
        "server_schedule": "cosine",
        "head_schedule": "cosine",
    },
    "idle bias": {**LOCAL, "network": partial(with_statistics, bias=True)},
    "by size, old order": {
        "aggregate": "by_size",
        "step_with": "previous",
        "weight_per": "task",
        "tasks": ("corner", "side", "place", "side"),
    },
    "gram": {"weighting": MGDA},
    "gradients": {"weighting": TrimmedMean},
    "few at a time": {"participation": [["side"], ["corner", "place"]]},
    "final heads": {"final_head_steps": 5, "weighting": fgn.Equal},
    "ditto": {"ditto": 0.5, "weighting": fgn.Equal},
    "alone": {"share": "none", "weighting": fgn.Equal},
    "averaged heads": {"heads": "all", "kinds": ("side", "side", "side", "side")},
    "heads by task, own bias": {
        "heads": "task",
        "head_own": "bias",
        "kinds": ("side", "corner", "side", "side"),
        "tasks": ("one", "two", "one", "one"),
        "participation": 0.7,
    },
    "heads by task": {
        "heads": "task",
        "kinds": ("side", "corner", "side", "side"),
        "tasks": ("one", "two", "one", "one"),
        "participation": 0.7,
    },
    "stopped by one rank": {"callback": LastRankStops},
    "best kept": {"keep": "best", "patience": 1, "eval_every": 2, "lr": 0.3, "rounds": 20},
    "best kept alone": {"keep": "best", "eval_every": 2, "lr": 0.3, "share": "none"},
    "each its best": {"keep": "own_best", "patience": 2, "eval_every": 1, "lr": 0.3},
    "best, then tuned": {
        "personalize": {"steps": 9, "lr": 0.02, "what": "network"},
        "keep": "best",
        "eval_every": 2,
    },
    "started": {**STILL, "start": {**STILL, "rounds": 3}},
    "some evaluated": {"eval_clients": 2, "record_clients": 1, "participation": 0.7},
    "private rows": {"promised": {"side": PROMISE, "side3": {**PROMISE, "epsilon": 2.0}}},
    "private clients": {
        "privacy": {"epsilon": 20.0, "delta": 1e-3, "noise": "seeded"},
        "weighting": partial(fgn.GradNorm, rule="direct"),
        "participation": 0.7,
    },
    "registered": {"registered": 203, "participation": 0.1, "final_head_steps": 1},
    "registered, one unlike": {"registered": 203, "participation": 0.1, "unlike": "side7"},
    "streamed": {"streamed": "side", "participation": 0.7},
    "tuned": {"personalize": {"steps": 9, "lr": 0.02, "what": "network"}},
    "tuned, each its best": {
        "personalize": {"steps": 9, "lr": 0.02, "what": "network"},
        "keep": "own_best",
        "eval_every": 2,
        "head_init": "targets",
    },
}


def train(executor: str, **case: Any) -> fgn.Run:
    """One case; every rank has a generator of its own, and none of that may matter."""
    if "start" in case:
        case["start"] = train(executor, **case["start"])
    case = {"rounds": 8, "batch_size": 8, "lr": 0.02, "eval_every": 4, "seed": 3, **case}
    kinds = case.pop("kinds", (*toys.NAMES, "side"))
    sizes = (48, 30, 24, 20)
    if registered := case.pop("registered", 0):
        kinds, sizes = toys.NAMES * registered, (17, 9, 12, 9) * registered
        kinds, sizes = kinds[:registered], sizes[:registered]
    clients = [
        toys.client(f"{kind}{i}" if i == 3 or kinds.count(kind) > 2 else kind, size, kind)
        for i, (kind, size) in enumerate(zip(kinds, sizes, strict=True))
    ]
    if unlike := case.pop("unlike", None):
        i = [client.name for client in clients].index(unlike)
        clients[i] = replace(clients[i], head=toys.seeded(lambda: torch.nn.Linear(5, 2)))
    for i, task in enumerate(case.pop("tasks", ())):
        clients[i] = replace(clients[i], task=replace(clients[i].task, name=task))
    for name, terms in case.pop("promised", {}).items():
        i = [client.name for client in clients].index(name)
        clients[i] = replace(clients[i], privacy=fgn.Privacy(**terms))
    if "keep" in case or "personalize" in case:
        clients = [
            replace(client, validation=toys.rows(kind, 21))
            for client, kind in zip(clients, kinds, strict=True)
        ]
    if streamed := case.pop("streamed", None):
        i = [client.name for client in clients].index(streamed)
        clients[i] = replace(clients[i], train=TensorDataset(*clients[i].train))
    if (callback := case.pop("callback", None)) and rank() == asked_for() - 1:
        case["callbacks"] = [callback()]
    network = case.pop("network", toys.network)(case.pop("dtype", torch.float64))
    weighting = case.pop("weighting", fgn.GradNorm)()
    return flat.train(
        network, clients, weighting=weighting, executor=executor, device="cpu", **case
    )


def result(run: fgn.Run) -> dict[str, Any]:
    """Networks and heads as lists of numbers, and the whole history."""
    return {
        "networks": {n: toys.parameters(m).tolist() for n, m in run.networks.items()},
        "heads": {n: toys.parameters(m).tolist() for n, m in run.heads.items()},
        "history": run.table.rows,
        "end": {
            key: run.manifest.get(key) for key in ("kept", "stopped_early", "stopped", "personal")
        },
        "clients": run.manifest["clients"],
    }


def results(executor: str, names: list[str]) -> dict[str, Any]:
    return {name: result(train(executor, **CASES[name])) for name in names}


def write_threads(folder: Path) -> None:
    """Registered before the ranks meet, so it is called after they have parted."""
    tasks = Path("/proc/self/task").glob("*/comm")
    names = sorted(task.read_text().strip() for task in tasks)
    (folder / f"threads-{os.environ['RANK']}.txt").write_text("\n".join(names))


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    atexit.register(write_threads, place)
    found = results("auto", sys.argv[2:] or list(CASES))
    if is_leader():
        (place / "found.json").write_text(json.dumps(found))
