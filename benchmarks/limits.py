"""How near a FedGradNorm round comes to what the machine can do at all.

    python benchmarks/limits.py                 # the CPU, and the GPU where there is one

Measured in turn with the rounds: the rate of matrix products (1024 x 2048 by 2048 x 2048) and of
copies far larger than any cache. Counted: the floating-point operations and the bytes that a round
cannot do without (``needs`` below). Its limit is the longer of the two times; "reached" is that
limit over the time measured, and "products" the share of the product rate alone.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import record
import torch
from timing import alternate
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from work import Work, make_clients, make_network, make_ours, tiny

from fedgradnorm._round.numerics import numerics

WORKS = [
    Work("3 clients, batch 64, 1 + 1 steps", 3, 64, rounds=10),
    Work("30 clients, batch 32, 1 + 1 steps", 30, 32, 256, rounds=3),
    Work("100 clients, batch 16, 1 + 1 steps", 100, 16, 128, rounds=2),
    Work("300 clients, batch 64, 1 + 1 steps", 300, 64, 256),
    Work("12 x 256 rows, 10 head + 1 body epochs", 12, 64, 256, 40, 4),
    Work("12 x 256 rows, 1 head + 1 body epochs", 12, 64, 256, 4, 4),
    Work("Network 1, 5 clients, batch 64", 5, 64, 3000, network="network1", rounds=10),
]
GPU_ROUNDS = 200  # a repeat: rounds of a fraction of a millisecond, captured and replayed
SIDES = 1024, 2048, 2048
COPIED = 1 << 28  # bytes
NUMBER = 4  # bytes of a float32
COLUMNS = {
    "work": "work",
    "device": "device",
    "executor": "executor",
    "round_s": "round, s",
    "gflop": "GFLOP",
    "gb": "GB",
    "product_gflops": "products, GFLOP/s",
    "copy_gbs": "copies, GB/s",
    "products": "products",
    "reached": "reached",
}


class Needs(NamedTuple):
    """What a round cannot do without."""

    flops: float
    bytes: float


def needs(work: Work) -> Needs:
    """Operations and bytes of a round.

    Operations: products of the network, forward and backward, for every row of every shared step;
    forward only for the other rows that the heads are trained on, each once. Bytes: an activation
    is written once and read twice, forward and for the weights' gradient, and so is its gradient;
    a step reads the weights twice and writes a gradient. After the clients' first step each has a
    network of its own: then it counts for each, with its update and its share in the mean. Adam
    reads four numbers of a parameter and writes three. Heads are too small to count.
    """
    network = make_network(work)
    parameters = sum(p.numel() for p in network.parameters())
    rows = work.clients * work.batch
    frozen = max(0, min(work.head_steps * work.batch, work.size) - work.batch) * work.clients
    forward, both = operations(network, work)
    widths = sum(activations(network, work))
    flops = work.shared_steps * rows * both + frozen * forward
    numbers = work.shared_steps * rows * 6 * widths + frozen * 2 * widths
    networks = 1 if work.shared_steps == 1 else work.shared_steps * work.clients
    each = 3 if work.shared_steps == 1 else 3 + 3 + 3
    numbers += (networks * each + 7) * parameters
    return Needs(flops, NUMBER * numbers)


def operations(network: nn.Module, work: Work) -> tuple[float, float]:
    """Operations for one row: forward, and forward and backward; counted, not executed."""
    with FlopCounterMode(display=False) as forward:
        output = network.to("meta")(example(work))
    with FlopCounterMode(display=False) as backward:
        output.sum().backward()
    once = forward.get_total_flops()
    return once, once + backward.get_total_flops()


def activations(network: nn.Module, work: Work) -> list[int]:
    """Numbers for one row after each layer; an activation is fused with the layer before it."""
    sizes: list[int] = []
    layers = [m for m in network.modules() if isinstance(m, (nn.Linear, nn.Conv2d, nn.MaxPool2d))]
    hooks = [m.register_forward_hook(lambda _, __, out: sizes.append(out.numel())) for m in layers]
    network.to("meta")(example(work))
    for hook in hooks:
        hook.remove()
    return sizes


def example(work: Work) -> Tensor:
    shape = (1, 1, 40, 40) if work.network == "network1" else (1, 256)
    return torch.empty(shape, device="meta")


def products(device: str) -> Callable[[int, int], None]:
    """Runs ``count`` matrix products."""
    a, b = torch.randn(*SIDES[:2], device=device), torch.randn(*SIDES[1:], device=device)
    out = torch.empty(SIDES[0], SIDES[2], device=device)
    return repeated(lambda: torch.mm(a, b, out=out), device)


def copies(device: str, size: int) -> Callable[[int, int], None]:
    """Runs ``count`` copies of ``size`` bytes."""
    source = torch.ones(size // NUMBER, device=device)
    target = torch.zeros_like(source)
    return repeated(lambda: target.copy_(source), device)


def repeated(work: Callable[[], object], device: str) -> Callable[[int, int], None]:
    def rounds(_first: int, count: int) -> None:
        for _ in range(count):
            work()
        if device == "cuda":
            torch.cuda.synchronize()

    return rounds


def measure(work: Work, device: str, given: argparse.Namespace) -> record.Row:
    ours = make_ours(work, make_clients(work), device=device)
    ours.rounds(0, 10 if device == "cuda" else 1)
    size = COPIED >> 6 if given.quick else COPIED
    runs = {"round": ours.rounds, "product": products(device), "copy": copies(device, size)}
    times = alternate(runs, work.rounds, given.repeats, first=10)
    each = {name: statistics.median(values) for name, values in times.items()}
    product_rate = 2 * SIDES[0] * SIDES[1] * SIDES[2] / each["product"]
    copy_rate = 2 * size / each["copy"]  # read and written
    need = needs(work)
    limit = max(need.flops / product_rate, need.bytes / copy_rate)
    return {
        "row": f"{work.name}, {device}",
        "work": work.name,
        "device": device,
        "executor": ours.engine,
        "round_s": each["round"],
        "gflop": need.flops / 1e9,
        "gb": need.bytes / 1e9,
        "product_gflops": product_rate / 1e9,
        "copy_gbs": copy_rate / 1e9,
        "products": need.flops / product_rate / each["round"],
        "reached": limit / each["round"],
    }


def main() -> None:
    parser = record.options(__doc__)
    both = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    parser.add_argument("--devices", nargs="*", choices=["cpu", "cuda"], default=both)
    given = parser.parse_args()
    record.begin(given)
    target, here, rows = given.out / "limits.json", record.about("cuda" in given.devices), []
    before = record.earlier(target, here, given)
    order = [f"{work.name}, {device}" for device in given.devices for work in WORKS]
    for device in given.devices:
        for work in WORKS:
            if record.wanted(f"{work.name}, {device}", given):
                with numerics("tf32", torch.device(device)):
                    rows.append(measure(sized(work, device, given), device, given))
                print(rows[-1], file=sys.stderr, flush=True)
    record.write(target, here, record.merge(before, rows, "row", order), COLUMNS)


def sized(work: Work, device: str, given: argparse.Namespace) -> Work:
    if given.quick:
        return tiny(work)
    if device == "cuda":
        return replace(work, rounds=GPU_ROUNDS if work.shared_steps == 1 else 5)
    return work


if __name__ == "__main__":
    main()
