"""The source tree: every package is documented, and engines are used through their protocol."""

from __future__ import annotations

import ast
import importlib
import io
import re
import tokenize
from pathlib import Path
from types import ModuleType

import pytest

import fedgradnorm

SOURCE = Path(fedgradnorm.__file__).parent
PLAN = Path(__file__).parents[1] / "docs" / "architecture.md"
FOLDERS = sorted({path.parent for path in SOURCE.rglob("*.py")})


def test_the_plan_names_every_folder() -> None:
    tree = PLAN.read_text(encoding="utf-8").split("```")[1]
    planned = set(re.findall(r"([\w]+)/", tree))
    assert {folder.name for folder in FOLDERS} <= planned
    there = {path.name for path in SOURCE.rglob("*") if path.is_dir()}
    assert planned - {"src"} <= {*there, SOURCE.name}, "a folder that is gone"


def test_every_folder_says_what_it_is_for() -> None:
    for folder in FOLDERS:
        assert (folder / "__init__.py").read_text(encoding="utf-8").startswith('"""'), folder


def test_engines_are_asked_not_looked_at() -> None:
    """What differs between engines is behind their protocol; types need no exceptions."""
    odd = re.compile(r"isinstance\([^)]*[eE]ngine|__new__|type: ignore")
    for path in SOURCE.rglob("*.py"):
        if not path.is_relative_to(SOURCE / "_engines"):
            assert not odd.search(path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize("place", ["benchmarks", "docs", "examples", "studies", "tools"])
def test_scripts_import_names_that_are_there(place: str) -> None:
    """Most scripts are run by slow tests, or by hand: a name that moved would be noticed late."""
    for path in (PLAN.parents[1] / place).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or node.level:
                continue
            if (node.module or "").partition(".")[0] == "fedgradnorm":
                module = importlib.import_module(str(node.module))
                missing = [one.name for one in node.names if not _has(module, one.name)]
                assert not missing, f"{path}:{node.lineno}: no {missing} in {node.module}"


def _has(module: ModuleType, name: str) -> bool:
    try:
        importlib.import_module(f"{module.__name__}.{name}")
    except ImportError:
        return hasattr(module, name)
    return True


def test_the_benefit_has_one_name() -> None:
    """What a client gains over training alone once had four."""
    old = re.compile("worth|joining|over_alone", re.IGNORECASE)
    for place in ("src", "docs", "configs", "tests", "benchmarks"):
        for path in (PLAN.parents[1] / place).rglob("*"):
            assert not old.search(path.name), path
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME:
                assert not old.search(token.string), f"{path}:{token.start[0]}"
