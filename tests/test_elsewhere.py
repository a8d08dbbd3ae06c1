"""Systems that lack what Linux has: importing and training, and locks by other means."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedgradnorm import RunFolderError
from fedgradnorm._runs import locking  # Windows is only here by replacing what locks

WITHOUT = """
import os, signal, sys, types

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "resource"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.modules.pop("fcntl", None)
sys.meta_path.insert(0, Refuse())
for module, names in {
    os: ["fork", "sysconf", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "sched_getaffinity"],
    signal: ["SIGBUS", "SIGKILL", "pthread_sigmask"],
}.items():
    for name in names:
        delattr(module, name)

from fedgradnorm._runs import locking
locking.WINDOWS = types.SimpleNamespace(LK_NBLCK=2, locking=lambda *_: None)
"""
TRAIN = """
import toys
import torch
import fedgradnorm as fgn

for folder in [None, *sys.argv[1:]]:
    torch.manual_seed(0)
    run = fgn.train(toys.network(), toys.clients(), rounds=2, folder=folder)
    print(run.weights)
"""


def python(code: str, *arguments: str) -> str:
    """What a Python prints that can import the tests' toys."""
    places = [str(Path(__file__).parent), str(Path(locking.__file__).parents[2])]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_training_needs_nothing_that_only_linux_has(tmp_path: Path) -> None:
    plain = python("import sys\n" + TRAIN)
    assert python(WITHOUT + TRAIN, str(tmp_path / "run")) == 2 * plain  # without folder and with


class Bytes:
    """What Windows has: bytes of a file, locked through one handle and refused to the others."""

    LK_NBLCK = 2

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], int] = {}

    def locking(self, file: int, mode: int, count: int) -> None:
        assert (mode, count) == (self.LK_NBLCK, 1)
        seen = os.fstat(file)
        owner = self.held.setdefault((seen.st_dev, seen.st_ino), file)
        if owner != file:
            raise PermissionError(13, "Permission denied")


@pytest.fixture(params=["posix", "windows"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way of locking in turn."""
    if request.param == "windows":
        monkeypatch.setattr(locking, "POSIX", None)
        monkeypatch.setattr(locking, "WINDOWS", Bytes())
    return str(request.param)


def test_a_folder_is_held_by_one_at_a_time(system: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with locking.FolderLock(folder):
        with pytest.raises(RunFolderError, match="in use by another process"):
            locking.FolderLock(folder)
        assert folder.is_dir()
    assert not folder.exists()


def test_who_waits_comes_second(tmp_path: Path) -> None:
    place = tmp_path / ".lock"
    for _ in range(2):
        with locking.alone(place, waiting=True), pytest.raises(BlockingIOError):
            locking.alone(place).__enter__()


def test_where_memory_is_not_told_the_variable_is_the_limit() -> None:
    code = "from fedgradnorm._memory import memory_limit\nprint(memory_limit() > 10**8)"
    assert python(WITHOUT + code).strip() == "True"
