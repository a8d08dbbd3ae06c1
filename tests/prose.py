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


def of_program(path: Path) -> Iterator[tuple[int, str]]:
    """Line and sentence of every docstring and message of a file; values in messages are ``X``."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    told: set[int] = set()
    for node in nodes:
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            told.add(id(node.body[0].value))  # type: ignore[attr-defined]
            yield from ((node.body[0].lineno, sentence) for sentence in of_docstring(text))
        elif isinstance(node, ast.JoinedStr):
            told |= {id(part) for part in node.values}
            parts = (str(v.value) if isinstance(v, ast.Constant) else "X" for v in node.values)
            yield from ((node.lineno, sentence) for sentence in of_page("".join(parts)))
    for node in nodes:
        if isinstance(node, ast.Constant) and id(node) not in told and " " in str(node.value):
            yield from ((node.lineno, sentence) for sentence in of_page(str(node.value)))
