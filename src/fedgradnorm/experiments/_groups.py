"""Which runs are seeds of one variant, what variants are called, and which may be compared.

This is the only rule: terminal tables, figures, the page, tests and ``compare --from`` all show the
groups that :func:`group` makes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from fedgradnorm._methods import METHODS
from fedgradnorm._round.settings import FIELDS, GROUPS, completed, key_of, name_of, scope_of
from fedgradnorm._runs.reader import UNKNOWN_SEED, StoredRun, pooled_runs
from fedgradnorm.experiments._variants import own_name, point_name

T = TypeVar("T")

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
    beside, training = BESIDE, parts["training"]
    if training.get("keep", "last") != "last" or training.get("patience") is not None:
        beside = BESIDE - {"eval_every"}  # evaluations are then what is chosen from
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
    return name == LOSS_SCALE or name.startswith(f"{LOSS_SCALE}.")


def same_rows(one: StoredRun, other: StoredRun) -> bool:
    """Whether nothing that is known of both runs' rows tells them apart."""
    if one.prints == other.prints and one.prints and None not in one.prints.values():
        return True
    ours, theirs = one.part("clients"), other.part("clients")
    if ours and theirs and list(ours) != list(theirs):
        return False
    return not any(
        key in mine and key in its and mine[key] != its[key]
        for mine, its in zip(ours.values(), theirs.values(), strict=False)
        for key in ("size", "fingerprint")
    )


def fingerprint(run: StoredRun) -> str:
    """The values that all clients held, as one hash; empty of a run that did not store them."""
    clients = run.part("clients")
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
    clients = run.part("clients")
    shown = ("kind", "outputs", "task", "inputs")
    who = {name: {k: c[k] for k in shown if k in c} for name, c in clients.items()}
    scales = {n: c["loss_scale"] for n, c in clients.items() if c.get("loss_scale", 1.0) != 1.0}
    tables = {n: c["class_weights"] for n, c in clients.items() if "class_weights" in c}
    weights = {n: table.get("given") for n, table in tables.items() if isinstance(table, dict)}
    return _flat({"clients": who, "loss_scale": scales, "class_weights": weights})


def _privacy(run: StoredRun) -> Facts:
    """What clients promised: once where all promised the same, else by client."""
    tables = {name: c["privacy"] for name, c in run.part("clients").items() if c.get("privacy")}
    alike = (
        len(tables) == len(run.part("clients")) and len({frozen(t) for t in tables.values()}) == 1
    )
    return _flat(next(iter(tables.values())) if alike else tables)


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


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seed.

    ``whole`` are those that count: the finished ones or, where none is, those that got furthest
    together. ``partial`` stopped earlier. ``line`` is what the group is called but for the point of
    a sweep that it stands at.
    """

    method: str
    line: str
    label: str
    whole: tuple[StoredRun, ...]
    partial: tuple[StoredRun, ...] = ()
    facts: Facts = field(default_factory=dict)

    @property
    def own(self) -> dict[str, Any]:
        """The settings that make it a variant of its method."""
        return self.whole[0].part("own")

    @property
    def point(self) -> dict[str, Any]:
        return self.whole[0].part("point")

    @property
    def finished(self) -> bool:
        """Whether the runs that count came to their end."""
        return all(run.finished for run in self.whole)

    @property
    def seeds(self) -> dict[int, StoredRun]:
        """The runs that count by their seed; those of unknown seed by a number below zero."""
        unknown = [run for run in self.whole if run.seed == UNKNOWN_SEED]
        known = {run.seed: run for run in self.whole if run.seed != UNKNOWN_SEED}
        return known | {UNKNOWN_SEED - i: run for i, run in enumerate(unknown)}

    def same_data(self, other: Group) -> bool:
        """Whether both were trained on the same rows.

        Fingerprints decide where all common seeds have them, else what the data is said to be.
        """
        ours, theirs = self.seeds, other.seeds
        both = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
        if not all(same_rows(one, two) for one, two in both):
            return False
        if both and all(fingerprint(one) and fingerprint(two) for one, two in both):
            return True
        return frozen(data_facts(self.facts)) == frozen(data_facts(other.facts))


def group(runs: Sequence[StoredRun]) -> tuple[list[Group], list[str]]:
    """The groups of all runs with any rows, and what should be known about the mixture."""
    families: dict[str, dict[Any, list[StoredRun]]] = {}
    for run in runs:
        if run.rows:
            found = families.setdefault(run.method, {})
            found.setdefault(frozen(facts_of(run)), []).append(run)
    groups, notes = list[Group](), list[str]()
    for method, found in families.items():
        parts = [part for members in found.values() for part in _by_data(members)]
        kept = [_without_repeats(part) for part in parts]
        notes += [note for _, told in kept for note in told]
        groups += _named(method, _in_order([members for members, _ in kept]))
    groups.sort(key=lambda one: _rank(one.method))
    return groups, notes + mixture(groups)


def data_sets(groups: Sequence[Group]) -> list[list[Group]]:
    """The groups by the data they were trained on; only those of one set may be compared."""
    return _parted(groups, Group.same_data)


def _parted(items: Sequence[T], alike: Callable[[T, T], bool]) -> list[list[T]]:
    """The items in lists of those that are like the first of their list."""
    parts: list[list[T]] = []
    for item in items:
        mine = next((part for part in parts if alike(item, part[0])), None)
        if mine is None:
            parts.append([item])
        else:
            mine.append(item)
    return parts


def _by_data(members: list[StoredRun]) -> list[list[StoredRun]]:
    """Runs of equal settings, apart where one seed had two sets of data.

    Data may be drawn by the seed, so seeds of one variant need not agree in their data; two runs of
    one seed must.
    """
    if all(same_rows(a, b) for a in members for b in members if a.seed == b.seed):
        return [members]
    return _parted(members, same_rows)


def _without_repeats(members: Sequence[StoredRun]) -> tuple[list[StoredRun], list[str]]:
    """One run a seed, the one that got furthest; the others are named."""
    best: dict[int, StoredRun] = {}
    notes = []
    for run in sorted(members, key=lambda run: (not run.finished, -run.last_round)):
        twin = best.get(run.seed) if run.seed != UNKNOWN_SEED else None
        if twin is None:
            best[run.seed if run.seed != UNKNOWN_SEED else -2 - len(best)] = run
        else:
            notes.append(f"{run.name} repeats {twin.name} (same method, settings, seed): left out")
    kept = {id(run) for run in best.values()}
    return [run for run in members if id(run) in kept], notes


def _named(method: str, variants: Sequence[Sequence[StoredRun]]) -> list[Group]:
    groups = []
    lines = _labels(method, variants)
    for (line, label), members in zip(lines, variants, strict=True):
        ended = [run for run in members if run.finished] or list(members)
        furthest = max(run.last_round for run in ended)
        whole = tuple(r for r in ended if r.last_round == furthest or r.stopped_early)
        rest = tuple(run for run in members if run not in whole)
        groups.append(Group(method, line, label, whole, rest, facts_of(whole[0])))
    return groups


def _rank(method: str) -> int:
    """Equal weights, which others are held against, then the package's list, then the rest."""
    known = ["fedrep", *(name for name in METHODS if name != "fedrep")]
    return known.index(method) if method in known else len(known)


_LIKE_FOR_LIKE = ("data.", "network.", "training.")
_SHOWN = 3


def mixture(groups: Sequence[Group]) -> list[str]:
    """Where methods do not start from the same data, network and training settings."""
    notes = [
        f"not like for like: the runs differ in {key} ({_texts(values)})"
        for key, values in unlike(groups).items()
    ]
    if not any("data." in note for note in notes) and len(data_sets(groups)) > 1:
        notes.append("not like for like: the runs were not trained on the same rows")
    if len({tuple(run.names) for one in groups for run in one.whole}) > 1:
        notes.append("not like for like: the runs do not have the same clients")
    return notes


def unlike(groups: Sequence[Group]) -> dict[str, list[Any]]:
    """The facts in which groups differ and should not: not a sweep's, a method's or an entry's."""
    found = differing([one.facts for one in groups], _LIKE_FOR_LIKE)
    meant = _meant_to_differ(groups)
    return {
        key: values
        for key, values in found.items()
        if not key.startswith(CLIENTS)
        and not any(key == name or key.startswith(f"{name}.") for name in meant)
    }


def _texts(values: Sequence[Any]) -> str:
    texts = list(dict.fromkeys("-" if value is None else str(value) for value in values))
    return ", ".join(texts[:_SHOWN]) + (" ..." if len(texts) > _SHOWN else "")


def _meant_to_differ(groups: Iterable[Group]) -> set[str]:
    """What a method fixes, has for itself or that a sweep went through, by dotted name."""
    meant: set[str] = set()
    for one in groups:
        fixed: Mapping[str, Any] = METHODS[one.method].settings if one.method in METHODS else {}
        meant |= {fact_of(key) for key in (*map(key_of, fixed), *one.own, *one.point)}
    return meant


Variants = Sequence[Sequence[StoredRun]]
_NAMED = 3  # settings named in a label


def _labels(method: str, variants: Variants) -> list[tuple[str, str]]:
    """(line, label) of each variant of a method; a label is its line and its point of a sweep.

    No two labels are the same: variants that own settings and point do not tell apart are called by
    the settings, the network or the data in which they differ.
    """
    firsts = [members[0] for members in variants]
    lines = [" ".join(filter(None, (method, own_name(run.part("own"))))) for run in firsts]
    points = [point_name(run.part("point")) for run in firsts]
    whole = [" ".join(filter(None, pair)) for pair in zip(lines, points, strict=True)]
    told = [""] * len(firsts)
    for label in {label for label, count in Counter(whole).items() if count > 1}:
        alike = [i for i, other in enumerate(whole) if other == label]
        for i, text in zip(alike, _apart([firsts[i] for i in alike]), strict=True):
            told[i] = text
    lines = [" ".join(filter(None, pair)) for pair in zip(lines, told, strict=True)]
    return [(line, f"{line} {point}".strip()) for line, point in zip(lines, points, strict=True)]


def _in_order(variants: list[list[StoredRun]]) -> list[list[StoredRun]]:
    """Variants that differ in numbers, such as the points of a sweep, by size."""
    tables = [facts_of(members[0]) for members in variants]
    numbers = [k for k, values in differing(tables).items() if all(map(_is_number, values))]
    order = sorted(range(len(variants)), key=lambda i: [tables[i][key] for key in numbers])
    return [variants[i] for i in order]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _apart(runs: Sequence[StoredRun]) -> list[str]:
    """What tells each of these runs from the others, in a few words."""
    tables = [facts_of(run) for run in runs]
    plain = [k for k in differing(tables) if k != STRUCTURE and not k.startswith(CLIENTS)]
    more = " ..." if len(plain) > _NAMED else ""
    texts = [point_name({k: t.get(k, "unknown") for k in plain[:_NAMED]}) + more for t in tables]
    seen: Counter[str] = Counter()
    for i, text in enumerate(texts):
        seen[text] += 1
        texts[i] = (text if seen[text] == 1 else f"{text} #{seen[text]}").strip()
    return texts


def pooled_groups(groups: Sequence[Group]) -> list[Group]:
    """The same groups; runs of many clients are the lines of their tasks."""
    return [
        replace(one, whole=tuple(pooled_runs(one.whole)), partial=tuple(pooled_runs(one.partial)))
        for one in groups
    ]
