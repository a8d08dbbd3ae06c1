"""The entries of a comparison: a method by name, and after it the settings it has for itself.

``fedgradnorm weighting.lr=0.008`` is compared with plain ``fedgradnorm`` as another method.
"""

from __future__ import annotations

import re
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
