"""Runs as one tidy table: a row per run and task, at the end of training.

Tables, figures, the page and the headline are made from this table. Which runs are seeds of one
variant is decided by ``experiments._groups``; which variant each is compared with is decided here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any

import pandas as pd

from fedgradnorm._errors import RunFolderError
from fedgradnorm._methods import LOCAL, METHODS
from fedgradnorm._round.reports import COLUMNS, KEYS
from fedgradnorm._runs.csv_table import Row
from fedgradnorm._runs.history import NOT_PRIVATE_EPSILON, SPENT
from fedgradnorm._runs.manifest import diverged_words
from fedgradnorm._runs.reader import (
    MEDIAN,
    NOT_JUDGED,
    Judged,
    StoredRun,
    collect,
    line_name,
    made_by_program,
    synthetic,
)
from fedgradnorm.data._source import SOURCES
from fedgradnorm.experiments._groups import (
    Group,
    data_sets,
    fingerprint,
    group,
    pooled_groups,
    unlike,
)
from fedgradnorm.experiments._statistics import estimate, first_reach, gain, holm, paired_p
from fedgradnorm.experiments._variants import point_name
from fedgradnorm.tasks._named_metrics import higher_is_better

BASELINES = ("fedrep", "Equal", LOCAL)
"""Variants are compared with the first of these that is among them, else with the first method."""

MANY = 8
"""More variants than this are ranked, and not all of them are drawn at first."""

HELD_OUT = ("test", "validation")
"""Where a task's metric is taken from: the first of these that it has, else the training data."""

MEASURES = {"score": "held-out metric", "loss": "training loss"}

_NO_METRIC = {*KEYS, *COLUMNS, SPENT, NOT_PRIVATE_EPSILON} - {"loss"}


@dataclass(frozen=True)
class Report:
    """Runs in the form that everything is made from.

    ``frame`` has a row per run and task, with the following columns:

    - ``variant``, ``method``, ``line`` (the variant without its point of a sweep), ``point``;
    - ``data``: only runs on the same data are compared;
    - ``base``, ``alone``: the variant of the baseline method, or of training alone, to compare to;
    - ``overlap``: the size of the test split relative to training, where seeds redraw both;
    - ``seed``, ``task``, ``metric``, ``higher`` (whether more is better), ``split``;
    - ``first_loss``, ``loss``, ``held_loss``, ``score``, ``weight``;
    - ``constant``: the score of the constant baseline;
    - ``reached``: the epoch at which it had the base's last training loss;
    - ``megabytes``, ``seconds``; ``main``: whether headlines count this row.

    Of many clients it has quantiles in place of tasks; ``everybody`` are the groups of all clients.
    """

    frame: pd.DataFrame
    groups: Mapping[str, Group]
    everybody: Sequence[Group]
    runs: Sequence[StoredRun]
    baseline: str
    notes: Sequence[str]

    @cached_property
    def variants(self) -> list[str]:
        return list(self.groups)

    @cached_property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(self.frame.task))

    @cached_property
    def seeds(self) -> dict[str, int]:
        return {name: len(one.seeds) for name, one in self.groups.items()}

    @cached_property
    def points(self) -> list[Mapping[str, Any]]:
        """The points of a sweep; empty if there are fewer than two."""
        found = {point_name(one.point): one.point for one in self.groups.values() if one.point}
        return list(found.values()) if len(found) > 1 else []

    @cached_property
    def lines(self) -> list[str]:
        """The variants' names without the points of a sweep."""
        return list(dict.fromkeys(one.line for one in self.groups.values()))

    def along(self, line: str) -> list[str | None]:
        """The variant of this line at each point; the same one if the sweep does not change it."""
        mine = {point_name(v.point): k for k, v in self.groups.items() if v.line == line}
        return [mine.get(point_name(point), mine.get("")) for point in self.points]

    @property
    def synthetic(self) -> str:
        """``Synthetic data: ...`` if a program made the data of any run."""
        return synthetic(self.runs)

    @cached_property
    def effects(self) -> Mapping[str, pd.DataFrame]:
        return {measure: effects(self.frame, measure) for measure in MEASURES}

    @cached_property
    def gains(self) -> Mapping[tuple[str, str], pd.DataFrame]:
        """:func:`paired` gains by measure and by what they are compared with: base or alone."""
        return {(m, b): paired(self.frame, m, b) for m in MEASURES for b in ("base", "alone")}

    @cached_property
    def ranking(self) -> dict[str, list[str]]:
        """The variants by their mean gain over tasks on each measure, the best first."""
        return {measure: self._ranked(measure) for measure in MEASURES}

    def _ranked(self, measure: str) -> list[str]:
        gains = self.gains[measure, "base"].groupby("variant").gain
        means = gains.agg(lambda values: values.mean(skipna=False))  # a diverged task counts
        zero = {name: 0.0 for name, one in self.groups.items() if one.method == self.baseline}
        known = {**zero, **means.dropna().to_dict()}
        return sorted(self.variants, key=lambda name: -known.get(name, -math.inf))

    @property
    def many(self) -> bool:
        """Whether there are too many variants to look at one by one."""
        return len(self.variants) > MANY and not self.points

    def standouts(self) -> list[str]:
        """The variants to draw first: of many, the baseline, FedGradNorm and the best ones."""
        if not self.many:
            return self.variants
        best = self.ranking["score" if len(self.effects["score"]) else "loss"]
        ours = (self.baseline, "fedgradnorm", "fedgradnorm-direct")
        first = [name for method in ours for name in best if self.groups[name].method == method]
        chosen = list(dict.fromkeys([*first, *best]))[:MANY]
        return [name for name in self.variants if name in chosen]


def read_report(places: Sequence[Path], baseline: str = "") -> Report:
    """The report of the run folders at ``places``; what cannot be read is named in its notes."""
    runs, missing = collect(places)
    return report_of(runs, baseline, missing)


def report_of(runs: Sequence[StoredRun], baseline: str = "", notes: Sequence[str] = ()) -> Report:
    """The report of these runs, compared with ``baseline`` or else by :data:`BASELINES`."""
    everybody, mixture = group(runs)
    names = list(dict.fromkeys(one.method for one in everybody))
    if baseline and baseline not in names:
        there = ", ".join(names) or "no runs with an evaluation"
        raise RunFolderError(f"no run of the baseline {baseline!r}; there are: {there}")
    chosen = baseline or next((name for name in (*BASELINES, *names) if name in names), "")
    everybody.sort(key=lambda one: _place(one, chosen))
    pooled = pooled_groups(everybody)
    groups = {_label(one): one for one in pooled}
    frame = frame_of(groups, chosen)
    told = [*notes, *_run_notes(runs, everybody), *_compared_notes(groups, frame, chosen), *mixture]
    return Report(frame, groups, everybody, runs, chosen, tuple(dict.fromkeys(told)))


def _label(one: Group) -> str:
    return one.label if one.finished else f"{one.label} (unfinished)"


def frame_of(groups: Mapping[str, Group], baseline: str) -> pd.DataFrame:
    sets = data_sets(list(groups.values()))
    names = {id(one): name for name, one in groups.items()}
    rows: list[dict[str, Any]] = []
    for name, one in groups.items():
        data = next(i for i, members in enumerate(sets) if any(m is one for m in members))
        about = {"variant": name, "method": one.method, "line": one.line, "data": data}
        about["point"] = point_name(one.point)
        for key, method in (("base", baseline), ("alone", LOCAL)):
            other = partner(one, method, list(groups.values()))
            about[key] = "" if other is None or other is one else names[id(other)]
        about["overlap"] = overlap(one)
        for seed, run in one.seeds.items():
            rows += [{**about, "seed": seed, **end} for end in ends_of(run)]
    columns = (
        "variant", "method", "line", "data", "point", "base", "alone", "overlap", "seed", *_END,
    )  # fmt: skip
    frame = pd.DataFrame(rows, columns=list(columns))
    last = frame.set_index(["variant", "seed", "task"]).loss.to_dict()
    frame["reached"] = [
        first_reach(curve[0], curve[1], last.get((base, seed, task), math.nan))
        if base
        else math.nan
        for curve, base, seed, task in zip(
            frame.curve, frame.base, frame.seed, frame.task, strict=True
        )
    ]
    return frame.drop(columns="curve")


_END = (
    "task", "metric", "higher", "split", "first_loss", "loss", "held_loss", "score", "constant",
    "weight", "megabytes", "seconds", "main", "curve",
)  # fmt: skip


def ends_of(run: StoredRun) -> list[dict[str, Any]]:
    """The end of one run: a row per client of ``Report.frame``."""
    sent = {row["client"]: row["bytes"] for row in run.rows if "bytes" in row}
    seconds = run.manifest.get("seconds")
    judged, mine = run.judged, dict[str, list[Row]]()
    for row in run.rows:
        if row["split"] != "batch":
            mine.setdefault(row["client"], []).append(row)
    medians = {line_name(task, MEDIAN) for task in run.groups.values()} if run.pooled else None
    common = {
        "megabytes": sum(sent.values()) / 1e6 if sent else math.nan,
        "seconds": float(seconds) if isinstance(seconds, int | float) else math.nan,
    }
    return [
        {"task": name, "main": medians is None or name in medians, **common, **end}
        for name, those in mine.items()
        if (end := _end(those, judged.get(name, NOT_JUDGED)))
    ]


def _end(rows: Sequence[Row], by: Judged) -> dict[str, Any]:
    train = [row for row in rows if row["split"] == "train"]
    last = {row["split"]: row for row in rows}
    if not train:
        return {}
    split = next(name for name in (*HELD_OUT, "train") if name in last)
    metric = by.choose(last[split])
    return {
        "metric": metric, "higher": higher_is_better(metric), "split": split,
        "first_loss": train[0]["loss"], "loss": train[-1]["loss"],
        "held_loss": math.nan if split == "train" else last[split]["loss"],
        "score": last[split][metric], "weight": train[-1].get("weight", math.nan),
        "constant": math.nan if split == "train" else by.constant.get(metric, math.nan),
        "curve": ([row["epoch"] for row in train], [row["loss"] for row in train]),
    }  # fmt: skip


def every_metric(groups: Mapping[str, Group]) -> pd.DataFrame:
    """The last value of every metric: a row per variant, seed, task, split and metric."""
    found: dict[tuple[Any, ...], float] = {}
    for name, one in groups.items():
        for seed, run in one.seeds.items():
            for row in run.rows:
                if row["split"] != "batch":
                    for metric in (key for key in row if key not in _NO_METRIC):
                        found[name, seed, row["client"], row["split"], metric] = row[metric]
    columns = ["variant", "seed", "task", "split", "metric"]
    return pd.DataFrame(list(found), columns=columns).assign(value=list(found.values()))


def overlap(one: Group) -> float:
    """Test examples per training example where each seed splits the same examples again, else 0.

    Where the test set is fixed, as MTFL's, or new data is generated, seeds share no such split.
    Nor do seeds that were all trained on the same rows.
    """
    run = one.whole[0]
    if len(one.whole) > 1 and len({fingerprint(run) or id(run) for run in one.whole}) == 1:
        return 0.0
    data = run.config.get("data")
    if not isinstance(data, dict) or made_by_program(data):
        return 0.0
    source = SOURCES.get(data.get("source", ""))
    if source is None or "test_share" not in signature(source.function).parameters:
        return 0.0
    clients = run.part("clients").values()
    sizes = [one.get("splits", {}) for one in clients if isinstance(one, dict)]
    train = sum(size.get("train", 0) + size.get("validation", 0) for size in sizes)
    return sum(size.get("test", 0) for size in sizes) / train if train else 0.0


def partner(one: Group, method: str, groups: Sequence[Group]) -> Group | None:
    """The variant of ``method`` to compare with: on the same data, at the same point of a sweep.

    One with the same settings is preferred, then the method without settings of its own, then its
    first variant.
    """
    fitting = [
        other
        for other in groups
        if other.method == method
        and other.point.items() <= one.point.items()
        and (other is one or one.same_data(other))
    ]
    if one.method != method:
        fitting = [other for other in fitting if not unlike([one, other])] or fitting
    return next((other for other in fitting if not other.own), fitting[0] if fitting else None)


def paired(frame: pd.DataFrame, measure: str, base: str = "base") -> pd.DataFrame:
    """Every row with its base's row of the same seed and task, and its relative ``gain`` in %.

    ``ours`` and ``theirs`` are the values. Scores are compared only on held-out data.
    """
    columns = ["variant", "seed", "task", "metric", "split", measure]
    mine = (
        frame[frame[base] != ""]
        if measure == "loss"
        else frame[(frame[base] != "") & (frame.split != "train")]
    )
    both = mine.merge(
        frame[columns], left_on=[base, "seed", "task"], right_on=columns[:3],
        suffixes=("", "_base"),
    )  # fmt: skip
    if measure != "loss":
        both = both[(both.metric == both.metric_base) & (both.split == both.split_base)]
    both = both.assign(ours=both[measure], theirs=both[f"{measure}_base"])
    higher = both.higher if measure != "loss" else [False] * len(both)
    both["gain"] = [
        gain(o, t, higher=h) for o, t, h in zip(both.ours, both.theirs, higher, strict=True)
    ]
    return both


def effects(frame: pd.DataFrame, measure: str = "score") -> pd.DataFrame:
    """The effect of each variant on each task, against its base, paired over seeds.

    ``effect`` is positive if the variant is better: a difference in points for scores between 0 and
    1, else in percent of the base's value. ``low`` and ``high`` are its 95% interval over seeds.
    The p-values of the paired t-test are Holm-corrected over all rows of this table.
    """
    rows = []
    for (variant, task), both in paired(frame, measure).groupby(["variant", "task"], sort=False):
        first = both.iloc[0]
        unit = "points" if measure == "score" and in_points(first.metric) else "%"
        if unit == "points":
            values = 100 * (both.ours - both.theirs) * (1 if first.higher else -1)
        else:
            values = both.gain
        if both.ours.isna().all():
            continue
        found = estimate(list(values), first.overlap)
        rows.append({
            "variant": variant, "line": first.line, "point": first.point, "data": first.data,
            "task": task, "base": first.base, "metric": first.metric, "split": first.split,
            "higher": bool(first.higher) and measure != "loss", "main": first.main, "unit": unit,
            "ours": both.ours.mean(), "theirs": both.theirs.mean(), "seeds": len(both),
            "effect": found.mean, "low": found.low, "high": found.high,
            "p": paired_p(list(both.ours), list(both.theirs), first.overlap),
        })  # fmt: skip
    columns = (
        "variant", "line", "point", "data", "task", "base", "metric", "split", "higher", "main",
        "unit", "ours", "theirs", "seeds", "effect", "low", "high", "p",
    )  # fmt: skip
    table = pd.DataFrame(rows, columns=list(columns))
    return table.assign(p=holm(list(table.p)))


def in_points(metric: str) -> bool:
    """Whether differences of a metric are given in points: it lies between 0 and 1, 1 being best.

    >>> in_points("accuracy"), in_points("auroc"), in_points("mae"), in_points("r2")
    (True, True, False, False)
    """
    return higher_is_better(metric) and metric not in ("r2", "pearson", "spearman")


def _place(one: Group, baseline: str) -> tuple[object, ...]:
    """Point by point, and at each the baseline first, then the package's methods, then others."""
    known = list(METHODS)
    rank = known.index(one.method) if one.method in known else len(known)
    return (*_sizes(one.point), one.method != baseline, rank, one.method, *_sizes(one.own))


def _sizes(values: Mapping[str, Any]) -> tuple[object, ...]:
    """Values in an order: fewer before more, numbers by size and before words."""
    numbers = [
        (not isinstance(v, int | float), v if isinstance(v, int | float) else 0, str(v))
        for v in values.values()
    ]
    return len(values), numbers


def _run_notes(runs: Sequence[StoredRun], groups: Sequence[Group]) -> list[str]:
    """Damaged and unfinished runs, and losses that were scaled."""
    notes = [f"{run.name}: {problem}" for run in runs for problem in run.problems]
    for run in runs:
        if run.rows and run.manifest and not run.finished:
            planned = f" of {run.planned}" if run.planned else ""
            reached = f"round {run.last_round}{planned}, epoch {run.rows[-1]['epoch']:.1f}"
            notes.append(f"{run.name} is not finished: {reached}")
        if run.diverged:
            notes.append(f"{run.name}: {diverged_words(run.diverged)}")
    if scaled := sum(run.scaled for one in groups for run in one.whole):
        notes.append(f"losses are shown without their loss_scale ({scaled} runs)")
    for one in groups:
        if one.partial:
            names = ", ".join(run.name for run in one.partial)
            notes.append(f"{one.label}: {names} ended before the others and is left out")
    return notes


def _compared_notes(groups: Mapping[str, Group], frame: pd.DataFrame, baseline: str) -> list[str]:
    """Variants that cannot be compared, or are compared with others that differ in settings."""
    notes = []
    every = sorted({seed for one in groups.values() for seed in one.seeds})
    for name, one in groups.items():
        if lacking := [str(seed) for seed in every if seed not in one.seeds]:
            word = "seed" if len(lacking) == 1 else "seeds"
            notes.append(f"{name}: no finished run of {word} {', '.join(lacking)}")
        base = partner(one, baseline, list(groups.values()))
        if base is None:
            notes.append(f"{name}: not compared, there is no {baseline} on the same data")
        elif one.method != baseline and (odd := unlike([one, base])):
            notes.append(f"{name}: compared with {base.label}, which differs in {', '.join(odd)}")
    if names := dict.fromkeys(frame[frame.split == "train"].task):
        notes.append(f"no held-out metric, because no examples were held out: {', '.join(names)}")
    return notes
