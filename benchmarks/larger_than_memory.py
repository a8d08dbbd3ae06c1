"""A federation whose data is four times its memory: it trains, is killed, and resumes.

    python benchmarks/larger_than_memory.py               # larger_than_memory.json and a table

Three clients read 1 GB each: a memory map, a Parquet file and a Dataset. The limit
is RLIMIT_DATA, which the kernel holds every process to: all memory that it can write to, with
Python and PyTorch. Read-only maps of files do not count, because the kernel can drop their pages.
With --quick the limit is a quarter of the data beyond what the process has without any.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import record
import torch
from torch import nn

import fedgradnorm as fgn
from fedgradnorm import data

WIDTH = 256
KINDS = ("map", "parquet", "items")
TIMES = 4  # data over memory
PIECE = 32768  # rows that are written at a time
STAMPED = ("run.json", "log.txt", ".lock")
COLUMNS = {
    "run": "run",
    "data_gb": "data, GB",
    "limit_gb": "limit, GB",
    "outcome": "outcome",
    "peak_gb": "peak, GB",
    "round_s": "round, s",
    "total_s": "all, s",
}


class Items(torch.utils.data.Dataset[Any]):
    """Rows of a file of numbers, read one by one, with their targets."""

    def __init__(self, path: Path, y: np.ndarray) -> None:
        self.file, self.y = os.open(path, os.O_RDONLY), y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        piece = os.pread(self.file, WIDTH * 4, row * WIDTH * 4)
        return np.frombuffer(piece, dtype=np.float32), self.y[row]


def rows_of(kind: str, size: int) -> Any:
    """The rows of a client, some at a time, and their targets."""
    generator = np.random.default_rng(KINDS.index(kind))
    slope = generator.normal(size=(WIDTH, 1)).astype(np.float32) / WIDTH**0.5
    for start in range(0, size, PIECE):
        x = generator.normal(size=(min(PIECE, size - start), WIDTH)).astype(np.float32)
        yield x, (x @ slope).astype(np.float32)


def write_data(folder: Path, size: int) -> None:
    """All files, in pieces."""
    import pyarrow as pa
    from pyarrow import parquet

    names = [f"c{k}" for k in range(WIDTH)]
    for kind in KINDS:
        targets, shape = [], (size, WIDTH)
        if kind == "map":
            file = np.lib.format.open_memmap(folder / "map.npy", "w+", np.float32, shape)
        elif kind == "parquet":
            schema = pa.schema([(name, pa.float32()) for name in [*names, "y"]])
            file = parquet.ParquetWriter(folder / "parquet.parquet", schema, use_dictionary=False)
        else:
            file = (folder / "items.bin").open("wb")
        for start, (x, y) in zip(range(0, size, PIECE), rows_of(kind, size), strict=True):
            targets.append(y)
            if kind == "map":
                file[start : start + len(x)] = x
            elif kind == "parquet":
                columns = [*(pa.array(c) for c in x.T), pa.array(y[:, 0])]
                file.write_table(pa.Table.from_arrays(columns, [*names, "y"]))
            else:
                file.write(x.tobytes())
        if kind == "map":
            file.flush()
        else:
            file.close()
        np.save(folder / f"{kind}-y.npy", np.concatenate(targets))


def clients(folder: Path, streamed: bool) -> list[fgn.Client]:
    """The three clients; each tests on the first rows of another one's file."""
    y = {kind: np.load(folder / f"{kind}-y.npy") for kind in KINDS}
    if streamed:
        target = data.Target("y", "regression")
        table = data.Table(folder / "parquet.parquet", target, stream=True).client("parquet")
        x: dict[str, Any] = {
            "map": (np.load(folder / "map.npy", mmap_mode="r"), y["map"]),
            "parquet": table.train,
            "items": Items(folder / "items.bin", y["items"]),
        }
    else:
        from pyarrow import parquet

        frame = (
            parquet.ParquetFile(folder / "parquet.parquet")
            .read(use_threads=False)
            .drop_columns("y")
        )
        inputs = {
            "map": np.load(folder / "map.npy"),
            "parquet": np.stack([column.to_numpy() for column in frame.columns], axis=1),
            "items": np.fromfile(folder / "items.bin", np.float32).reshape(-1, WIDTH),
        }
        x = {kind: (rows, y[kind]) for kind, rows in inputs.items()}
    return [fgn.Client(kind, fgn.regression(1), train=x[kind]) for kind in KINDS]


def status(key: str) -> float:
    """A line of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return float(line.split()[1]) * 1024
    raise SystemExit(f"this system does not tell {key}")


class Peak(threading.Thread):
    """The most memory of the process's own (RssAnon) that was seen, every 20 ms."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0.0

    def run(self) -> None:
        while True:
            self.most = max(self.most, status("RssAnon"))
            time.sleep(0.02)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())


def child(given: argparse.Namespace) -> None:
    """Train in this process, under a limit of its memory."""
    folder, run = Path(given.child[0]), Path(given.child[1])
    torch.set_num_threads(1)
    peak = Peak()
    peak.start()
    if given.beyond:  # what a process needs without data is no part of the limit
        rows = (np.zeros((64, WIDTH), dtype=np.float32), np.zeros(64, dtype=np.float32))
        fgn.train(network(), [fgn.Client("a", fgn.regression(1), train=rows)], rounds=2)
        clients(folder / "warm", streamed=True)[2].fingerprint()
        given.limit += status("VmData")
    if given.limit:
        resource.setrlimit(resource.RLIMIT_DATA, (int(given.limit),) * 2)
    seen: list[float] = []

    def progress(event: Any) -> None:
        seen.append(time.perf_counter())
        print(f"round {event.round}", flush=True)

    began = time.perf_counter()
    held = clients(folder, streamed=not given.held)
    if (run / "run.json").exists():
        fgn.resume(run, network(), held, callbacks=[progress])
    else:
        fgn.train(
            network(),
            held,
            rounds=given.rounds,
            lr=1e-3,
            local=fgn.Local(batch_size=64),
            compute=fgn.Compute(executor="loop"),
            callbacks=[
                fgn.Evaluation(every=given.rounds),
                fgn.Checkpoints(every=max(1, given.rounds // 10)),
                progress,
            ],
            folder=run,
        )
    each = [b - a for a, b in itertools.pairwise(seen)]
    found = {
        "peak_gb": peak.most / 1e9,
        "limit_gb": given.limit / 1e9 if given.limit else None,
        "round_s": statistics.median(each),
        "total_s": time.perf_counter() - began,
    }
    print(json.dumps(found), flush=True)


def started(
    folder: Path, run: Path, given: argparse.Namespace, *, held: bool = False, limit: float = 0
) -> subprocess.Popen[str]:
    """A training in a process of its own."""
    words = [sys.executable, __file__, "--child", str(folder), str(run)]
    words += ["--rounds", str(given.rounds), "--limit", str(limit)]
    words += ["--held"] * held + ["--beyond"] * bool(given.quick and limit)
    settings = {
        **os.environ,
        "FEDGRADNORM_CACHE": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
        "ARROW_DEFAULT_MEMORY_POOL": "system",  # its own reserves addresses that it never uses
        "MALLOC_ARENA_MAX": "1",  # else what threads leave unused depends on when they run
    }
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=settings
    )


def finished(process: subprocess.Popen[str]) -> record.Row:
    """What it measured, or how it failed."""
    out, err = process.communicate()
    if process.returncode == 0:
        return {"outcome": "finished", **json.loads(out.splitlines()[-1])}
    words = err.strip().splitlines()[-1] if err.strip() else f"exit {process.returncode}"
    no_memory = ("MemoryError", "allocate", "memory", "Resource temporarily unavailable")
    return {
        "outcome": "out of memory" if any(word in words for word in no_memory) else words,
        "error": words,
    }


def killed(process: subprocess.Popen[str], at: int) -> bool:
    """Kill it (SIGKILL) when it has made so many rounds; whether that was how it ended."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("round ") and int(line.split()[1]) >= at:
            process.send_signal(signal.SIGKILL)
            break
    process.communicate()
    return process.returncode == -signal.SIGKILL


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a run that must not depend on when it was killed."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in STAMPED]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def measure(folder: Path, given: argparse.Namespace, size: int, limit: float) -> list[record.Row]:
    """The runs, each in a process of its own; the one that is killed is compared with the first."""
    whole, broken, free = (folder / name for name in ("whole", "broken", "free"))
    rows: list[record.Row] = []

    def keep(row: record.Row) -> None:
        rows.append({**row, "data_gb": len(KINDS) * size * WIDTH * 4 / 1e9})
        print(rows[-1], file=sys.stderr, flush=True)

    keep({"run": "streamed", **finished(started(folder, whole, given, limit=limit))})
    at = given.rounds * 3 // 10 + 1
    if not killed(started(folder, broken, given, limit=limit), at):
        raise SystemExit("the run ended before it could be killed")
    rest = {"killed_at": at, **finished(started(folder, broken, given, limit=limit))}
    same = contents(whole) == contents(broken)
    if rest["outcome"] == "finished":
        rest["outcome"] = "the same files" if same else "OTHER FILES"
    keep({"run": "killed and resumed", **rest, "same_files": same})
    if record.wanted("in memory", given):
        row = finished(started(folder, folder / "held", given, held=True, limit=limit))
        keep({"run": "in memory", "limit_gb": rows[0].get("limit_gb"), **row})
        row = finished(started(folder, free, given, held=True))
        keep({"run": "in memory, no limit", **row})
        own, other = (fgn.load(run).network for run in (whole, free))
        pairs = zip(own.parameters(), other.parameters(), strict=True)
        gap = max(float((a - b).detach().abs().max()) for a, b in pairs)
        rows[-1]["largest_gap_to_streamed"] = gap
        rows[0]["round_over_memory"] = rows[0]["round_s"] / rows[-1]["round_s"]
    return rows


def main() -> None:
    parser = record.options(__doc__)
    parser.add_argument("--memory", type=float, default=0.75, help="gigabytes that a run is given")
    parser.add_argument("--rounds", type=int, default=0, help="20, or 10 with --quick")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, default=0, help=argparse.SUPPRESS)
    for word in ("--held", "--beyond"):
        parser.add_argument(word, action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given)
        return
    record.begin(given)
    given.rounds = given.rounds or (10 if given.quick else 20)
    memory = 0.064e9 if given.quick else given.memory * 1e9
    size = round(TIMES * memory / len(KINDS) / WIDTH / 4)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "warm").mkdir()
        write_data(folder / "warm", 64)
        write_data(folder, size)
        rows = measure(folder, given, size, memory)
    here = {
        **record.about(),
        "times_the_memory": TIMES,
        "given_gb": memory / 1e9,
        "rounds": given.rounds,
        "rows_each": size,
    }
    record.write(given.out / "larger_than_memory.json", here, rows, COLUMNS)


if __name__ == "__main__":
    main()
