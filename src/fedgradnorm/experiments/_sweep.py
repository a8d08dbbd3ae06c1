"""A sweep: lists instead of a config's values, and the points they span.

``[sweep]`` mirrors the config: ``weighting.gamma = [0, 1, 2]`` is three points; two such lists are
every pair of them.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from fedgradnorm._errors import ConfigError
from fedgradnorm._methods import find_method
from fedgradnorm._round.settings import name_of

Point = dict[str, Any]
"""Values by dotted key of the config."""


def points(sweep: Mapping[str, Any]) -> list[Point]:
    """Every combination of the values, the last key's moving fastest; one empty point of none.

    >>> points({"weighting": {"gamma": [0, 1]}})
    [{'weighting.gamma': 0}, {'weighting.gamma': 1}]
    """
    lists = _flat(sweep)
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, list[Any]]:
    """Nested tables of lists as lists by dotted key."""
    found: dict[str, list[Any]] = {}
    for name, value in table.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            found |= _flat(value, f"{key}.")
        elif isinstance(value, list) and value:
            found[key] = value
        else:
            raise ConfigError(f"sweep.{key} = {value!r} should be a list of at least one value")
    return found


def felt_by(point: Mapping[str, Any], method: str) -> Point:
    """The part of a point that this method feels: not options it lacks or settings it fixes."""
    known = find_method(method)
    options, fixed = known.options(), known.fixes

    def feels(key: str) -> bool:
        table, name, *_ = [*key.split("."), ""]
        if table == "weighting":
            return not name or name in options
        return (name_of(key) or key) not in fixed

    return {key: value for key, value in point.items() if feels(key)}


def point_name(point: Mapping[str, Any]) -> str:
    """A point in words: ``gamma=0.5``, with as much of the keys as tells them apart.

    >>> point_name({"local.head_steps": 1, "local.shared_steps": 4})
    'head_steps=1 shared_steps=4'
    """
    last = {key: key.rpartition(".")[2] for key in point}
    count = Counter(last.values())
    return " ".join(
        f"{last[key] if count[last[key]] == 1 else key}={_plain(value)}"
        for key, value in point.items()
    )


def key_name(point: Mapping[str, Any]) -> str:
    """What a point's keys are called on an axis: ``gamma``, ``loss_scale.landmark``."""
    return ", ".join(".".join(key.split(".")[1:]) or key for key in point)


def value_name(point: Mapping[str, Any]) -> str:
    """A point's values alone, where its keys stand elsewhere."""
    return ", ".join(map(_plain, point.values()))


def file_name(text: str) -> str:
    return re.sub(r"[^\w.=+-]+", "-", text)


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
