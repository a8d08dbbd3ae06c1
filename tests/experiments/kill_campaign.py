"""Runs killed at random moments: ``python kill_campaign.py FOLDER SEED KILLS``.

One process imports everything and forks children that train. Each is killed (SIGKILL) after a
random time, also before it has written anything, and another continues, until the run is finished.
A finished run is compared with one that nobody killed, file by file and byte by byte.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from experiments.small_config import small_config
from fedgradnorm.experiments._config.config_file import load_config
from fedgradnorm.experiments._execute import LoadedData, execute, load_data

STAMPED = ("run.json", "log.txt", ".lock")
"""Files that hold times, or nothing."""


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a run that must not depend on when it was killed."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in STAMPED]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


class Campaign:
    """Runs of one config in one parent folder."""

    def __init__(self, parent: Path, seed: int) -> None:
        self.parent, self.chance = parent, random.Random(seed)
        words = ["rounds=8", "evaluation.every=3"]
        self.config = load_config(small_config(parent), words)
        self.data: LoadedData = load_data(self.config)
        self.kills = self.runs = self.different = 0
        started = time.monotonic()
        if self._child(parent / "whole", None) != 0:
            raise SystemExit("the undisturbed run failed")
        self.longest = time.monotonic() - started
        self.expected = contents(parent / "whole")

    def _child(self, folder: Path, after: float | None) -> int:
        """Train in a child, killed after so many seconds; its wait status."""
        child = os.fork()
        if child == 0:
            status = 1
            try:
                execute(self.config, folder, resume=True, data=self.data)
                status = 0
            finally:
                os._exit(status)
        if after is not None:
            time.sleep(after)
            os.kill(child, signal.SIGKILL)
        return os.waitpid(child, 0)[1]

    def run(self, most: int) -> None:
        """One run, killed again and again (at most so often) and resumed to its end."""
        folder, status, kills = self.parent / f"run-{self.runs}", -1, 0
        while status != 0:
            last = kills >= most
            # Most kills come early, where files are made; a late one meets models being written.
            share = self.chance.random() ** 2 * 1.1
            status = self._child(folder, None if last else share * self.longest)
            if os.WIFSIGNALED(status):
                kills += 1
            elif status != 0:
                raise SystemExit(f"{folder} was not resumed: status {status}")
        self.kills, self.runs = self.kills + kills, self.runs + 1
        if contents(folder) != self.expected:
            self.different += 1
            print("different:", folder, flush=True)


def main(parent: Path, seed: int, kills: int) -> int:
    torch.set_num_threads(1)
    campaign = Campaign(parent, seed)
    while campaign.kills < kills:
        campaign.run(min(kills - campaign.kills, 25))
    counts = {k: getattr(campaign, k) for k in ("kills", "runs", "different")}
    print(json.dumps(counts), flush=True)
    return bool(campaign.different)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
