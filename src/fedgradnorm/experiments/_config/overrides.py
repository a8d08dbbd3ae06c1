"""``key=value`` words from the command line, put into a config."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from fedgradnorm._checks import shortened
from fedgradnorm._errors import ConfigError
from fedgradnorm.experiments._config.plain import DEEPEST
from fedgradnorm.experiments._config.toml_text import parse_toml

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
