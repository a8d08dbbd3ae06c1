"""What each method's weights cost: time beside the round it belongs to, and memory.

    python benchmarks/weighting_cost.py              # all methods, about ten minutes on 2 cores
    python benchmarks/weighting_cost.py --methods fedgradnorm mgda nash-mtl --rounds 30

Five clients (five classifications), Network 2 (3.9 million parameters), batches of 64. The weights'
part of a round is what the server sees being made ready (a Gram matrix, where one is needed), the
method itself, and a direction of its own where it gives one. Every method runs in a process of its
own; peak memory is that process's, less that of equal weights in the same engine.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

import numpy as np
import torch

import fedgradnorm as fgn
from fedgradnorm.experiments.methods import METHODS
from fedgradnorm.federation import Federation
from fedgradnorm.server import coefficients
from fedgradnorm.settings import Settings
from fedgradnorm.weighting import Needs

NAMES = [
    method.name
    for method in METHODS.values()
    if "folder" not in method.options() and (method.needs or method.name in ("fedrep", "rlw"))
]


def clients(rows: int = 640) -> list[fgn.Client]:
    generator = np.random.default_rng(0)
    made = []
    for i, classes in enumerate((2, 5, 6, 8, 10)):
        x = generator.normal(size=(rows, 256)).astype(np.float32)
        made.append(fgn.Client(f"client {i}", fgn.classification(classes),
                               train=(x, np.arange(rows) % classes)))  # fmt: skip
    return made


def federation(name: str, engine: str, device: str) -> Federation:
    settings = {**METHODS[name].settings, "engine": engine}
    weighting = METHODS[name].build()
    torch.manual_seed(0)
    network = fgn.models.network2()
    return Federation(network, clients(), weighting, Settings(**settings), torch.device(device))


def measure(name: str, engine: str, rounds: int, device: str) -> dict[str, object]:
    """Milliseconds of a round and of its weights, medians; peak memory in MB."""
    one = federation(name, engine, device)
    whole, weights = [], []
    for k in range(rounds + 3):
        start = now(device)
        reports = one.engine.run_clients(one.server.shared.data, k, one.names)
        before = now(device)
        signals = reports.signals(one.server.weighting.needs)
        p = one.server.weighting.update(signals)
        direction = one.server.weighting.direction(signals)
        after = now(device)
        if direction is None:
            direction = reports.aggregate(coefficients(p, signals, "mean"))
        one.server.shared.grad = direction
        one.server.optimizer.step()
        whole.append(now(device) - start)
        weights.append(after - before)
    return {
        "engine": one.engine.name,
        "round": 1000 * statistics.median(whole[3:]),
        "weights": 1000 * statistics.median(weights[3:]),
        "memory": peak(device),
    }


def now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def peak(device: str) -> float:
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def apart(name: str, engine: str, given: argparse.Namespace) -> dict[str, object]:
    """The same in a process of its own."""
    words = [sys.executable, __file__, "--one", name, "--engine", engine]
    words += ["--rounds", str(given.rounds), "--device", given.device]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--methods", nargs="*", choices=NAMES, default=NAMES)
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options.add_argument("--one", choices=NAMES, help=argparse.SUPPRESS)
    options.add_argument("--engine", default="auto", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, given.engine, given.rounds, given.device)))
        return
    equal = {}
    print("| method | server sees | engine | round, ms | weights, ms | share | memory, MB |")
    print("|---|---|---|---|---|---|---|")
    for name in given.methods:
        found = apart(name, "auto", given)
        engine = str(found["engine"])
        if engine not in equal:
            equal[engine] = apart("fedrep", engine, given)["memory"]
        needs = METHODS[name].needs
        sees = ", ".join(str(need.name).lower() for need in needs) if needs else "nothing"
        assert Needs.GRAM not in needs or engine != "joint"
        share = 100 * found["weights"] / found["round"]
        more = found["memory"] - equal[engine]
        print(
            f"| {name} | {sees} | {engine} | {found['round']:.1f} | {found['weights']:.2f} "
            f"| {share:.1f} % | {more:+.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
