"""The site, built once for all tests, whichever process of xdist's comes first."""

from __future__ import annotations

import faulthandler
import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST = 1800
"""Seconds for a build on a busy machine; 75 s of a free core, 20 where the notebooks are kept."""


@pytest.fixture(scope="session")
def site(tmp_path_factory, worker_id) -> Path:
    """The folder of the built site; a warning of the build is an error."""
    pytest.importorskip("myst_nb", reason="needs pip install 'fedgradnorm[docs]'")
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    folder = shared / "site"
    # A test has ten minutes, and so has each cell of a notebook; the build has limits of its own.
    faulthandler.cancel_dump_traceback_later()
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            _build(folder)
    return folder


def _build(folder: Path) -> None:
    """What ``make docs`` does, into another folder."""
    rule = re.search(r"^docs:.*\n\t\$\(BIN\)/python (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert rule
    words = rule[1].replace("build/site", str(folder)).replace("$(ARGS)", "-q").split()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    # Programs that a notebook starts find the package where these tests found it.
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    )
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True,
        timeout=LONGEST,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-8000:]
    (folder / "done").touch()
