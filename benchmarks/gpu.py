"""Rounds on a GPU: ours as captured graphs, beside the plain loop, after comparing their losses.

python benchmarks/gpu.py            # writes benchmarks/results/gpu.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from work import Work, make_clients, make_ours, make_plain, seconds

RESULTS = Path(__file__).parent / "results"
WORKS = [
    Work("3 clients", 3, 64),
    Work("30 clients", 30, 64),
    Work("300 clients", 300, 64, size=256),
    Work("Network 1, 5 clients", 5, 64, network="network1"),
]


def main() -> None:
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    rows = []
    for work in WORKS:
        clients = make_clients(work)
        ours, plain = (
            make_ours(work, clients, device="cuda"),
            make_plain(work, clients, device="cuda"),
        )
        names = [c.name for c in clients]

        def run_ours(first: int, count: int, ours=ours, names=names) -> None:
            done = 0
            while done < count:
                burst = min(ours.burst, count - done)
                outcome = ours.rounds(first + done, [names] * burst)[-1]
                done += burst
            run_ours.last = outcome.columns["loss"]  # type: ignore[attr-defined]
            torch.cuda.synchronize()

        def run_plain(first: int, count: int, plain=plain) -> None:
            for k in range(first, first + count):
                plain.round(k)
            torch.cuda.synchronize()

        run_ours(0, 10)
        run_plain(0, 10)
        gap = max(
            abs(a - plain.loss[n]) / max(abs(plain.loss[n]), 1e-9)
            for n, a in zip(names, run_ours.last, strict=True)  # type: ignore[attr-defined]
        )
        count = 400 if work.clients < 300 else 100
        fast = seconds(lambda a, n: run_ours(a + 10, n), count)
        slow = seconds(lambda a, n: run_plain(a + 10, n), 3, repeats=3, warm=1)
        rows.append(
            {
                "work": work.name,
                "ours_ms": 1e3 * fast,
                "plain_ms": 1e3 * slow,
                "ratio": slow / fast,
                "loss_gap_after_10_rounds": gap,
                "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
            }
        )
        print(rows[-1], flush=True)
        torch.cuda.reset_peak_memory_stats()
    RESULTS.mkdir(exist_ok=True)
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS / "gpu.json"
    target.write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()
