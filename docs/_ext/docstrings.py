"""Docstrings as they are written here, turned into what Sphinx reads."""

from __future__ import annotations

import re
from typing import Any

SECTIONS = {"Args:": "**Arguments**", "Returns:": "**Returns**", "Examples:": "**Examples**"}
ENTRY = re.compile(r"    (\w+(?:, \w+)*): (.*)")


def plain_docstring(*given: Any) -> None:
    """Sphinx's hook: the docstring's lines are the last argument, and are changed in place."""
    lines: list[str] = given[-1]
    lines[:] = converted(lines)


def converted(lines: list[str]) -> list[str]:
    """Sections become bold words and lists, indented equations literal blocks, bars plain bars."""
    made: list[str] = []
    section = before = ""
    for line in lines:
        if line and not line.startswith(" "):
            section = line if line in SECTIONS else ""
        if line in SECTIONS:
            made += [SECTIONS[line], ""]
        elif section == "Args:":
            made += _argument(line)
        elif section == "Returns:":
            made.append(_escaped(line.strip()))
        else:
            if line.startswith("    ") and not before.strip() and "::" not in made[-3:]:
                made += ["::", ""]
            made.append(line if line.startswith("    ") or ">>>" in line else _escaped(line))
        before = line
    return made


def _argument(line: str) -> list[str]:
    entry = ENTRY.fullmatch(line)
    if not entry:
        return [f"    {_escaped(line.strip())}" if line.strip() else ""]
    names = ", ".join(f"``{name}``" for name in entry[1].split(", "))
    return [names, f"    {_escaped(entry[2])}"]


def _escaped(line: str) -> str:
    """Bars outside of code do not stand for substitutions."""
    pieces = line.split("``")
    return "``".join(p if i % 2 else p.replace("|", r"\|") for i, p in enumerate(pieces))
