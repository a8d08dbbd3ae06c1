"""Several processes start one new run at once: ``python start_race.py FOLDER TRIES``.

One process imports everything and forks; the children wait at a pipe and start together. Of each
try the line says how the children ended: 0 trained, 3 refused.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

import fedgradnorm as fgn
from experiments.small_config import small_config
from fedgradnorm.experiments._config.config_file import Config, load_config
from fedgradnorm.experiments._execute import LoadedData, execute, load_data

STARTERS = 3


def start(config: Config, data: LoadedData, folder: Path, gate: int, resume: bool) -> int:
    """Wait for the gate, then start the run there; the exit code."""
    os.read(gate, 1)
    try:
        execute(config, folder, data=data, resume=resume)
    except fgn.RunFolderError:
        return 3
    return 0


def race(config: Config, data: LoadedData, folder: Path, resume: bool) -> list[int]:
    """Let the children go; their exit codes."""
    gate, opener = os.pipe()
    children = []
    for _ in range(STARTERS):
        if (child := os.fork()) == 0:
            code = 1
            try:
                code = start(config, data, folder, gate, resume)
            finally:
                os._exit(code)
        children.append(child)
    os.write(opener, b"x" * STARTERS)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    os.close(gate)
    os.close(opener)
    return sorted(codes)


def main(parent: Path, tries: int) -> None:
    torch.set_num_threads(1)
    config = load_config(small_config(parent), ["rounds=2"])
    data = load_data(config)
    for number in range(tries):
        resume = number % 2 == 1  # as a comparison starts its runs
        print(json.dumps(race(config, data, parent / "in" / f"{number}", resume)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
