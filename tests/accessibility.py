"""What axe, the accessibility checker, finds on a page; its context needs ``bypass_csp=True``."""

from __future__ import annotations

from importlib.resources import files
from typing import Any


def violations(page: Any) -> list[str]:
    """Every rule that the page breaks, with the elements that break it."""
    page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations'], preload: false})")
    return [
        f"{one['id']}: {node['html']}: {node['failureSummary']}"
        for one in found["violations"] for node in one["nodes"]
    ]  # fmt: skip
