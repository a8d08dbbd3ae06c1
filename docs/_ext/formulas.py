"""Formulas as MathML, which browsers draw themselves: no program, no font, nothing to fetch."""

from __future__ import annotations

import re
from typing import Any

from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util.math import get_node_equation_number


def drawn(text: str, as_block: bool) -> str:
    """MathML; what the translation would get wrong is an error."""
    if re.search(r"\\[td]?frac(?!\{)", text):
        raise ValueError(f"{text}: write a fraction with braces, \\frac{{1}}{{2}}")
    spaced = re.sub(r"\\(log|exp|max|min)(?= +[\\A-Za-z])", r"\\\1\\,", text)
    return str(tex2mathml(spaced, as_block=as_block))


def inline(writer: Any, node: Any) -> None:
    """A formula in a line."""
    writer.body.append(drawn(node.astext(), as_block=False))
    raise SkipNode


def display(writer: Any, node: Any) -> None:
    """A formula on a line of its own."""
    writer.body.append(writer.starttag(node, "div", CLASS="math"))
    if node["number"]:
        number = get_node_equation_number(writer, node)
        writer.body.append(f'<span class="eqno">({number})</span>')
    writer.body.append(drawn(node.astext(), as_block=True) + "</div>\n")
    raise SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Make ``html_math_renderer = "mathml"`` known."""
    app.add_html_math_renderer("mathml", (inline, None), (display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
