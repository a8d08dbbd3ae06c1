"""What the arguments of a function mean, read from the ``Args:`` of its documentation.

A config's keys are arguments somewhere: of ``train``, of a data source, of a weighting. Their
meaning is written once, there, and whoever lists them reads it from there.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

_ENTRY = re.compile(r"(\w+(?:, \w+)*): (.*)")


def meanings(function: Callable[..., Any]) -> dict[str, str]:
    """The meaning of each argument that the documentation names, on one line.

    Two names before one colon mean the same thing.

    >>> def move(far, near):
    ...     '''Go.
    ...
    ...     Args:
    ...         far, near: how long a step is,
    ...             in metres.
    ...     '''
    >>> meanings(move)
    {'far': 'how long a step is, in metres.', 'near': 'how long a step is, in metres.'}
    """
    found: dict[str, str] = {}
    names: list[str] = []
    for line in _section(inspect.getdoc(function) or ""):
        entry = _ENTRY.fullmatch(line)
        if entry and not line.startswith(" "):
            names = entry[1].split(", ")
            found.update(dict.fromkeys(names, entry[2]))
        else:
            found.update({name: f"{found[name]} {line.strip()}" for name in names})
    return found


def _section(text: str) -> Iterator[str]:
    """The lines under ``Args:``, less their common indentation of four."""
    inside = False
    for line in text.splitlines():
        if inside and line and not line.startswith("    "):
            return
        if inside and line.strip():
            yield line[4:]
        inside = inside or line == "Args:"
