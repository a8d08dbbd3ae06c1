"""What all tests share: the machine in the log, a fixed order and search, and toys."""

from __future__ import annotations

import logging
import os
import platform
import shutil
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import nn

import toys
from fedgradnorm import Client

HELD = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
ORDER = 1
"""The seed of the tests' order, and of Python's and NumPy's generators at each test's start."""
AT_ONCE = 8
"""Tests that a process of xdist's is given at a time: enough to share what a module prepares."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip

# The toys are far too small for more than one thread; a test of the machine may want more.
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
# A shell that runs the tests in the background has them ignore Ctrl-C, which some of them press.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "fixed",
    derandomize=True,
    deadline=None,
    max_examples=10,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("fixed")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """One order by default, and another one with --randomly-seed=N; -p no:randomly has none."""
    if getattr(config.option, "randomly_seed", None) == "default":
        config.option.randomly_seed = ORDER
    if getattr(config.option, "maxschedchunk", 0) is None:
        config.option.maxschedchunk = AT_ONCE


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow tests first: then no process is left with one while the others have none."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_report_header() -> list[str]:
    """What the numbers of a test may depend on."""
    capability = torch.backends.cpu.get_cpu_capability()
    held = " ".join(f"{name}={os.environ[name]}" for name in HELD if name in os.environ)
    return [
        f"CPU: {platform.machine()}, ATen {capability}, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}; held: {held or 'nothing'}",
    ]


@pytest.fixture(autouse=True)
def _own_start() -> None:
    """PyTorch's generator and the log's level start anew in every test, whichever came before."""
    torch.manual_seed(0)
    logging.getLogger("fedgradnorm").setLevel(logging.NOTSET)


@pytest.fixture
def clients() -> list[Client]:
    return toys.clients()


@pytest.fixture
def network() -> nn.Module:
    return toys.network()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium as the system has it; where there is none, its tests are skipped."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no Chromium on this machine: tools/install-browser.sh installs one")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=found, args=list(ARGUMENTS))
        yield chromium
        chromium.close()
