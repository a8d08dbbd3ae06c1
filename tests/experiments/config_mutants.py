"""Configs that went wrong: values, keys, structure and text changed at random, from a seed."""

from __future__ import annotations

import copy
import random
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedgradnorm._methods import METHODS
from fedgradnorm._round.settings import GROUPS, Settings, key_of
from fedgradnorm._toml import to_toml

ROOT = Path(__file__).parents[2]
BASES = sorted(path.read_text() for path in (ROOT / "configs").glob("*.toml"))


def nested(depth: int) -> Any:
    """A list in a list in a list."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


STRANGE: tuple[Any, ...] = (
    [], {}, "", "none", "x", 0, -1, 1, 2, 1.5, -0.0, 1e-320, 1e308, 10**9, 10**12, 2**63 - 1,
    -(2**63), 2**64, 10**400, float("nan"), float("inf"), float("-inf"), True, False, "\0", "a\0b",
    "é\u202e\x7f", "a" * 300, "x" * 5000, "../..", "/dev/null", "~nobody-here/x", ".", "os:system",
    "mlp", "adam", [[]], [1, [2]], [""], [0.5], ["a", "b"], ["a", 1], [{}], [10**9],
    [10**9, 10**9], [3] * 2000, nested(30), {"name": "sgd"}, {"name": []}, {"a": 1},
    {"name": "adam", "betas": []}, {"name": "adam", "betas": [0.9, 0.9, 0.9]},
    {"name": "sgd", "lr": "x"}, {"name": "adam", "eps": "x"}, {"name": "sgd", "momentum": [1]},
    {"name": "adam", "fused": 3}, {"class": 1.0}, {"": ""}, {"a": {"b": {"c": []}}},
)  # fmt: skip
KEYS = (
    "name", "method", "seed", "data", "network", *GROUPS, "weighting", "output", "compare",
    "sweep", "point", "own", "source", "samples", "tasks", "base", "clients", "partition", "path",
    "cache", "boxes", "task", "train", "test_share", "targets", "standardize", "widths", "inputs",
    "activation", "folder", "tracking", "methods", "seeds", "baseline", "gamma", "lr", "rule",
    "weights", "betas", "", "a b", "ключ", "__class__", "_allow", "x" * 300,
    *(field.name for field in fields(Settings)),
)  # fmt: skip


def options() -> list[str]:
    """Dotted keys that mean something: settings, networks' and methods' options, tables of data."""
    training = [key_of(field.name) for field in fields(Settings)]
    weighting = {f"weighting.{key}" for method in METHODS.values() for key in method.options()}
    network = ["network.name", "network.inputs", "network.widths", "network.activation"]
    others = [
        "name", "method", "seed", "output.folder", "output.tracking", "data.source", "data.base",
        "data.partition", "data.partition.class", "data.clients", "data.seed", "data.standardize",
        "data.on_bad", "compare", "compare.methods", "compare.seeds", "compare.own.fedrep",
        "compare.own.fedrep.local", "sweep.lr", "sweep", "point", "own.x", "weighting",
        *GROUPS, "network", "output",
    ]  # fmt: skip
    return [*training, *sorted(weighting), *network, *others]


OPTIONS = options()


def aimed(table: dict[str, Any], rng: random.Random) -> None:
    """A strange value where a config has an option, now and then with another method."""
    if rng.random() < 0.3:
        table["method"] = rng.choice(sorted(METHODS))
        table["weighting"] = {}
    *parents, last = rng.choice(OPTIONS).split(".")
    place = table
    for part in parents:
        if not isinstance(place.get(part), dict):
            place[part] = {}
        place = place[part]
    place[last] = copy.deepcopy(rng.choice(STRANGE))


def mutant(text: str, rng: random.Random) -> bytes:
    """A config's text, changed in a few places: mostly its values, sometimes its letters."""
    if rng.random() < 0.8:
        table = tomllib.loads(text)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            rng.choice((aimed, change))(table, rng)
        text = to_toml(table)
    data = text.encode()
    while rng.random() < 0.2:
        data = scratched(data, rng)
    return data


def change(table: dict[str, Any], rng: random.Random) -> None:
    """One change of the table's values, keys or structure, in place."""
    place, key = rng.choice(places(table))
    kind = rng.random()
    if kind < 0.5:
        place[key] = copy.deepcopy(rng.choice(STRANGE))
    elif kind < 0.7 and isinstance(place, dict):
        place[rng.choice(KEYS)] = copy.deepcopy(rng.choice(STRANGE))
    elif kind < 0.8 and isinstance(place, dict):
        place[rng.choice(KEYS)] = place.pop(key)
    elif kind < 0.9:
        del place[key]
    else:
        place[key] = rng.choice(([place[key]], {"name": place[key]}))


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container of the tree with every key in it."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    found: list[tuple[Any, Any]] = []
    for key, item in inside:
        found.append((value, key))
        if isinstance(item, (dict, list)):
            found += places(item)
    return found or [(value, new_key(value))]


def new_key(value: Any) -> Any:
    """Where to put something into an empty container."""
    if isinstance(value, list):
        value.append(0)
        return 0
    value["x"] = 0
    return "x"


def scratched(data: bytes, rng: random.Random) -> bytes:
    """Bytes cut out, doubled or put in."""
    start = rng.randrange(len(data) + 1)
    stop = min(len(data), start + rng.randrange(20))
    middle = rng.choice(
        (
            b"",
            data[start:stop] * 2,
            rng.randbytes(4),
            b"[" * 600,
            b"\0",
            b"\xff",
            b'"',
            b"\n[data]\n",
        )
    )
    return data[:start] + middle + data[stop:]


def words(rng: random.Random) -> list[str]:
    """``key=value`` words of a command line, now and then."""
    made = []
    while rng.random() < 0.2:
        key = ".".join(rng.choice(KEYS) for _ in range(rng.choice((1, 2, 2, 2, 3, 40))))
        value = rng.choice(STRANGE)
        made.append(
            f"{key}={value!r}" if rng.random() < 0.8 else rng.choice((key, "\udcff=1", "="))
        )
    return made
