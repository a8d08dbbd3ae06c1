"""The pages: none is lost, notebooks were run and can be taken along."""

from __future__ import annotations

import json
import re
import sys

import pytest

from site_pages import ROOT

sys.path.insert(0, str(ROOT / "docs" / "_ext"))
from program_hash import program_hash

pytestmark = pytest.mark.slow
NOTEBOOKS = sorted(path.stem for path in (ROOT / "docs" / "tutorials").glob("*.md"))


def test_every_page_is_in_the_list_of_pages(site):
    index = (site / "index.html").read_text(encoding="utf-8")
    listed = set(
        re.findall(r'<li class="toctree-l1"><a class="reference internal" href="([^"#]+)"', index)
    )
    folders = ("", "tutorials/", "reference/")
    pages = {f"{f}{p.stem}.html" for f in folders for p in (ROOT / "docs" / f).glob("*.md")}
    assert (pages - {"index.html"}) - listed == set()
    assert "results/README.html" in listed


def test_the_sidebar_has_the_titles_of_the_pages(site):
    start = (site / "start.html").read_text(encoding="utf-8")
    links = re.findall(r'href="([\w/-]+\.html)">([^<]+)</a>', start.partition("</aside>")[0])
    assert len(links) > 30
    for link, title in links:
        page = (site / link).read_text(encoding="utf-8")
        heading = re.search(r"<h1>(.*?)<a class=\"headerlink\"", page, flags=re.S)
        assert heading, link
        assert re.sub(r"<.*?>", "", heading[1]) == title, link


def test_a_notebook_is_run_again_when_the_program_changes(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "one.py").write_text("a = 1")
    before = program_hash(tmp_path)
    assert program_hash(tmp_path) == before
    (tmp_path / "src" / "one.py").write_text("a = 2")
    assert program_hash(tmp_path) != before


def test_notebooks_were_run_and_can_be_taken_along(site):
    assert len(NOTEBOOKS) == 3
    for name in NOTEBOOKS:
        text = (site / "tutorials" / f"{name}.html").read_text(encoding="utf-8")
        assert "cell_output" in text
        assert "Traceback" not in text
        (link,) = set(re.findall(r'href="([^"]+\.ipynb)"', text))
        notebook = json.loads((site / "tutorials" / link).read_text(encoding="utf-8"))
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert any(cell["outputs"] for cell in cells)


def test_every_page_has_one_description_and_guides_have_their_own(site):
    found = {}
    for path in (ROOT / "docs").glob("*.md"):
        text = (site / f"{path.stem}.html").read_text(encoding="utf-8")
        (found[path.stem],) = re.findall(r'<meta content="([^"]{20,})" name="description"', text)
    own = set(found) - {"changelog", "contributing"}
    assert len({found[name] for name in own}) == len(own)


def test_formulas_need_no_program(site):
    text = (site / "algorithm.html").read_text(encoding="utf-8")
    assert text.count("<math") > 30
    assert not re.search(r"<script[^>]*(mathjax|katex)", text, flags=re.I)


def test_nothing_on_the_site_is_fetched_from_elsewhere(site):
    pattern = re.compile(r'<(?:script|link|img|source|iframe)\b[^>]*?(?:src|href)="(https?:[^"]*)"')
    for path in site.rglob("*.html"):
        assert pattern.findall(path.read_text(encoding="utf-8")) == [], path
