"""A browser for the tests that open a page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium as the system has it; where there is none, its tests are skipped."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no Chromium on this machine: tools/install-browser.sh installs one")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=found, args=list(ARGUMENTS))
        yield chromium
        chromium.close()
