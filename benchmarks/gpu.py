"""Rounds on a GPU: ours as captured graphs, beside the plain loop, after comparing their losses.

python benchmarks/gpu.py            # writes benchmarks/results/gpu.json
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from work import Work, make_clients, make_ours, make_plain, seconds

import fedgradnorm as fgn

RESULTS = Path(__file__).parent / "results"
WORKS = [
    Work("3 clients", 3, 64),
    Work("30 clients", 30, 64),
    Work("300 clients", 300, 64, size=256),
    Work("Network 1, 5 clients", 5, 64, network="network1"),
]


class Timed:
    """Our rounds on the GPU, in bursts; ``last`` is the losses of the last one."""

    def __init__(self, work: Work, clients: list[fgn.Client], compile: bool) -> None:
        self.names = [client.name for client in clients]
        started = time.perf_counter()
        self.ours = make_ours(work, clients, device="cuda", compile=compile)
        self(0, 10)
        self.start_seconds = time.perf_counter() - started

    def __call__(self, first: int, count: int) -> None:
        done = 0
        while done < count:
            burst = min(self.ours.burst, count - done)
            self.last = self.ours.rounds(first + done, [self.names] * burst)[-1].columns["loss"]
            done += burst
        torch.cuda.synchronize()


def measure(work: Work) -> dict[str, object]:
    """Milliseconds a round: ours, ours compiled, and the plain loop, whose losses must agree."""
    clients = make_clients(work)
    row: dict[str, object] = {"work": work.name}
    plain = make_plain(work, clients, device="cuda")

    def run_plain(first: int, count: int) -> None:
        for k in range(first, first + count):
            plain.round(k)
        torch.cuda.synchronize()

    run_plain(0, 10)
    count = 400 if work.clients < 300 else 200
    for key, compiled in (("ours", False), ("compiled", True)):
        torch.cuda.reset_peak_memory_stats()
        timed = Timed(work, clients, compiled)
        gaps = [
            abs(loss - plain.loss[name]) / max(abs(plain.loss[name]), 1e-9)
            for name, loss in zip(timed.names, timed.last, strict=True)
        ]
        row[f"{key}_loss_gap_after_10_rounds"] = max(gaps)
        row[f"{key}_start_seconds"] = timed.start_seconds
        row[f"{key}_ms"] = 1e3 * seconds(lambda a, n, t=timed: t(a + 10, n), count)
        row[f"{key}_peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
    row["plain_ms"] = 1e3 * seconds(lambda a, n: run_plain(a + 10, n), 3, repeats=3, warm=1)
    return row


def main() -> None:
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    rows = []
    for work in WORKS:
        rows.append(measure(work))
        print(rows[-1], flush=True)
    RESULTS.mkdir(exist_ok=True)
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS / "gpu.json"
    target.write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()
