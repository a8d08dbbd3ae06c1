"""Which runs are seeds of one variant, what variants are called, and which may be compared.

This is the only rule: terminal tables, figures, the page, tests and ``compare --from`` all show the
groups that :func:`group` makes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedgradnorm._methods import METHODS
from fedgradnorm._round.settings import key_of
from fedgradnorm._runs.reader import UNKNOWN_SEED, StoredRun
from fedgradnorm._runs.task_lines import pooled_runs
from fedgradnorm.experiments._entries import own_name
from fedgradnorm.experiments._facts import (
    CLIENTS,
    STRUCTURE,
    Facts,
    data_facts,
    differing,
    digest,
    fact_of,
    facts_of,
    fingerprint,
    frozen,
    same_rows,
)
from fedgradnorm.experiments._sweep import point_name


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
        """Where a sweep put it."""
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

    @property
    def gamma(self) -> float | None:
        """The pull toward a common pace, for methods that have one."""
        gamma = self.whole[0].part("weighting").get("gamma")
        return float(gamma) if isinstance(gamma, int | float) else None

    @property
    def shared(self) -> bool:
        """Whether its clients share a network, so that their gradients can be balanced."""
        settings = self.whole[0].part("settings") or self.whole[0].part("training")
        return bool(settings.get("share", "all") != "none")

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
        notes += [note for members, _ in kept for note in _drawn_by_seed(members)]
        groups += _named(method, _in_order([members for members, _ in kept]))
    groups.sort(key=lambda one: _rank(one.method))
    return groups, notes + mixture(groups)


def data_sets(groups: Sequence[Group]) -> list[list[Group]]:
    """The groups by the data they were trained on; only those of one set may be compared."""
    sets: list[list[Group]] = []
    for one in groups:
        mine = next((found for found in sets if one.same_data(found[0])), None)
        if mine is None:
            sets.append([one])
        else:
            mine.append(one)
    return sets


def _by_data(members: list[StoredRun]) -> list[list[StoredRun]]:
    """Runs of equal settings, apart where one seed had two sets of data.

    Data may be drawn by the seed, so seeds of one variant need not agree in their data; two runs of
    one seed must.
    """
    if all(same_rows(a, b) for a in members for b in members if a.seed == b.seed):
        return [members]
    apart: list[list[StoredRun]] = []
    for run in members:
        mine = next((part for part in apart if same_rows(run, part[0])), None)
        if mine is None:
            apart.append([run])
        else:
            mine.append(run)
    return apart


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


def _drawn_by_seed(members: Sequence[StoredRun]) -> list[str]:
    """A word on runs made in Python whose data changes with the seed: nobody said that it may."""
    same = all(same_rows(members[0], run) for run in members)
    if same or isinstance(members[0].config.get("data"), dict):
        return []
    names = ", ".join(run.name for run in members)
    return [f"{names}: taken as seeds of one method, though each seed had other data"]


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
    found = differing(tables)
    plain = [key for key in found if key != STRUCTURE and not key.startswith(CLIENTS)]
    if plain:
        shown = plain[:_NAMED]
        more = " ..." if len(plain) > _NAMED else ""
        texts = [point_name({k: t.get(k, "unknown") for k in shown}) + more for t in tables]
    else:
        texts = [""] * len(runs)
    for tell in (_network, _clients, _rows):
        if len(set(texts)) < len(texts):
            added = [tell(run) for run in runs]
            if len(set(added)) > 1:
                texts = [f"{text} {word}".strip() for text, word in zip(texts, added, strict=True)]
    seen: Counter[str] = Counter()
    for i, text in enumerate(texts):
        seen[text] += 1
        texts[i] = text if seen[text] == 1 else f"{text} #{seen[text]}".strip()
    return texts


def _network(run: StoredRun) -> str:
    about = run.manifest.get("network")
    if isinstance(about, dict) and "parameters" in about:
        return f"network={about.get('class')}/{about['parameters']}"
    return f"network={digest(run.part('blueprints'))[:4]}"


def _clients(run: StoredRun) -> str:
    return f"clients={digest(run.clients)[:4]}"


def _rows(run: StoredRun) -> str:
    return f"data={fingerprint(run)[:4] or 'unknown'}"


def pooled_groups(groups: Sequence[Group]) -> list[Group]:
    """The same groups; runs of many clients are the lines of their tasks."""
    return [
        replace(one, whole=tuple(pooled_runs(one.whole)), partial=tuple(pooled_runs(one.partial)))
        for one in groups
    ]
