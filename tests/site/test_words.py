"""The results page: ten findings first, then one short section for each question."""

from __future__ import annotations

import re

from site_pages import ROOT

TEXT = (ROOT / "docs" / "results" / "README.md").read_text(encoding="utf-8")
PARTS = {part.splitlines()[0]: part for part in re.split(r"^## ", TEXT, flags=re.M)[1:]}
SECTIONS = {name: part for name, part in PARTS.items() if not name.startswith(("Ten", "Appendix"))}


def words(part: str) -> int:
    """Of the prose: tables, pictures and lines of links aside."""
    lines = [line for line in part.splitlines()[1:] if not line.startswith(("|", "![", "["))]
    prose = re.sub(r"\]\([^)]*\)", "]", "\n".join(lines))
    return len(re.findall(r"[A-Za-z][\w'-]*", prose))


def test_the_page_opens_with_ten_findings() -> None:
    assert next(iter(PARTS)) == "Ten findings"
    assert len(re.findall(r"^\| \d+ \|", PARTS["Ten findings"], flags=re.M)) == 10


def test_a_section_asks_answers_and_warns_in_few_words() -> None:
    for name, part in SECTIONS.items():
        for word in ("Question.", "Set-up.", "Result.", "Caveat."):
            assert f"**{word}**" in part, f"{name}: no {word}"
        assert words(part) <= 120, f"{name}: {words(part)} words"


def test_a_section_has_a_figure_and_a_link() -> None:
    for name, part in SECTIONS.items():
        if name != "What rounding alone moves":  # whose runs are not kept
            assert "![" in part, name
            assert re.search(r"^\[.*\]\(.*\.(md|csv)\)", part, flags=re.M), name
