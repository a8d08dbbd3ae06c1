"""The rooms: few modules in each, every one in the plan, and one meaning for a name."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import fedgradnorm

SOURCE = Path(fedgradnorm.__file__).parent
PLAN = Path(__file__).parents[1] / "docs" / "architecture.md"
FOLDERS = sorted({path.parent for path in SOURCE.rglob("*.py")})


def test_no_folder_holds_more_than_fifteen_modules() -> None:
    counts = {str(f.relative_to(SOURCE)): len(list(f.glob("*.py"))) for f in FOLDERS}
    assert {name: count for name, count in counts.items() if count > 15} == {}


def test_the_plan_names_every_folder() -> None:
    tree = PLAN.read_text(encoding="utf-8").split("```")[1]
    planned = set(re.findall(r"([\w]+)/", tree))
    assert {folder.name for folder in FOLDERS} <= planned


def test_every_folder_says_what_it_is_for() -> None:
    for folder in FOLDERS:
        assert (folder / "__init__.py").read_text(encoding="utf-8").startswith('"""'), folder


def test_a_module_name_has_one_meaning() -> None:
    names = Counter(p.stem.lstrip("_") for p in SOURCE.rglob("*.py") if p.stem != "__init__")
    assert [name for name, count in names.items() if count > 1] == []


def test_engines_are_asked_not_looked_at() -> None:
    """What differs between engines is behind their protocol; types need no exceptions."""
    odd = re.compile(r"isinstance\([^)]*[eE]ngine|__new__|type: ignore")
    for path in SOURCE.rglob("*.py"):
        if not path.is_relative_to(SOURCE / "_engines"):
            assert not odd.search(path.read_text(encoding="utf-8")), path
