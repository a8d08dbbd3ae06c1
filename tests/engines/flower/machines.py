"""A federation of real processes on loopback: a server, a SuperLink, and three clients."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedgradnorm._flower.setup import fill_client, init_federation
from fedgradnorm._flower.trying import free_port
from fedgradnorm.experiments._config.config_file import load_config

NAMES = ("class", "value", "side")
RUN = "machines-fedgradnorm-seed0"
SHARING = """[keep_best]
[sharing]
heads = "task"
head_own = "bias"
[personalization]
personalize = { steps = 10, lr = 0.02, what = "network" }
"""
"""All that clients share besides the network, or keep to themselves; it needs ``TASKS``."""
TASKS = {"sorting": {"outputs": 2, "clients": ["class", "side"]}}
TEXT = """
name = "machines"
method = "fedgradnorm"
rounds = {rounds}
lr = 0.01
[data]
source = "files"
[[data.clients]]
name = "class"
task = "classification"
task_name = "sorting"
validation_share = 0.3
train = "class.npz"
[[data.clients]]
name = "value"
task = "regression"
train = "value.npz"
[[data.clients]]
name = "side"
task = "classification"
task_name = "sorting"
validation_share = 0.3
train = "side.npz"
[network]
name = "mlp"
widths = {widths}
inputs = 3
[local]
batch_size = 8

[compute]
device = "cpu"

[evaluation]
every = {evaluate}
{training}
[output]
folder = "{folder}"
"""


class Machines:
    """Folders as they would lie on four machines, and the processes that work in them."""

    def __init__(
        self,
        folder: Path,
        rounds: int,
        hosts: tuple[str, ...] = ("localhost", "127.0.0.1"),
        training: str = "",
        evaluate: int = 0,
        widths: tuple[int, ...] = (6, 5),
        **terms: Any,
    ) -> None:
        self.folder, rng = folder, np.random.default_rng(0)
        x = rng.normal(size=(40, 3)).astype(np.float32)
        targets = {"class": (x[:, 0] > 0).astype(int), "value": 30 * x[:, :1]}
        for name in NAMES:
            np.savez(folder / f"{name}.npz", x=x, y=targets.get(name, (x[:, 1] > 0).astype(int)))
        self.config, self.run = folder / "machines.toml", folder / "runs" / RUN
        given = {"rounds": rounds, "training": training, "evaluate": evaluate}
        given["widths"] = list(widths)
        self.config.write_text(TEXT.format(folder=folder / "runs", **given))
        config, terms = load_config(self.config), {"listen": "127.0.0.1", **terms}
        self.federation, self.port = folder / "federation", free_port()
        homes = init_federation(self.federation, NAMES, hosts, self.port, **terms)
        for home in homes:
            fill_client(home, config.text(), config.table()["data"])
        self.homes = dict(zip(NAMES, homes, strict=True))

    @contextmanager
    def started(self, *words: Any) -> Iterator[subprocess.Popen[str]]:
        """A command of ours as a process; it is gone afterwards, whatever happens."""
        process = subprocess.Popen(
            [sys.executable, "-m", "fedgradnorm", *map(str, words)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()

    def serve(self, *words: Any) -> Any:
        return self.started("serve", self.config, "--federation", self.federation, *words)

    def rounds(self) -> int:
        """Rounds in the run's table so far."""
        path = self.run / "metrics.csv"
        lines = path.read_text().splitlines()[1:] if path.exists() else []
        return max((int(line.split(",")[0]) for line in lines), default=0)


def finished(process: subprocess.Popen[str], code: int, seconds: float = 300) -> str:
    out, _ = process.communicate(timeout=seconds)
    assert process.returncode == code, out
    return out


def until(true: Callable[[], Any], seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.05)


def children(process: subprocess.Popen[Any]) -> list[int]:
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(word) for word in path.read_text().split()]


def most_memory(pid: int) -> float:
    """MB that a process has held at most."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
