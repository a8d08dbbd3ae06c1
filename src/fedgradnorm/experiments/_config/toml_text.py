"""TOML in and out: a dict as text that reads back as exactly the same dict."""

from __future__ import annotations

import difflib
import json
import re
import stat
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgradnorm._checks import shortened
from fedgradnorm._errors import ConfigError
from fedgradnorm.experiments._config.plain import check_plain
from fedgradnorm.experiments._config.shipped import shipped

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WIDTH = 100

LARGEST = 4 << 20
"""Bytes of a config: some ten thousand clients, each with files of its own."""


def read_toml(path: Path) -> dict[str, Any]:
    """The file's content; a ConfigError if it is missing, no plain file, too large or no TOML."""
    try:
        return parse_toml(_text_of(path))
    except FileNotFoundError:
        raise ConfigError(f"no such file{near_file(path)}") from None
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror})") from None
    except ValueError as error:  # of TOML, of UTF-8, or of a path with a null character
        raise ConfigError(f"not TOML: {shortened(str(error), 300)}") from None


def near_file(path: Path) -> str:
    """A question after a file of nearly this name, or the name of a config in the package."""
    places = (path.parent, Path("configs"))
    found = {p.name: str(p) for at in places if at.is_dir() for p in sorted(at.glob("*.toml"))}
    found = {**{f"{name}.toml": name for name in shipped()}, **found}
    wanted = path.name if path.suffix else f"{path.name}.toml"
    near = difflib.get_close_matches(wanted, found, n=1, cutoff=0.6)
    return f"; did you mean {found[near[0]]!r}?" if near else ""


def parse_toml(text: str) -> dict[str, Any]:
    """TOML as plain values; a ValueError if it is none."""
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise ConfigError("nested too deeply") from None
    check_plain(table)
    return table


def _text_of(path: Path) -> str:
    """The text of an ordinary file; a pipe would be waited for, and a device has no end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ConfigError(f"cannot be read (it is {'a folder' if path.is_dir() else 'no file'})")
    with path.open("rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ConfigError(f"larger than {LARGEST >> 20} MB; data belongs into files of its own")
    return data.decode("utf-8")


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
