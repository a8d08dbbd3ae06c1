"""What each method's weights cost: time as a share of the round they belong to, and memory.

    python benchmarks/weighting_cost.py              # all methods, about four minutes on 2 cores
    python benchmarks/weighting_cost.py --methods fedgradnorm mgda nash-mtl --rounds 30 --out /tmp/a

Five clients (five classifications), Network 2 (3.9 million parameters), batches of 64. The weights'
part of a round is what the server sees being made ready (a Gram matrix, where one is needed), the
method itself, and a direction of its own where it gives one. ``held`` is what the server holds of
the clients while it weighs them (N gradients, or what stands for them; not the pass itself, which
every engine has). Ditto's personal networks are not in its round here. Every method runs in a
process of its own; ``peak`` is that process's memory above that of equal weights (fedrep).
Writes weighting-cost.json and weighting-cost.md to benchmarks/results, or to --out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

import fedgradnorm as fgn
from fedgradnorm._federation.federation import Federation
from fedgradnorm._methods import METHODS
from fedgradnorm._round.reports import Reports
from fedgradnorm._round.server import coefficients
from fedgradnorm._round.settings import Settings
from fedgradnorm.weighting import Signals, Weighting

RESULTS = Path(__file__).parent / "results"
WARM = 3
CLASSES = (2, 5, 6, 8, 10)
NAMES = [name for name in METHODS if name != "local"]  # which has no server
HEADER = (
    "| method | server sees | executor | round, ms | against fedrep | weights, ms | share "
    "| held, MB | peak, MB |\n|---|---|---|---|---|---|---|---|---|"
)


def clients(classes: tuple[int, ...], rows: int = 640) -> list[fgn.Client]:
    generator = np.random.default_rng(0)
    made = []
    for i, count in enumerate(classes):
        x = generator.normal(size=(rows, 256)).astype(np.float32)
        data = (x, np.arange(rows) % count)
        made.append(fgn.Client(f"client {i}", fgn.classification(count), train=data))
    return made


def weighting(name: str) -> Weighting:
    method = METHODS[name]
    if "folder" in method.options():  # of a finished run; any fixed weights cost the same
        return fgn.Static({f"client {i}": 1.0 + i for i in range(len(CLASSES))})
    return method.build()


def federation(name: str, device: str) -> Federation:
    settings = Settings(**METHODS[name].settings)
    alike = (CLASSES[-1],) * len(CLASSES)  # averaged heads must be of one shape
    torch.manual_seed(0)
    network = fgn.models.network2()
    data = clients(alike if settings.heads == "all" else CLASSES)
    return Federation(network, data, weighting(name), settings, torch.device(device))


def measure(name: str, rounds: int, device: str) -> dict[str, object]:
    """Milliseconds of a round and of its weights, medians; memory in MB."""
    for library in ("torchjd.aggregation", "cvxpy"):  # so that peaks differ by data, not by code
        importlib.import_module(library)
    one = federation(name, device)
    whole, weights, held = [], [], 0
    for k in range(rounds + WARM):
        start = now(device)
        reports = one.engine.run_clients(one.server.shared, k, one.names)
        before = now(device)
        signals = reports.signals(one.server.weighting.needs)
        p = one.server.weighting.update(signals)
        direction = one.server.weighting.direction(signals)
        after = now(device)
        if direction is None:
            direction = reports.aggregate(coefficients(p, signals, one.server.aggregate))
        one.server.step(direction)
        whole.append(now(device) - start)
        weights.append(after - before)
        held = tensor_bytes(reports, signals)
    return {
        "method": name,
        "executor": one.engine.name,
        "round_ms": 1000 * statistics.median(whole[WARM:]),
        "weights_ms": 1000 * statistics.median(weights[WARM:]),
        "held_mb": held / 1e6,
        "peak_mb": peak(device),
    }


def tensor_bytes(reports: Reports, signals: Signals) -> int:
    """Bytes of all tensors that a round's reports and signals hold, each counted once."""
    seen: dict[int, int] = {}

    def look(value: object) -> None:
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes()
        elif isinstance(value, dict):
            for item in value.values():
                look(item)
        elif isinstance(value, (list, tuple)):
            for item in value:
                look(item)

    look([vars(reports), vars(signals)])
    return sum(seen.values())


def now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def peak(device: str) -> float:
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def apart(name: str, given: argparse.Namespace) -> dict[str, object]:
    """The same in a process of its own."""
    words = [sys.executable, __file__, "--one", name]
    words += ["--rounds", str(given.rounds), "--device", given.device]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def row(found: dict[str, float], equal: dict[str, float]) -> str:
    needs = METHODS[str(found["method"])].needs
    sees = ", ".join(str(need.name).lower() for need in needs) if needs else "nothing"
    return (
        f"| {found['method']} | {sees} | {found['executor']} | {found['round_ms']:.1f} "
        f"| {found['round_ms'] / equal['round_ms']:.2f}x | {found['weights_ms']:.2f} "
        f"| {100 * found['weights_ms'] / found['round_ms']:.1f} % | {found['held_mb']:.1f} "
        f"| {found['peak_mb'] - equal['peak_mb']:+.0f} |"
    )


def write(folder: Path, rows: list[dict[str, float]], given: argparse.Namespace) -> None:
    """The results so far: a run that is stopped leaves what it has."""
    folder.mkdir(parents=True, exist_ok=True)
    about = {
        "machine": platform.machine(), "cores": os.cpu_count(), "threads": torch.get_num_threads(),
        "torch": torch.__version__, "device": given.device, "rounds": given.rounds,
    }  # fmt: skip
    text = json.dumps({**about, "rows": rows}, indent=2)
    (folder / "weighting-cost.json").write_text(text + "\n")
    lines = [HEADER, *(row(found, rows[0]) for found in rows)]
    (folder / "weighting-cost.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--methods", nargs="*", choices=NAMES, default=NAMES)
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options.add_argument("--out", type=Path, default=RESULTS)
    options.add_argument("--one", choices=NAMES, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, given.rounds, given.device)))
        return
    names = ["fedrep", *(name for name in given.methods if name != "fedrep")]
    rows: list[dict[str, float]] = []
    started = time.perf_counter()
    print(HEADER)
    for number, name in enumerate(names, start=1):
        rows.append(apart(name, given))
        print(row(rows[-1], rows[0]), flush=True)
        write(given.out, rows, given)
        left = (time.perf_counter() - started) / number * (len(names) - number)
        print(f"{number}/{len(names)}, {left:.0f} s left", file=sys.stderr, flush=True)
    print(f"written: {given.out}/weighting-cost.json and .md", file=sys.stderr)


if __name__ == "__main__":
    main()
