"""How the site is built: ``make docs``, offline, and every warning is an error."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

from page_lists import unlinked_tables  # noqa: E402
from program_hash import program_hash  # noqa: E402

from fedgradnorm import __version__  # noqa: E402

project = "fedgradnorm"
author = "The fedgradnorm authors"
copyright = "the fedgradnorm authors, Apache-2.0"
version = release = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "dark_figures",  # the rest is ours, in _ext
    "descriptions",
    "formulas",
    "generated",
    "notebooks",
]
source_suffix = {".md": "myst-nb"}
exclude_patterns = ["_ext", "_static", *unlinked_tables(HERE)]

# Links: headings have the anchors that code hosts give them, and what leads nowhere is an error.
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 4
myst_html_meta = {
    "description": "Train one network across clients with different tasks, and weight their losses "
    "so that none of them dominates. The reference implementation of FedGradNorm in PyTorch."
}
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!fedgradnorm\b).*"),  # other packages' sites are not at hand
    ("py:class", r"fedgradnorm\.(.*\.)?_.*"),  # private types in signatures have no page
]
suppress_warnings = ["toc.empty_glob"]  # a page that is planned may be in a list of pages

os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
os.environ["COLUMNS"] = "100"
# A notebook is run again when it has changed, or anything of the program that it runs.
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE.parent / "build" / "notebooks" / program_hash(HERE.parent))
nb_execution_in_temp = True
nb_execution_timeout = 600  # seconds for a cell, on a busy machine
nb_execution_raise_on_error = True
nb_merge_streams = True

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
python_display_short_literal_types = True
add_module_names = False

html_theme = "furo"
html_title = "fedgradnorm"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_favicon = "_static/favicon.svg"
html_math_renderer = "mathml"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {"top_of_page_buttons": []}
pygments_style, pygments_dark_style = "a11y-light", "a11y-dark"
