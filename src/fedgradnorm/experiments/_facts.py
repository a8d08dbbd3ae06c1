"""What a run is: everything that shapes its numbers, beside its seed.

Two runs are seeds of one variant only if nothing here differs. Two variants are compared only if
their data is the same.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from fedgradnorm._methods import METHODS
from fedgradnorm._round.settings import FIELDS, GROUPS, completed, name_of, scope_of
from fedgradnorm._runs.reader import StoredRun

Facts = dict[str, Any]
"""Values by dotted name: training.lr, weighting.gamma, data.samples, network.widths."""

BESIDE = frozenset(
    {"seed", "folder", "cache", *(name for name in FIELDS if not scope_of(name).changes_result)}
)
"""Settings that change how a run is made or kept, not what it computes."""

STRUCTURE, CLIENTS = "network.structure", "data.clients."
LOSS_SCALE = "data.loss_scale"


def facts_of(run: StoredRun) -> Facts:
    """Everything that decides a run's numbers but its seed and method.

    A setting that an archived run does not store has its default.
    """
    parts = {
        "training": _training(run),
        "weighting": _weighting(run),
        "data": _data(run),
        "network": _network(run),
        "privacy": _privacy(run),
    }
    beside = BESIDE
    training = parts["training"]
    if training.get("keep", "last") != "last" or training.get("patience") is not None:
        # Evaluations are then what is chosen from.
        beside = BESIDE - {"eval_every"}
    kept = {part: {k: v for k, v in t.items() if k not in beside} for part, t in parts.items()}
    named = {**kept, "own": run.part("own"), "point": run.part("point")}
    return {f"{part}.{key}": value for part, table in named.items() for key, value in table.items()}


def fact_of(key: str) -> str:
    """The fact that a key of a config decides: those of all groups are facts of the training.

    >>> fact_of("local.head_steps"), fact_of("lr"), fact_of("data.samples")
    ('training.head_steps', 'training.lr', 'data.samples')
    """
    table, _, rest = key.partition(".")
    if name := name_of(key):
        return f"training.{name}"
    if table in GROUPS:
        return f"training.{rest}"
    return f"training.{key}" if table in FIELDS else key


def data_facts(facts: Facts) -> Facts:
    """What the run's data was; a factor on a loss is no other data."""
    return {k: v for k, v in facts.items() if k.startswith("data.") and not is_scale(k)}


def is_scale(name: str) -> bool:
    """Whether the fact is a factor on a loss."""
    return name == LOSS_SCALE or name.startswith(f"{LOSS_SCALE}.")


def same_rows(one: StoredRun, other: StoredRun) -> bool:
    """Whether nothing that is known of both runs' rows tells them apart."""
    if one.prints == other.prints and one.prints and None not in one.prints.values():
        return True
    ours, theirs = _clients(one), _clients(other)
    if ours and theirs and list(ours) != list(theirs):
        return False
    both = [(ours[name], theirs[name]) for name in ours if name in theirs]
    return not any(
        a.get(key) != b.get(key)
        for a, b in both
        for key in ("size", "fingerprint")
        if key in a and key in b
    )


def fingerprint(run: StoredRun) -> str:
    """The values that all clients held, as one hash; empty of a run that did not store them."""
    clients = _clients(run)
    known = [client.get("fingerprint") for client in clients.values()]
    return digest([list(clients), known]) if known and None not in known else ""


def differing(tables: Sequence[Facts], starts: tuple[str, ...] = ("",)) -> dict[str, list[Any]]:
    """The facts in which some of these differ, with each one's value; None where it has none."""
    keys = sorted({key for table in tables for key in table if key.startswith(starts)})
    values = {key: [table.get(key) for table in tables] for key in keys}
    return {key: v for key, v in values.items() if len({frozen(one) for one in v}) > 1}


def digest(value: Any) -> str:
    """A short name for any plain value."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def frozen(value: Any) -> Hashable:
    """A plain value as a key: equal numbers are equal, whatever their type."""
    if isinstance(value, Mapping):
        return tuple(sorted((str(key), frozen(item)) for key, item in value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(map(frozen, value))
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return value if isinstance(value, Hashable) else str(value)


def _training(run: StoredRun) -> Facts:
    settings, start = run.part("settings"), run.part("start").get("fingerprint")
    table = completed(_published(settings)) if settings else _published(run.part("training"))
    later = _flat(run.part("personalized"), "personalized.")  # after the run was over
    return {**table, **later, **({} if start is None else {"start": start})}


def _published(stored: Facts) -> Facts:
    """The settings of an archive in docs/results; most predate ``heads`` and ``head_init``."""
    named = {"head_init": "random", **stored}
    if "average_heads" in named:
        named["heads"] = "all" if named.pop("average_heads") else "own"
    return named


def _weighting(run: StoredRun) -> Facts:
    table = run.config.get("weighting", run.part("weighting"))
    if not isinstance(table, dict):
        return {}
    known = METHODS.get(run.method)
    options = known.options() if known is not None and "weighting" in run.config else {}
    defaults = {name: p.default for name, p in options.items() if p.default is not p.empty}
    return {**defaults, **table}


def _data(run: StoredRun) -> Facts:
    """The table of a config; of a run made in Python, who its clients were and what they held.

    How many rows they held, and which, is the fingerprint's to say.
    """
    table = run.config.get("data")
    if isinstance(table, dict):
        return _flat(table)
    clients = _clients(run)
    shown = ("kind", "outputs", "task", "inputs")
    who = {name: {k: c[k] for k in shown if k in c} for name, c in clients.items()}
    scales = {n: c["loss_scale"] for n, c in clients.items() if c.get("loss_scale", 1.0) != 1.0}
    tables = {n: c["class_weights"] for n, c in clients.items() if "class_weights" in c}
    weights = {n: table.get("given") for n, table in tables.items() if isinstance(table, dict)}
    return _flat({"clients": who, "loss_scale": scales, "class_weights": weights})


def _privacy(run: StoredRun) -> Facts:
    """What clients promised: once where all promised the same, else by client."""
    tables = {name: c["privacy"] for name, c in _clients(run).items() if c.get("privacy")}
    alike = len(tables) == len(_clients(run)) and len({frozen(t) for t in tables.values()}) == 1
    return _flat(next(iter(tables.values())) if alike else tables)


def _clients(run: StoredRun) -> dict[str, dict[str, Any]]:
    return {name: c for name, c in run.part("clients").items() if isinstance(c, dict)}


def _network(run: StoredRun) -> Facts:
    """The table of a config, and the layers that were made of it."""
    table = run.config.get("network")
    facts = dict(table) if isinstance(table, dict) else {}
    plans, about = run.part("blueprints"), run.part("network")
    heads = None if isinstance(table, dict) else plans.get("heads")  # a config has only ours
    layers = plans.get("network") or about.get("structure")
    return {**facts, "structure": digest([layers, heads])} if layers else facts


def _flat(table: Mapping[str, Any], prefix: str = "") -> Facts:
    found: Facts = {}
    for name, value in table.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            found |= _flat(value, f"{key}.")
        elif not isinstance(value, Mapping):
            found[key] = value
    return found
