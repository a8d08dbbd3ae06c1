"""Rounds on a GPU: ours as captured graphs, next to the plain loop, after comparing their losses.

python benchmarks/gpu.py            # a table and gpu.json
"""

from __future__ import annotations

import statistics
import sys
import time

import record
import torch
from timing import alternate
from work import Work, loss_gap, make_clients, make_ours, make_plain, tiny

from fedgradnorm._round.numerics import numerics

WORKS = [
    Work("3 clients", 3, 64, rounds=400),
    Work("30 clients", 30, 64, rounds=400),
    Work("300 clients", 300, 64, size=256, rounds=400),
    Work("Network 1, 5 clients", 5, 64, network="network1", rounds=400),
]
WAYS = {"": {}, "compiled_": {"compile": True}, "bf16_": {"precision": "bf16"}}  # of ours
COMPARED = 10  # rounds after which losses are compared
COLUMNS = {
    "work": "work",
    "ours_ms": "ours, ms",
    "compiled_ms": "ours compiled, ms",
    "bf16_ms": "ours in bf16, ms",
    "plain_ms": "plain loop, ms",
    "ratio": "plain / ours",
    "compiled_ratio": "plain / compiled",
    "compiled_start": "compiling, s",
    "peak_gb": "peak memory, GB",
}


def measure(work: Work, repeats: int) -> record.Row:
    """Milliseconds a round of ours (as it is, compiled, in bf16) and of the plain loop."""
    clients = make_clients(work)
    plain = make_plain(work, clients, device="cuda")
    plain.rounds(0, COMPARED)
    slow = statistics.median(alternate({"": plain.rounds}, 3, repeats, COMPARED)[""])
    row: record.Row = {"work": work.name, "plain_ms": 1e3 * slow}
    reference = make_plain(work, clients, device="cuda")
    reference.rounds(0, COMPARED)
    for prefix, how in WAYS.items():
        with numerics(how.get("precision", "tf32"), torch.device("cuda")):
            started = time.perf_counter()
            ours = make_ours(work, clients, device="cuda", **how)
            ours.rounds(0, COMPARED)
            row[f"{prefix}start"] = time.perf_counter() - started
            row[f"{prefix}loss_gap"] = loss_gap(reference.loss, ours.loss)
            times = alternate({"": ours.rounds}, work.rounds, repeats, COMPARED)[""]
        row[f"{prefix or 'ours_'}ms"] = 1e3 * statistics.median(times)
        row[f"{prefix}ratio"] = slow / statistics.median(times)
    row["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
    return row


def main() -> None:
    given = record.options(__doc__).parse_args()
    if not torch.cuda.is_available():
        print("no GPU here: nothing measured", file=sys.stderr)
        return
    record.begin(given)
    torch.set_float32_matmul_precision("high")  # of the plain loop
    torch.backends.cudnn.allow_tf32 = True
    target, here, rows = given.out / "gpu.json", record.about(gpu=True), []
    before = record.earlier(target, here, given)
    for work in WORKS:
        if record.wanted(work.name, given):
            torch.cuda.reset_peak_memory_stats()
            rows.append(measure(tiny(work) if given.quick else work, given.repeats))
            print(rows[-1], file=sys.stderr, flush=True)
    rows = record.merge(before, rows, "work", [work.name for work in WORKS])
    record.write(target, here, rows, COLUMNS)


if __name__ == "__main__":
    main()
