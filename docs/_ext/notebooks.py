"""Executed pages can be taken along: each has a link to itself as a notebook."""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, Any]:  # noqa: ARG001
    """Nothing yet."""
    return {"parallel_read_safe": True, "parallel_write_safe": True}
