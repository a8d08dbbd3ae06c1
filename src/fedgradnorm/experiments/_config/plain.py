"""What a config may hold: finite numbers of 64 bits, texts, lists and tables, not too deep."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedgradnorm._checks import shortened, shown
from fedgradnorm._errors import ConfigError

DEEPEST = 20
"""Tables and lists in each other; more than any source or method reads."""

LONGEST = 4096
"""Characters of a text: as many as a path may have."""


def check_plain(table: Mapping[str, Any]) -> None:
    """A ConfigError, with the dotted key, for a value that no config can mean."""
    for key, value, depth in _walk(table):
        reason = "nested too deeply" if depth > DEEPEST else _trouble(value)
        if reason:
            raise ConfigError(f"{shortened(key, 100)}: a config cannot hold {reason}")


def _walk(table: Mapping[str, Any]) -> Iterator[tuple[str, Any, int]]:
    """Every key and value with its place and depth, without recursion."""
    waiting: list[tuple[str, Any, int]] = [("", table, 0)]
    while waiting:
        place, value, depth = waiting.pop()
        if depth > DEEPEST:
            yield place, None, depth
        elif isinstance(value, Mapping):
            start = f"{place}." if place else ""
            yield from ((f"the key {shortened(str(key), 60)!r}", key, depth) for key in value)
            waiting += [(f"{start}{key}", item, depth + 1) for key, item in value.items()]
        elif isinstance(value, Sequence) and not isinstance(value, str):
            waiting += [(place, item, depth + 1) for item in value]
        else:
            yield place, value, depth


def _trouble(value: Any) -> str:
    """Why a single value cannot stand in a config, or nothing."""
    if isinstance(value, str):
        return _bad_text(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "a whole number of more than 64 bits"
    if isinstance(value, float) and not math.isfinite(value):
        return f"the number {value!r}"
    if value is None or isinstance(value, (bool, int, float)):
        return ""
    return f"{value!r} ({type(value).__name__})"


def _bad_text(value: str) -> str:
    if len(value) > LONGEST:
        return f"a text of {len(value)} characters, more than {LONGEST}"
    if "\0" in value:
        return f"a text with a null character, {shown(value, 60)}"
    if any("\ud800" <= character <= "\udfff" for character in value):
        return f"a text that is not Unicode, {shortened(ascii(value), 60)}"
    return ""
