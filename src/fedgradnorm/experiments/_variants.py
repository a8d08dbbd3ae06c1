"""What a comparison varies: methods with settings of their own, and the points of a sweep.

An entry is a method by name, and after it the settings it has for itself:
``fedgradnorm weighting.lr=0.008`` is compared with plain ``fedgradnorm`` as another method.
``[sweep]`` mirrors the config with lists instead of values: ``weighting.gamma = [0, 1, 2]`` is
three points; two such lists are every pair of them.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedgradnorm._errors import ConfigError
from fedgradnorm._methods import find_method
from fedgradnorm._round.settings import GROUPS, SWITCHES, TOP, name_of
from fedgradnorm._toml import parse_value

FROZEN_FROM = "fedgradnorm"
"""The method whose averaged weights the static ones are made of."""


@dataclass(frozen=True)
class Entry:
    """A method, and the values by dotted key that it has for itself."""

    method: str
    own: Mapping[str, Any]

    @property
    def label(self) -> str:
        return " ".join(filter(None, (self.method, own_name(self.own))))

    @property
    def needs_a_run(self) -> bool:
        return "folder" in find_method(self.method).options()


def own_name(own: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in own.items())


def split_entries(text: str) -> list[str]:
    """The entries of a command line: between commas, but for those inside brackets."""
    depth, entries = 0, list[list[str]]([[]])
    for piece in re.split(r"([,{}\[\]])", text):
        depth = max(0, depth + {"{": 1, "[": 1, "}": -1, "]": -1}.get(piece, 0))
        if piece == "," and not depth:
            entries.append([])
        else:
            entries[-1].append(piece)
    return [entry for pieces in entries if (entry := "".join(pieces).strip())]


def read_entry(text: str) -> Entry:
    """The entry that a config or a command line names.

    >>> read_entry("fedgradnorm weighting.lr=0.008")
    Entry(method='fedgradnorm', own={'weighting.lr': 0.008})
    """
    name, *words = text.split() or [""]
    method = find_method(name)
    own: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        table, _, setting = key.partition(".")
        chosen = (table in GROUPS and setting) or (key in (*TOP, *SWITCHES) and key != "seed")
        if not (equals and value) or not (chosen or (table == "weighting" and setting)):
            raise ConfigError(
                f"{text!r}: a method's name can be followed by its own settings, such as "
                f"weighting.lr=0.008 or lr=0.001, without spaces in them; not {word!r}"
            )
        if key in own:
            raise ConfigError(f"{text!r} sets {key} twice")
        fixed = name_of(key)
        if fixed in method.fixes:
            raise ConfigError(f"{text!r}: {name} is {key} = {method.fixes[fixed]!r}")
        own[key] = parse_value(value)
    entry = Entry(name, dict(sorted(own.items())))
    if entry.needs_a_run and any(key.startswith("weighting.") for key in own):
        raise ConfigError(f"{text!r}: {name}'s weights are those of {FROZEN_FROM}'s run")
    return entry


def read_entries(texts: Sequence[str], seeds: int, *, swept: bool) -> list[Entry]:
    """The entries, if they and the seeds make a comparison."""
    if not texts:
        raise ConfigError("no methods to compare: name at least one, for example fedrep")
    if seeds < 1:
        raise ConfigError(f"the number of seeds must be at least 1, not {seeds}")
    entries = [read_entry(text) for text in texts]
    for number, entry in enumerate(entries):
        if entry in entries[:number]:
            raise ConfigError(f"method {entry.label!r} is named twice; name each once")
        if entry.own and swept:
            raise ConfigError(
                f"{entry.label!r} has its own settings, and [sweep] varies settings too; put "
                "the values into the sweep, or leave it out"
            )
        if entry.needs_a_run and Entry(FROZEN_FROM, {}) not in entries:
            raise ConfigError(f"{entry.method} takes the weights of {FROZEN_FROM}: compare both")
    return entries


Point = dict[str, Any]
"""Values by dotted key of the config."""


MOST = 10_000
"""Points of one sweep."""


def points(sweep: Mapping[str, Any]) -> list[Point]:
    """Every combination of the values, the last key's moving fastest; one empty point of none.

    >>> points({"weighting": {"gamma": [0, 1]}})
    [{'weighting.gamma': 0}, {'weighting.gamma': 1}]
    """
    lists = _flat(sweep)
    count = math.prod(map(len, lists.values()))
    if count > MOST:
        raise ConfigError(f"[sweep] spans {count} points, more than {MOST}; make several of it")
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
