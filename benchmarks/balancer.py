"""What a balancer costs: seconds of a training step with it, against the plain step.

    python benchmarks/balancer.py              # a minute on 2 cores; a GPU too, if there is one
    python benchmarks/balancer.py --only CNN --repeats 9 --threads 1

Two tasks on one network, Adam, the last shared layer as the norm layer. Variants take turns within
each repeat. A ratio is the median over repeats of the step's time over that of the plain step,
which adds both losses. On a CPU it is the processor's time, so that other programs on the machine
matter less; with one thread this is the time of a step. Writes balancer.json and balancer.md to
benchmarks/results, or to --out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import record
import timing
import torch
from torch import Tensor, nn

import fedgradnorm as fgn

COLUMNS = {
    "work": "network, batch",
    "device": "device",
    "plain_ms": "plain step, ms",
    "direct": "direct rule",
    "every_10": "every=10",
    "uw": "uncertainty",
    "last_layer": "last shared layer, share of parameters",
}
VARIANTS = {
    "direct": {},
    "every_10": {"every": 10},
    "uw": {"method": "uw"},
}
TASKS = ("classes", "numbers")


def cnn() -> tuple[nn.Module, tuple[int, ...], int]:
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 128)), (3, 32, 32), 128


def mlp() -> tuple[nn.Module, tuple[int, ...], int]:
    layers: list[nn.Module] = []
    for before, after in ((256, 512), (512, 512), (512, 512), (512, 256)):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers), (256,), 256


NETWORKS = {"CNN, batch 64": (cnn, 64), "MLP, batch 128": (mlp, 128)}


def step(
    build: Callable[[], tuple[nn.Module, tuple[int, ...], int]],
    batch: int,
    device: str,
    options: dict[str, object] | None,
) -> tuple[timing.Rounds, float]:
    """A function that takes some training steps, and the norm layer's share of all parameters."""
    torch.manual_seed(0)
    trunk, shape, width = build()
    heads = nn.ModuleDict({"classes": nn.Linear(width, 10), "numbers": nn.Linear(width, 4)})
    model = nn.ModuleDict({"trunk": trunk, "heads": heads}).to(device)
    x = torch.randn(batch, *shape, device=device)
    labels = torch.arange(batch, device=device) % 10
    numbers = torch.randn(batch, 4, device=device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    layer = [m for m in trunk.modules() if isinstance(m, nn.Linear)][-1]
    balance = None if options is None else fgn.Balancer(TASKS, shared=layer, **options)

    def losses() -> dict[str, Tensor]:
        features = trunk(x)
        return {
            "classes": nn.functional.cross_entropy(heads["classes"](features), labels),
            "numbers": nn.functional.mse_loss(heads["numbers"](features), numbers),
        }

    def steps(_: int, count: int) -> None:
        for _ in range(count):
            found = losses()
            loss = sum(found.values()) if balance is None else balance(found)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()

    share = sum(p.numel() for p in layer.parameters()) / sum(p.numel() for p in model.parameters())
    return steps, share


def measure(name: str, device: str, given: argparse.Namespace) -> record.Row:
    """One row: the plain step's milliseconds, and the ratio of each variant."""
    build, batch = NETWORKS[name]
    steps, share = step(build, batch, device, None)
    contestants = {"plain": steps}
    for variant, options in VARIANTS.items():
        contestants[variant], _ = step(build, batch, device, options)
    clock = time.perf_counter if device == "cuda" else time.process_time
    times = timing.alternate(contestants, 2 if given.quick else 10, given.repeats, clock=clock)
    row: record.Row = {"work": name, "device": device, "last_layer": share}
    row["plain_ms"] = 1000 * sorted(times["plain"])[len(times["plain"]) // 2]
    for variant in VARIANTS:
        row[variant] = timing.ratio(times[variant], times["plain"])
        row[f"{variant}_quartiles"] = timing.quartiles(times[variant], times["plain"])
    return row


def main() -> None:
    given = record.options(__doc__ or "").parse_args()
    record.begin(given)
    gpu = torch.cuda.is_available()
    path: Path = given.out / "balancer.json"
    here = record.about(gpu)
    devices = ["cpu", "cuda"] if gpu else ["cpu"]
    names = [name for name in NETWORKS if record.wanted(name, given)]
    rows = [measure(name, device, given) for device in devices for name in names]
    for row in rows:
        row["key"] = f"{row['work']}, {row['device']}"
    before = record.earlier(path, here, given)
    order = [f"{name}, {device}" for device in ("cpu", "cuda") for name in NETWORKS]
    record.write(path, here, record.merge(before, rows, "key", order), COLUMNS)


if __name__ == "__main__":
    main()
