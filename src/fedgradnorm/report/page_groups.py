"""Which runs are seeds of one method, which are variants of it, and which do not fit together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedgradnorm.experiments.entries import own_name
from fedgradnorm.experiments.history import Row
from fedgradnorm.experiments.sweep import point_name
from fedgradnorm.report.page_runs import UNKNOWN_SEED, PageRun
from fedgradnorm.report.record import Record

# Settings that change how a run is made or logged, not what it computes.
_BESIDE = {"seed", "engine", "device", "log_every", "eval_every", "checkpoint_every", "folder",
           "record_conflict"}  # fmt: skip
_LIKE_FOR_LIKE = ("data.", "network.", "training.")
_SHOWN = 3  # settings named in a label, and values named in a note


@dataclass(frozen=True)
class Group:
    """The runs of one method and one set of settings: its seeds.

    ``whole`` are those that got furthest together: means and intervals come from them. ``partial``
    stopped earlier and are drawn as lines of their own.
    """

    label: str
    whole: tuple[PageRun, ...]
    partial: tuple[PageRun, ...]

    @property
    def records(self) -> list[Record]:
        """What tables are made from."""
        return [Record(self.label, run.seed, plain_rows(run), run.finished) for run in self.whole]

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


def plain_rows(run: PageRun) -> list[Row]:
    """The history with losses freed of the factor they were given, so that runs compare."""
    clients = run.part("clients")
    scales = {name: _scale(about) for name, about in clients.items()}
    if all(scale == 1.0 for scale in scales.values()):
        return run.rows
    return [
        {**row, "loss": row["loss"] / scales.get(row["client"], 1.0)} if "loss" in row else row
        for row in run.rows
    ]


def _scale(client: Any) -> float:
    scale = client.get("loss_scale", 1.0) if isinstance(client, dict) else 1.0
    return float(scale) if isinstance(scale, int | float) and scale > 0 else 1.0


def group(runs: Sequence[PageRun]) -> tuple[list[Group], list[str]]:
    """Runs with any rows, by method and settings; and what should be known about the mixture."""
    kept, notes = _without_repeats([run for run in runs if run.rows])
    families: dict[str, list[list[PageRun]]] = {}
    for run in kept:
        variants = families.setdefault(run.method, [])
        mine = next((v for v in variants if not _differences([v[0], run])), None)
        if mine is None:
            variants.append([run])
        else:
            mine.append(run)
    groups = []
    for method, found in families.items():
        variants = _in_order(found)
        for label, members in zip(_labels(method, variants), variants, strict=True):
            furthest = max(run.last_round for run in members)
            whole = tuple(run for run in members if run.last_round == furthest)
            partial = tuple(run for run in members if run.last_round < furthest)
            groups.append(Group(label, whole, partial))
    groups.sort(key=lambda one: _rank(one.whole[0].method))
    return groups, notes + _mixture(groups)


def _rank(method: str) -> int:
    """Equal weights, which others are held against, then the package's list, then the rest."""
    from fedgradnorm.experiments.methods import METHODS

    known = ["fedrep", *(name for name in METHODS if name != "fedrep")]
    return known.index(method) if method in known else len(known)


def _without_repeats(runs: Sequence[PageRun]) -> tuple[list[PageRun], list[str]]:
    """One run for each method, seed and settings: the one that got furthest."""
    kept: list[PageRun] = []
    notes = []
    for run in sorted(runs, key=lambda run: -run.last_round):
        twin = next((other for other in kept if _same(run, other)), None)
        if twin is None:
            kept.append(run)
        else:
            notes.append(f"{run.name} repeats {twin.name} (same method, settings, seed): left out")
    order = {id(run): number for number, run in enumerate(runs)}
    return sorted(kept, key=lambda run: order[id(run)]), notes


def _same(one: PageRun, other: PageRun) -> bool:
    named = one.seed == other.seed != UNKNOWN_SEED and one.method == other.method
    return named and not _differences([one, other])


def _settings(run: PageRun) -> dict[str, Any]:
    """Everything that decides a run's numbers, as dotted names."""
    flat: dict[str, Any] = {}
    parts = {
        "training": run.part("settings") or run.part("training"),
        "weighting": run.config.get("weighting", run.part("weighting")),
        "data": run.config.get("data", {}),
        "network": run.config.get("network", {}),
    }
    for section, table in parts.items():
        if isinstance(table, dict):
            flat |= {f"{section}.{key}": v for key, v in table.items() if key not in _BESIDE}
    return flat


def _differences(runs: Iterable[PageRun]) -> dict[str, list[Any]]:
    """Settings that all these runs have, with different values."""
    tables = [_settings(run) for run in runs]
    common = set.intersection(*(set(table) for table in tables))
    values = {key: [table[key] for table in tables] for key in sorted(common)}
    return {key: found for key, found in values.items() if any(v != found[0] for v in found)}


def _in_order(variants: list[list[PageRun]]) -> list[list[PageRun]]:
    """Variants that differ in numbers, such as the points of a sweep, by size."""
    differing = _differences(members[0] for members in variants)
    numbers = [key for key, values in differing.items() if all(map(_is_number, values))]
    order = sorted(range(len(variants)), key=lambda i: [differing[key][i] for key in numbers])
    return [variants[i] for i in order]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _labels(method: str, variants: Sequence[Sequence[PageRun]]) -> list[str]:
    """The method's name with what is its own, and the settings in which its variants differ."""
    firsts = [members[0] for members in variants]
    owns = [own_name(run.part("own")) for run in firsts]
    points = [point_name(run.part("point")) for run in firsts]  # where a sweep put them
    told = [" ".join(filter(None, both)) for both in zip(owns, points, strict=True)]
    if len(variants) == 1:
        told = owns
    elif not all(told) and len(set(told)) < len(told):
        differing = _differences(firsts)
        keys = list(differing)[:_SHOWN]
        told = [point_name({k: differing[k][i] for k in keys}) for i in range(len(variants))]
    labels = [" ".join(filter(None, (method, what))) for what in told]
    seen: Counter[str] = Counter()
    for i, label in enumerate(labels):
        seen[label] += 1
        labels[i] = label if seen[label] == 1 else f"{label} #{seen[label]}"
    return labels


def _mixture(groups: Sequence[Group]) -> list[str]:
    """Where methods do not start from the same data, network and training settings."""
    notes = []
    meant = _meant_to_differ(groups)
    for key, values in _differences(g.whole[0] for g in groups).items() if groups else ():
        if key.startswith(_LIKE_FOR_LIKE) and key not in meant:
            texts = list(dict.fromkeys(str(value) for value in values))
            more = " ..." if len(texts) > _SHOWN else ""
            shown = ", ".join(texts[:_SHOWN]) + more
            notes.append(f"not like for like: the runs differ in {key} ({shown})")
    scaled = [run.name for g in groups for run in g.whole if plain_rows(run) is not run.rows]
    if scaled:
        notes.append(f"losses are divided by the factor they were given ({len(scaled)} runs)")
    clients = {tuple(record.clients) for g in groups for record in g.records}
    if len(clients) > 1:
        notes.append("not like for like: the runs do not have the same clients")
    return notes


def _meant_to_differ(groups: Sequence[Group]) -> set[str]:
    """Settings that a method fixes, has for itself or that a sweep went through: section.key."""
    from fedgradnorm.experiments.methods import METHODS

    named = [METHODS[g.whole[0].method] for g in groups if g.whole[0].method in METHODS]
    fixed = {f"training.{key}" for method in named for key in method.settings}
    runs = [run for g in groups for run in g.whole]
    varied = {key for run in runs for name in ("point", "own") for key in run.part(name)}
    return fixed | {".".join(key.split(".")[:2]) for key in varied}
