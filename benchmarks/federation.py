"""A federation's seconds and bytes a round, and memory of each process, against the network's size.

python benchmarks/federation.py [RESULT.json]

Server, SuperLink and three clients are processes of this machine, with TLS and keys on loopback.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread

import numpy as np
import torch

import fedgradnorm as fgn
from fedgradnorm._flower.join import joined
from fedgradnorm._flower.setup import fill_client, init_federation
from fedgradnorm._flower.trying import free_port
from fedgradnorm.experiments._config.config_file import load_config

RESULTS = Path(__file__).parent / "results"
CLIENTS = ("a", "b", "c")
ROUNDS = 8
NETWORKS = {
    "mlp, 8": 'name = "mlp"\nwidths = [8]\ninputs = 256',
    "mlp, 256 and 128": 'name = "mlp"\nwidths = [256, 128]\ninputs = 256',
    "mlp, 1024 and 512": 'name = "mlp"\nwidths = [1024, 512]\ninputs = 256',
    "Network 2": 'name = "network2"',
}
# What a process is called in the table, and how its command line is told.
ROLES = {
    "server": r"fedgradnorm serve ",
    "SuperLink": r"fedgradnorm\._flower\.wire\.flower",
    "client": r"fedgradnorm join .*--once",
    "client's keeper": r"fedgradnorm join (?!.*--once)",
}
TEXT = """
name = "size"
rounds = {rounds}
[data]
source = "files"
{clients}
[network]
{network}
[local]
batch_size = 64

[compute]
device = "cpu"

[output]
folder = "{folder}"
"""
CLIENT = '[[data.clients]]\nname = "{name}"\ntask = "classification"\ntrain = "{name}.npz"\n'
LINE = re.compile(r"(\S+ \S+),(\d+) INFO round \d+: \d+ answers in ([\d.]+) s")


def peaks(root: int) -> dict[str, float]:
    """The largest peak memory so far of each kind of process below ``root``, in GB."""
    found: dict[str, float] = {}
    for pid in _below(root):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:  # it has just ended
            continue
        role = next((name for name, told in ROLES.items() if re.search(told, words)), None)
        peak = re.search(r"VmHWM:\s+(\d+) kB", status)
        if role and peak:
            found[role] = max(found.get(role, 0.0), round(int(peak[1]) / 1e6, 3))
    return found


def _below(root: int) -> list[int]:
    children = Path(f"/proc/{root}/task").glob("*/children")
    own = [int(pid) for path in children for pid in path.read_text().split()]
    return [pid for child in own for pid in (child, *_below(child))]


@contextmanager
def watched() -> Iterator[dict[str, float]]:
    """Peaks of all processes that were started meanwhile."""
    found: dict[str, float] = {}
    over = Event()

    def watch() -> None:
        while not over.wait(0.2):
            try:
                now = peaks(os.getpid())
            except OSError:
                continue
            found.update({role: max(found.get(role, 0.0), peak) for role, peak in now.items()})

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def write_config(folder: Path, network: str) -> Path:
    rng = np.random.default_rng(0)
    for name in CLIENTS:
        x = rng.normal(size=(1024, 256)).astype(np.float32)
        np.savez(folder / f"{name}.npz", x=x, y=(x[:, 0] > 0).astype(int))
    clients = "".join(CLIENT.format(name=name) for name in CLIENTS)
    path = folder / "size.toml"
    path.write_text(
        TEXT.format(clients=clients, network=network, rounds=ROUNDS, folder=folder / "runs")
    )
    return path


def point(name: str, network: str, folder: Path) -> dict[str, object]:
    path = write_config(folder, network)
    config = load_config(path)
    federation = folder / "federation"
    homes = init_federation(federation, CLIENTS, ["localhost"], free_port(), listen="127.0.0.1")
    for home in homes:
        fill_client(home, config.text(), config.table()["data"])
    command = [sys.executable, "-m", "fedgradnorm", "serve", str(path), "--federation"]
    with watched() as memory, joined(homes):
        subprocess.run([*command, str(federation)], check=True, capture_output=True)
    (place,) = (folder / "runs").iterdir()
    return {"network": name, **facts(place), "peak memory, GB": memory}


def facts(place: Path) -> dict[str, object]:
    """What a finished run's folder tells: size, time and traffic."""
    run = fgn.load(place)
    assert run.network is not None
    lines = LINE.findall((place / "log.txt").read_text())
    ends = [datetime.fromisoformat(f"{when}.{ms}").timestamp() for when, ms, _ in lines]
    gaps = [after - before for before, after in pairwise(ends)]
    return {
        "parameters": sum(p.numel() for p in run.network.parameters()),
        "first round, s": float(lines[0][2]),
        "a round, s": round(statistics.median(gaps), 3),
        "shortest, longest, s": [round(min(gaps), 3), round(max(gaps), 3)],
        "bytes a client and round": run.table.rows[-1]["bytes"] / ROUNDS,
        "load of the last minute": round(os.getloadavg()[0], 2),
    }


def main() -> None:
    rows = []
    for name, network in NETWORKS.items():
        with tempfile.TemporaryDirectory() as folder:
            rows.append(point(name, network, Path(folder)))
        print(rows[-1], flush=True)
    about = {
        "cores": os.cpu_count(),
        "clients": len(CLIENTS),
        "torch": torch.__version__,
        "rounds": ROUNDS,
        "rows": rows,
    }
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS / "federation.json"
    target.write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()
