"""Parts of pages that are made from the code, so that nothing can be forgotten.

A line ``<!-- generated: WHAT -->`` in a page stands for what :data:`MAKERS` makes of the words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from command_lines import commands
from config_keys import config_keys
from docstrings import plain_docstring
from public_names import public_names
from sphinx.application import Sphinx

MAKERS: dict[str, Callable[..., str]] = {
    "commands": commands,
    "config": config_keys,
    "names": public_names,
}
PLACE = re.compile(r"^<!-- generated: (.*) -->$", flags=re.M)
TABLE = re.compile(r"results/[\w-]+/[\w-]+")
PLANNED = re.compile(r"^(\S+) \?\n", flags=re.M)
"""A page in a list that need not be there yet."""
TITLE = re.compile(r"\A\*\*(.*)\*\*\n")


def fill(app: Sphinx, name: str, source: list[str]) -> None:
    """Put what is generated where a page wants it."""
    text = source[0]
    if TABLE.fullmatch(name):  # a table of results: reached by links, not by the list of pages
        text = "---\norphan: true\n---\n\n" + TITLE.sub(r"# \1\n", text)
    if name == "index":
        text = PLANNED.sub(lambda found: _if_there(Path(app.srcdir), found[1]), text)
        text = PLACE.sub(lambda _: _other_pages(Path(app.srcdir), text), text)
    source[0] = PLACE.sub(lambda found: _made(*found[1].split()), text)


def _if_there(folder: Path, page: str) -> str:
    return f"{page}\n" if (folder / f"{page}.md").exists() else ""


def _made(what: str, *words: str) -> str:
    return MAKERS[what](*words)


def _other_pages(folder: Path, index: str) -> str:
    """A list of the pages that the index does not name, so that a new page is never lost."""
    listed = set(re.findall(r"^(?:.*<)?([\w/-]+)>?$", index, flags=re.M))
    others = sorted(
        path.stem for path in folder.glob("*.md") if path.stem not in {*listed, "index"}
    )
    lines = "\n".join(others)
    return f"```{{toctree}}\n:hidden:\n:caption: More\n\n{lines}\n```" if others else ""


def setup(app: Sphinx) -> dict[str, Any]:
    """Fill pages as they are read."""
    app.connect("source-read", fill)
    app.connect("autodoc-process-docstring", plain_docstring)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
