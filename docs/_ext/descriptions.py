"""A description for every page, which search engines and link previews show: how it begins."""

from __future__ import annotations

import html
import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

LONGEST = 300
OF_THE_SITE = re.compile(r'<meta content="[^"]*" name="description"[^>]*/?>')


def describe(
    app: Sphinx, name: str, _template: str, context: dict[str, Any], page: nodes.document | None
) -> None:
    """Replace the site's description by the page's first paragraph."""
    if page is None or name == app.config.root_doc:
        return
    first = next((part for part in page.findall(nodes.paragraph)), None)
    if first is None or not (text := " ".join(first.astext().split())):
        return
    if len(text) > LONGEST:
        text = text[:LONGEST].rpartition(" ")[0] + " ..."
    mine = f'<meta content="{html.escape(text)}" name="description" />'
    context["metatags"] = OF_THE_SITE.sub("", context.get("metatags", "")) + mine


def setup(app: Sphinx) -> dict[str, Any]:
    """Describe pages as they are written."""
    app.connect("html-page-context", describe)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
