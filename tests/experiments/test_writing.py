"""A disk that refuses a run's files ends it with one line, and the run continues once it can."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fedgradnorm as fgn
import flat
import toys
from experiments.resuming import TESTS, assert_equal_to_the_bit

LIMITED = """
import resource, sys
from pathlib import Path
import fedgradnorm as fgn
from experiments.test_writing import train

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    train(Path(sys.argv[1]))
except fgn.RunFolderError as error:
    print(error)
"""


def train(folder: Path, **more: Any) -> fgn.Run:
    how = {"rounds": 60, "batch_size": 8, "checkpoint_every": 5, "eval_every": 5, **more}
    return flat.train(toys.network(), toys.clients(), folder=folder, **how)


def trained_in_files_of(folder: Path, limit: int) -> subprocess.CompletedProcess[str]:
    """A process that trains while no file may grow beyond ``limit`` bytes."""
    search = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", LIMITED, str(folder), str(limit)],
        env={**os.environ, "PYTHONPATH": search},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("file", ["checkpoint.safetensors", "metrics.csv"])
def test_a_full_disk_is_one_line_and_the_run_can_be_resumed(
    file: str, whole: Path, tmp_path: Path
) -> None:
    """No checkpoint fits, or all of them do, but not the whole table."""
    sizes = {name: (whole / name).stat().st_size for name in ("checkpoint.safetensors", file)}
    limit = sizes[file] * 9 // 10
    assert file != "metrics.csv" or limit > sizes["checkpoint.safetensors"]
    folder = tmp_path / "run"
    process = trained_in_files_of(folder, limit)
    assert process.stdout == (
        f"{folder} cannot be written: File too large; fix this, then resume the run (fgn.resume, "
        "or fedgradnorm resume): it continues from its last checkpoint, or from the start if it "
        "has none\n"
    )
    assert not process.stderr
    assert (folder / "checkpoint.safetensors").exists() == (file == "metrics.csv")
    train(folder, resume=True)
    assert_equal_to_the_bit(folder, whole)


def test_a_folder_that_is_removed_under_the_run_is_named(tmp_path: Path) -> None:
    def remove(event: Any) -> None:
        if event.round == 7:
            shutil.rmtree(tmp_path / "run")

    with pytest.raises(fgn.RunFolderError) as error:
        train(tmp_path / "run", progress=remove)
    says = "it was removed while the run was training; start the run again"
    assert str(error.value) == f"{tmp_path / 'run'} cannot be written: {says}"


@pytest.mark.parametrize("place", ["file/run", "/proc/nowhere/run"])
def test_a_folder_that_cannot_be_made_is_named(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(fgn.RunFolderError, match=r"run cannot be written: .*another folder"):
        train(tmp_path / place)
