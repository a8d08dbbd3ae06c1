"""Parts of pages that are made from the code, so that nothing can be forgotten.

A line ``<!-- generated: WHAT -->`` in a page stands for what :data:`MAKERS` makes of the words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from command_lines import commands
from config_keys import config_keys, federation_keys
from docstrings import plain_docstring
from method_list import method_tabs, methods, rules
from page_lists import PLACE, listed_pages
from public_names import public_names
from sphinx.application import Sphinx

MAKERS: dict[str, Callable[..., str]] = {
    "commands": commands,
    "config": config_keys,
    "federation": federation_keys,
    "method-tabs": method_tabs,
    "methods": methods,
    "names": public_names,
    "rules": rules,
}
TABLE = re.compile(r"results/[\w-]+/[\w-]+")
EXPERIMENT = re.compile(r"results/(?!README)[\w-]+")
ROW = re.compile(r"^\|.*\|$", flags=re.M)
ORPHAN = "---\norphan: true\n---\n\n"
TITLE = re.compile(r"\A\*\*(.*)\*\*\n")


def fill(app: Sphinx, name: str, source: list[str]) -> None:
    """Put what is generated where a page wants it."""
    text = source[0]
    if TABLE.fullmatch(name):  # a table of results: reached by links, not by the list of pages
        text = ORPHAN + TITLE.sub(r"# \1\n", text)
    if EXPERIMENT.fullmatch(name):  # reached from the page of results
        text = ORPHAN + text
    text = ROW.sub(lambda row: row[0].replace(" ± ", "\u00a0±\u00a0"), text)  # on one line
    if name == "index":
        text = listed_pages(Path(app.srcdir), text)
    source[0] = PLACE.sub(lambda found: _made(*found[1].split()), text)


def _made(what: str, *words: str) -> str:
    return MAKERS[what](*words)


def setup(app: Sphinx) -> dict[str, Any]:
    """Fill pages as they are read."""
    app.connect("source-read", fill)
    app.connect("autodoc-process-docstring", plain_docstring)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
