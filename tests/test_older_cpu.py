"""On an older CPU the engines agree, and a resumed run is bit-for-bit the uninterrupted one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
HELD = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
CHOSEN = {
    "engines/test_agreement.py": "plain or absolute",
    "experiments/test_resume.py": "every_engine",
}


@pytest.mark.slow
def test_engines_agree_and_resume_with_the_oldest_instructions() -> None:
    """A few tests of many: ``make test-cpus`` takes all, with more threads and orders, too."""
    outer = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k"]
    command += [" or ".join(CHOSEN.values()), *(str(TESTS / name) for name in CHOSEN)]
    done = subprocess.run(
        command,
        cwd=TESTS.parent,
        env={**outer, **HELD},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "ATen DEFAULT" in done.stdout
    assert "ONEDNN_MAX_CPU_ISA=SSE41" in done.stdout
