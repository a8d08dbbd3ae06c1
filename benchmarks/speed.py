"""Rounds on a CPU against the plain loop: losses are compared first, then times.

    python benchmarks/speed.py [RESULT.json]

Each row is the median of five repeats; both sides run in this process, with the same threads.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from pathlib import Path

import torch
from work import Work, make_clients, make_ours, make_plain, seconds

import fedgradnorm as fgn

RESULTS = Path(__file__).parent / "results"
WORKS = [
    (Work("3 clients, batch 64, 1 + 1 steps", 3, 64), 10),
    (Work("30 clients, batch 32, 1 + 1 steps", 30, 32, size=256), 3),
    (Work("100 clients, batch 16, 1 + 1 steps", 100, 16, size=128), 2),
    (Work("12 x 256 rows, 10 head + 1 body epochs", 12, 64, 256, 40, 4), 1),
    (Work("12 x 256 rows, 1 head + 1 body epochs", 12, 64, 256, 4, 4), 1),
    (Work("Network 1, 5 clients, batch 64", 5, 64, 3000, network="network1"), 10),
]
PARAMETERS = sum(p.numel() for p in fgn.models.network2().parameters())


def product_rate() -> float:
    """Matrix products per second on this machine, in GFLOP/s."""
    a, b = torch.randn(1024, 2048), torch.randn(2048, 2048)
    for _ in range(3):
        a @ b
    started = time.perf_counter()
    for _ in range(20):
        a @ b
    return 20 * 2 * 1024 * 2048 * 2048 / (time.perf_counter() - started) / 1e9


def measure(work: Work, count: int, rate: float) -> dict[str, object]:
    clients = make_clients(work)
    names = [client.name for client in clients]
    ours, equal = make_ours(work, clients), make_ours(work, clients, fgn.Equal())
    plain = make_plain(work, clients)

    def run(federation: object, first: int, number: int) -> list[float]:
        for k in range(first, first + number):
            outcome = federation.rounds(k, [names])[0]
        return outcome.columns["loss"]

    def run_plain(first: int, number: int) -> None:
        for k in range(first, first + number):
            plain.round(k)

    losses = run(ours, 0, 3)
    run_plain(0, 3)
    gap = max(abs(a - plain.loss[n]) / abs(a) for n, a in zip(names, losses, strict=True))
    fast = seconds(lambda a, n: run(ours, a + 3, n), count, warm=1)
    slow = seconds(lambda a, n: run_plain(a + 3, n), count, warm=1)
    plainly = seconds(lambda a, n: run(equal, a, n), count, warm=1)
    row = {
        "work": work.name,
        "engine": ours.engine.name,
        "ours_s": fast,
        "plain_s": slow,
        "times_faster": slow / fast,
        "gradnorm_over_equal": fast / plainly,
        "loss_gap": gap,
    }
    if work.network == "network2" and work.shared_steps == 1:
        row["share_of_product_rate"] = (
            6 * PARAMETERS * work.clients * work.batch / fast / 1e9 / rate
        )
    return row


def main() -> None:
    rate = product_rate()
    rows = []
    for work, count in WORKS:
        rows.append(measure(work, count, rate))
        print(rows[-1], flush=True)
    about = {
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "product_gflops": rate,
        "rows": rows,
    }
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS / "speed.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()
