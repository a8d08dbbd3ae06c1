"""What the tests of resuming share: a process to kill, and what a run leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import fedgradnorm as fgn
import toys
from experiments import killed_training
from experiments.killed_training import go
from fedgradnorm._runs import checkpoint

TESTS = Path(killed_training.__file__).parents[1]


@contextmanager
def training(folder: Path, *how_to_die: str) -> Iterator[subprocess.Popen[str]]:
    """A process that trains in ``folder``."""
    command = [sys.executable, "-u", str(killed_training.__file__), str(folder), *how_to_die]
    search = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": search}
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def begun(folder: Path) -> Path:
    """A run that was stopped after its second round."""

    def stop(event: Any) -> None:
        if event.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(fgn.Interrupted):
        go(folder, progress=stop)
    (folder / "previous.safetensors").unlink()  # it is there for a last one that is damaged
    return folder


def stored(folder: Path) -> dict[str, Any]:
    """Everything a run leaves behind, except time stamps."""
    files = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    tensors = {
        str(path): checkpoint.read_tensors(folder / path)[0]
        for path in files
        if path.suffix == ".safetensors"
    }
    tables = {str(path): (folder / path).read_bytes() for path in files if path.suffix == ".csv"}
    return {"names": files, **tables, **tensors}


def assert_equal_to_the_bit(folder: Path, uninterrupted: Path) -> None:
    left, right = stored(folder), stored(uninterrupted)
    assert left["metrics.csv"] == right["metrics.csv"]
    assert left["names"] == right["names"]  # no temporary file is left either
    for name, part in right.items():
        assert toys.same(left[name], part), name
    assert toys.same(
        checkpoint.load(folder / "checkpoint.safetensors"),
        checkpoint.load(uninterrupted / "checkpoint.safetensors"),
    )
