"""TOML in and out: a dict as text that reads back as exactly the same dict."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgradnorm.errors import ConfigError

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WIDTH = 100


def read_toml(path: Path) -> dict[str, Any]:
    """The file's content; a ConfigError if it is missing or not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError("no such file") from None
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:  # a null byte in the path is a ValueError too
        raise ConfigError(f"not TOML: {error}") from None


def to_toml(table: Mapping[str, Any]) -> str:
    """Plain values first, then one ``[section]`` per table; deeper tables are written inline.

    >>> print(to_toml({"seed": 1, "data": {"tasks": ["a", "b"]}}), end="")
    seed = 1
    <BLANKLINE>
    [data]
    tasks = ["a", "b"]
    """
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    parts = [_pairs(plain)] if plain else []
    for key, value in table.items():
        if isinstance(value, Mapping):
            parts.append(f"[{_key(key)}]\n{_pairs(value)}")
    return "\n".join(parts)


def _pairs(table: Mapping[str, Any]) -> str:
    return "".join(f"{_key(key)} = {_line(value)}\n" for key, value in table.items())


def _line(value: Any) -> str:
    """A value on one line, or a long list with one item a line."""
    text = _value(value)
    if isinstance(value, (list, tuple)) and len(text) > _WIDTH:
        return "[\n" + "".join(f"    {_value(item)},\n" for item in value) + "]"
    return text


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, Sequence):
        return f"[{', '.join(map(_value, value))}]"
    raise ConfigError(f"a config cannot hold {value!r} ({type(value).__name__})")


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _text(value: str) -> str:
    # JSON's escapes are TOML's, but for DEL, which TOML wants escaped too.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
