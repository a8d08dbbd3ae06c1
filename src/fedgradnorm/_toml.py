"""TOML in and out: a dict as text that reads back as exactly the same dict, and its overrides.

A config holds finite numbers of 64 bits, texts, lists and tables, not too deep.
"""

from __future__ import annotations

import copy
import difflib
import json
import math
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgradnorm._checks import shortened, shown
from fedgradnorm._errors import ConfigError

CONFIGS = Path(__file__).parent / "configs"
"""The folder of configs that come with the package."""

DEEPEST = 20
"""Tables and lists in each other; more than any source or method reads."""

LONGEST = 4096
"""Characters of a text: as many as a path may have."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WIDTH = 100

LARGEST = 4 << 20
"""Bytes of a config: about ten thousand clients, each with its own files."""


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
    found = {**{path.name: path.stem for path in CONFIGS.glob("*.toml")}, **found}
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
        raise ConfigError(f"larger than {LARGEST >> 20} MB; put data into separate files")
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


_EITHER = {"rounds": "epochs", "epochs": "rounds"}
"""Setting one of these leaves out the other, which the file may hold."""


def overridden(table: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """A copy of ``table`` with each ``dotted.key=value`` set; values are TOML, or else text.

    >>> overridden({"epochs": 9}, ["rounds=3", "local.head_steps=2"])
    {'rounds': 3, 'local': {'head_steps': 2}}
    """
    result = copy.deepcopy(dict(table))
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not all(key.strip().split(".")):
            raise ConfigError(f"{word!r} is not key=value, for example epochs=3")
        if key.count(".") > DEEPEST:
            raise ConfigError(f"{shortened(word, 100)!r}: nested too deeply")
        try:
            put(result, key.strip(), parse_value(text.strip()))
        except ConfigError as error:
            raise ConfigError(f"{word!r}: {error}") from None
    return result


def put(table: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key of a nested table, making the tables on the way."""
    *parents, last = key.split(".")
    place = table
    for depth, part in enumerate(parents, start=1):
        if isinstance(place.get(part), bool):  # keep_best = true is a table with nothing in it
            place[part] = {}
        place = place.setdefault(part, {})
        if not isinstance(place, dict):
            raise ConfigError(f"{'.'.join(parents[:depth])} is no table")
    if key in _EITHER and value != "none":  # "no epochs" says nothing about rounds
        place.pop(_EITHER[key], None)
    place[last] = value


def parse_value(text: str) -> Any:
    """A TOML value, or the text itself where it is none."""
    try:
        parsed = parse_toml(f"value = {text}")
    except ValueError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


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
    """Why a single value cannot be written to a config, or nothing."""
    if isinstance(value, str):
        if len(value) > LONGEST:
            return f"a text of {len(value)} characters, more than {LONGEST}"
        if "\0" in value:
            return f"a text with a null character, {shown(value, 60)}"
        if any("\ud800" <= character <= "\udfff" for character in value):
            return f"a text that is not Unicode, {shortened(ascii(value), 60)}"
        return ""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "a whole number of more than 64 bits"
    if isinstance(value, float) and not math.isfinite(value):
        return f"the number {value!r}"
    if value is None or isinstance(value, (bool, int, float)):
        return ""
    return f"{value!r} ({type(value).__name__})"
