"""``![...](x.svg)`` in a page shows ``x-dark.svg`` on dark pages, where that file is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform


class DarkFigures(SphinxTransform):
    """After a paragraph that is an image, the same with its dark version."""

    default_priority = 100

    def apply(self, **_: Any) -> None:
        """Double what has a dark version, and say which is for which page."""
        for image in list(self.document.findall(nodes.image)):
            light = image.parent
            dark_uri = image["uri"].removesuffix(".svg") + "-dark.svg"
            file = Path(self.env.doc2path(self.env.docname)).parent / dark_uri
            if isinstance(light, nodes.paragraph) and len(light) == 1 and file.is_file():
                dark = light.deepcopy()
                dark.children[0]["uri"] = dark_uri  # type: ignore[index]
                light["classes"].append("only-light")
                dark["classes"].append("only-dark")
                light.parent.insert(light.parent.index(light) + 1, dark)


def setup(app: Sphinx) -> dict[str, Any]:
    """Double figures as pages are read."""
    app.add_transform(DarkFigures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
