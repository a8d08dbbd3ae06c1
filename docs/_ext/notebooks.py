"""Notebooks to take along: with their outputs, also where these come from the cache.

MyST-NB shows outputs of the cache on the page, and writes the notebook itself without them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
from jupyter_cache import get_cache
from sphinx.application import Sphinx


def add_outputs(app: Sphinx, failed: Exception | None) -> None:
    """Put the outputs that are kept into the files that readers load."""
    if failed is not None or app.config.nb_execution_mode != "cache":
        return
    cache = get_cache(app.config.nb_execution_cache_path)
    for path in Path(app.outdir).glob("_downloads/*/*.ipynb"):
        _, whole = cache.merge_match_into_notebook(nbformat.read(path, as_version=4))
        nbformat.write(whole, path)


def setup(app: Sphinx) -> dict[str, Any]:
    """Fill the notebooks when all is written."""
    app.connect("build-finished", add_outputs)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
