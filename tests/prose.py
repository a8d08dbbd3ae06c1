"""Sentences of pages and of docstrings, as a reader meets them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

END = re.compile(r"(?<=[.!?:;])[*_)\"`]*\s+|\n\s*\n|\n\s*(?:[-*]|\d+\.) ")


def of_page(text: str) -> list[str]:
    """The sentences of Markdown; code, tables, headings and pictures are none."""
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.S)
    text = re.sub(r"^(```|:::).*?^\1", "", text, flags=re.S | re.M)
    kept = ["" if line.lstrip().startswith(("|", "#", "!")) else line for line in text.splitlines()]
    return _cut("\n".join(kept))


def of_docstring(text: str) -> list[str]:
    """The sentences of a docstring; lists of modules or files, tables and programs are none."""
    lines = [re.sub(r"^\S+ {2,}|^\s+(>>>|\.\.\.).*", "\n", line) for line in text.splitlines()]
    return _cut("\n".join("" if line.startswith(("|", "    ")) else line for line in lines))


def _cut(text: str) -> list[str]:
    return [" ".join(part.split()) for part in END.split(text) if part.strip()]


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring of a file."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every string of a file that is no docstring; values in it are ``X``."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if part is not node
    }
    inside |= {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (str(v.value) if isinstance(v, ast.Constant) else "X" for v in node.values)
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and id(node) not in inside:
            yield node.lineno, str(node.value)
