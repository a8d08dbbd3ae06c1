"""Short sentences everywhere; results begin with findings, and each experiment has a short page."""

from __future__ import annotations

import re

import pytest

import prose
from page_blocks import PAGES
from site_pages import ROOT

LONGEST, LONGEST_IN_CODE = 40, 35

RESULTS = ROOT / "docs" / "results"
TEXT = (RESULTS / "README.md").read_text(encoding="utf-8")
PARTS = {part.splitlines()[0]: part for part in re.split(r"^## ", TEXT, flags=re.M)[1:]}
NO_FIGURE = {"rounding", "starts", "simple-models", "units"}
"""Runs that are not kept, and benchmarks, which draw nothing."""
SECTIONS = {
    path.stem: path.read_text(encoding="utf-8").partition("\n## ")[0]
    for path in sorted(RESULTS.glob("*.md"))
    if path.stem not in ("README", "provenance")
}
"""Each experiment's page, up to its details."""


def words(part: str) -> int:
    """Of the prose: tables, pictures and lines of links aside."""
    lines = [line for line in part.splitlines()[1:] if not line.startswith(("|", "![", "["))]
    prose = re.sub(r"\]\([^)]*\)", "]", "\n".join(lines))
    return len(re.findall(r"[A-Za-z][\w'-]*", prose))


def test_the_page_opens_with_ten_findings() -> None:
    assert next(iter(PARTS)) == "Ten findings"
    assert len(re.findall(r"^\| \d+ \|", PARTS["Ten findings"], flags=re.M)) == 10
    assert words(TEXT) <= 700


def test_every_experiment_is_reached_from_the_first_page() -> None:
    pages = {path.name for path in RESULTS.glob("*.md")} - {"README.md"}
    assert pages <= set(re.findall(r"\]\(([\w-]+\.md)", TEXT))


def test_a_section_asks_answers_and_warns_in_few_words() -> None:
    for name, part in SECTIONS.items():
        whole = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
        for word in ("Question.", "Set-up.", "Result.", "Caveat."):
            assert f"**{word}**" in whole, f"{name}: no {word}"
        assert words(part) <= 120, f"{name}: {words(part)} words"


def test_a_section_has_a_figure_and_a_link() -> None:
    for name, part in SECTIONS.items():
        if name not in NO_FIGURE:
            assert "![" in part, name
            assert re.search(r"^\[.*\]\(.*\.(md|csv)\)", part, flags=re.M), name


def test_no_sentence_of_a_page_is_too_long() -> None:
    tables = [str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("re*/**/*.md")]
    for page in {*PAGES, *tables, "CHANGELOG.md"}:
        for sentence in prose.of_page((ROOT / page).read_text(encoding="utf-8")):
            count = len(sentence.split())
            assert count <= LONGEST, f"{page}, {count} words: {sentence}"


def test_no_sentence_of_a_docstring_or_message_is_too_long() -> None:
    for path in sorted((ROOT / "src").rglob("*.py")):
        for line, sentence in prose.of_program(path):
            count = 0 if "\\" in sentence else len(sentence.split())  # an equation
            assert count <= LONGEST_IN_CODE, f"{path}:{line}, {count} words: {sentence}"


UNIDIOMATIC = (
    r"of one's own|as (?:it|they) comes?|in common|says so|to the bit|by heart|go(?:es)? on"
    r"|beside|stands? in(?!-)|t(?:akes?|aking|aken|ook) part|who must|the very same"
    r"|told (?:that|what)|is no more than|held out nobody"
)
"""Phrases that a colleague would not say."""
IN_PROGRAMS = re.compile(rf"\b(?:{UNIDIOMATIC})\b(?!``)", re.IGNORECASE)
ODD = re.compile(
    rf"\b({UNIDIOMATIC}|stands?(?!-)|lies|kept is|all that it|worth|trivial answer"
    r"|a round\b(?=[.,;])|loud|what is left of|no matter)\b",
    re.IGNORECASE,
)
"""These, and words that only this project once used."""


def test_docstrings_and_messages_use_the_words_of_the_field() -> None:
    for path in sorted((ROOT / "src").rglob("*.py")):
        for line, sentence in prose.of_program(path):
            found = IN_PROGRAMS.search(sentence)
            assert not found, f"{path}:{line}: {found and found[0]!r} in: {sentence}"


@pytest.mark.parametrize("page", PAGES)
def test_pages_use_the_words_of_the_field(page: str) -> None:
    text = re.sub(r"\]\([^)]*\)", "]", (ROOT / page).read_text(encoding="utf-8"))  # no addresses
    for sentence in prose.of_page(text):
        assert not (found := ODD.search(sentence)), f"{page}: {found[0]!r} in: {sentence}"
        assert len(sentence.split()) <= LONGEST_IN_CODE, f"{page}: {sentence}"
