"""The names of a run's files are written once, in ``layout``."""

from __future__ import annotations

import ast
from pathlib import Path

import fedgradnorm
from fedgradnorm._runs import layout

SOURCE = Path(fedgradnorm.__file__).parent
NAMES = {
    word
    for key, value in vars(layout).items()
    if key.isupper() and isinstance(value, str | tuple)
    for word in (value if isinstance(value, tuple) else (value,))
    if "." in word  # "clients" and "state" are words of other things too
}


def texts(path: Path) -> set[str]:
    """Every text of a program that is no docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare
    }


def test_no_other_module_writes_the_name_of_a_file() -> None:
    assert {"run.json", "metrics.csv", "checkpoint.safetensors", ".lock"} <= NAMES
    for path in SOURCE.rglob("*.py"):
        assert path == Path(layout.__file__) or not texts(path) & NAMES, path


def test_temporary_files_are_found_by_their_pattern(tmp_path: Path) -> None:
    layout.temporary(tmp_path / layout.METRICS).touch()
    (tmp_path / layout.METRICS).touch()
    assert list(tmp_path.glob(layout.TEMPORARY)) == [layout.temporary(tmp_path / layout.METRICS)]
