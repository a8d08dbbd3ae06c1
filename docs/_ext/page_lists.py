"""Which pages there are: planned ones, forgotten ones, and tables that nobody links to."""

from __future__ import annotations

import re
from pathlib import Path

PLACE = re.compile(r"^<!-- generated: (.*) -->$", flags=re.M)
PLANNED = re.compile(r"^(\S+) \?\n", flags=re.M)
"""A page in a list that need not be there yet."""


def listed_pages(folder: Path, index: str) -> str:
    """The index without planned pages that are not there, and with all that it does not name."""
    text = PLANNED.sub(lambda found: _if_there(folder, found[1]), index)
    listed = {*re.findall(r"^([\w/-]+)$", text, flags=re.M), "index"}
    others = sorted(path.stem for path in folder.glob("*.md") if path.stem not in listed)
    names = "\n".join(others)
    more = f"```{{toctree}}\n:hidden:\n:caption: More\n\n{names}\n```" if others else ""
    return PLACE.sub(lambda _: more, text)


def _if_there(folder: Path, page: str) -> str:
    return f"{page}\n" if (folder / f"{page}.md").exists() else ""


def unlinked_tables(folder: Path) -> list[str]:
    """Tables of results to which no page leads: files next to the others, but no pages."""
    pages = [*folder.glob("*.md"), *folder.glob("results/*.md")]
    links = {
        (page.parent / link).resolve()
        for page in pages
        for link in re.findall(r"\]\(([^)#\s]+\.md)", page.read_text(encoding="utf-8"))
    }
    tables = folder.glob("results/*/*.md")
    return [str(t.relative_to(folder)) for t in tables if t.resolve() not in links]
