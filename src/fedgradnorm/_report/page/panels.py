"""The page's figures as plain values: sections of small multiples, a panel per task.

Axes are fixed here, from all methods at once, so that switching a method off moves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedgradnorm._report.page.conflict_map import MEAN, MOST, with_task
from fedgradnorm._report.page.curve_points import AGAINST, LENGTH, TARGET, Curves, numbers
from fedgradnorm._round.reports import COLUMNS
from fedgradnorm._runs.history import NOT_PRIVATE_EPSILON, SPENT
from fedgradnorm._stored.summary import NOT_JUDGED

HELD_OUT = ("test", "validation")
CONFLICT = "conflict"
DECADE = 8.0  # a range wider than this factor is drawn on a logarithmic axis

_FEW = "Line: mean over seeds. Band, of up to four methods: lowest to highest seed."
_MANY = "Line: median over clients. Band, of up to four methods: from the best to the worst tenth."

Panel = dict[str, Any]


@dataclass(frozen=True)
class Line:
    """What is drawn of every method: a column of a split, in a role that decides its look."""

    role: str
    split: str
    column: str


@dataclass(frozen=True)
class View:
    """One way to look at a section: which lines, and how the axis behaves."""

    name: str
    lines: tuple[Line, ...]
    reference: float | None = None
    log: bool = False
    shared: bool = False


@dataclass(frozen=True)
class Section:
    """A heading, a sentence on how to read it, and panels by (view, task)."""

    id: str
    title: str
    about: str
    roles: dict[str, str]
    views: list[str]
    panels: list[Panel]
    missing: list[str]


def sections(
    curves: Sequence[Curves], labels: Sequence[str], tasks: list[str], *, by_loss: bool = False
) -> list[Section]:
    """Every section that has something to show, in the order of the page.

    Learning curves start with what the headline speaks of: the metric, or ``by_loss`` the loss.
    """
    evaluated = [_evaluated("Accuracy or error", "metric"), _evaluated("Loss", None)]
    plans = [
        (
            "curves", "Learning curves",
            f"{_MANY if any(one.around for one in curves) else _FEW} "
            "Markers alone: only the ends were evaluated.",
            {"heldout": "held-out", "train": "training"},
            evaluated[::-1] if by_loss else evaluated,
        ),
        (
            "weights", "Weights",
            "What the server multiplies each task's update by. All equal is 1. A weight of 0 "
            "has no place on a logarithmic axis.",
            {}, [View("Weight", (Line("main", "batch", "weight"),), 1.0, log=True, shared=True)],
        ),
        (
            "norms", "Gradient norms against their targets",
            "The task's weighted gradient length on the norm layer, p·G, beside the length that "
            "FedGradNorm asks for: mean(p·G) · r^gamma, with r the task's pace. On target is 1.",
            {},
            [
                View("Norm ÷ target", (Line("main", "batch", AGAINST),), 1.0),
                View("Norm and target", (Line("main", "batch", LENGTH),
                                         Line("target", "batch", TARGET))),
            ],
        ),
        (
            "ratios", "Loss ratios", "How much of the first loss is left in each round's batch.",
            {}, [View("Loss ÷ first loss", (Line("main", "batch", "loss_ratio"),), 1.0)],
        ),
        (
            CONFLICT, "Gradient conflict",
            "The cosine between two tasks' updates of one round: 1 is one direction, 0 has nothing "
            "in common, below 0 each undoes some of the other's work.",
            {}, _cosines(tasks),
        ),
        ("more", "Other columns", *_other_columns(curves)),
    ]  # fmt: skip
    made = (_section(curves, labels, tasks, *plan) for plan in plans if plan[-1])
    return [section for section in made if section.panels]


def _other_columns(curves: Sequence[Curves]) -> tuple[str, dict[str, str], list[View]]:
    """What a round recorded beyond our own columns: a view for each, whoever registered it."""
    keys = (key for one in curves for series in (*one.whole, *one.partial) for key in series)
    there = dict.fromkeys(column for _, split, column in keys if split == "batch")
    own = {name for name in COLUMNS if COLUMNS.is_builtin(name)} | {SPENT, NOT_PRIVATE_EPSILON}
    drawn = {AGAINST, LENGTH, TARGET, MEAN}
    names = [
        name for name in there if name not in own | drawn and not name.startswith(with_task(""))
    ]
    told = [f"{name}: {COLUMNS[name].meaning}." for name in names if name in COLUMNS]
    about = " ".join(told) or "Columns that the runs recorded in addition to ours."
    return about, {}, [View(name, (Line("main", "batch", name),)) for name in names]


def _cosines(tasks: Sequence[str]) -> list[View]:
    """A task's mean cosine with the others, then with each one of them."""
    several = list(tasks) if 2 < len(tasks) <= MOST else []
    columns = {"with all others": MEAN, **{f"with {task}": with_task(task) for task in several}}
    return [
        View(name, (Line("main", "batch", column),), 0.0, shared=True)
        for name, column in columns.items()
    ]


def _evaluated(name: str, column: str | None) -> View:
    """Held-out and training lines of the loss, or of the task's own metric."""
    wanted = column or "loss"
    held_out = (Line("heldout", split, wanted) for split in HELD_OUT)
    return View(name, (*held_out, Line("train", "train", wanted)))


def _section(
    curves: Sequence[Curves], labels: Sequence[str], tasks: list[str],
    id_: str, title: str, about: str, roles: dict[str, str], views: list[View],
) -> Section:  # fmt: skip
    panels = [
        _panel(curves, task, number, view) for view in views for number, task in enumerate(tasks)
    ]
    panels = [panel for panel in panels if panel["series"]]
    for view in views:
        if view.shared:
            _share_axis([panel for panel in panels if panel["view"] == view.name])
    first = [panel for panel in panels if panel["view"] == views[0].name] or panels
    drawn = {series["method"] for panel in first for series in panel["series"]}
    missing = [label for number, label in enumerate(labels) if number not in drawn]
    there = {series["role"] for panel in panels for series in panel["series"]}
    shown = {role: name for role, name in roles.items() if role in there}
    named = list(dict.fromkeys(panel["view"] for panel in panels))
    return Section(id_, title, about, shown, named, panels, missing)


def _panel(curves: Sequence[Curves], task: str, number: int, view: View) -> Panel:
    series: list[dict[str, Any]] = []
    unit = ""
    for method, one in enumerate(curves):
        seen: set[str] = set()
        for line in view.lines:
            column = _metric(one, task) if line.column == "metric" else line.column
            unit = column if line.column == "metric" else unit
            key = (task, line.split, column)
            band = None if line.role in seen else one.band(key)
            if band is not None:
                seen.add(line.role)  # validation stands in only where there is no test split
                series.append({"method": method, "role": line.role, **band.json()})
            if line.role not in ("train", "target"):
                stopped = (band.json() for band in one.stopped(key))
                series += [{"method": method, "role": "stopped", **b} for b in stopped]
    axis = axis_of(series, view, percent=unit == "accuracy")
    return {"task": number, "view": view.name, "unit": unit, "series": series, **axis}


def _metric(curves: Curves, task: str) -> str:
    """The metric shown for a task: the one that it named, or the first of the main ones."""
    keys = {key for series in (*curves.whole, *curves.partial) for key in series}
    have = {column for client, split, column in keys if client == task and split != "batch"}
    return curves.judged.get(task, NOT_JUDGED).choose(have)


def axis_of(series: Sequence[dict[str, Any]], view: View, *, percent: bool) -> dict[str, Any]:
    """Range and ticks that hold for every method; logarithmic where the range is wide."""
    values = [v for one in series for key in ("y", "lo", "hi") for v in one.get(key, ())]
    there = [v for v in values if v is not None]
    if not there:
        return {}
    if view.reference is not None:
        there.append(view.reference)
    there = [v for v in there if v > 0] if view.log else there
    low, high = min(there), max(there)
    axis: dict[str, Any] = {"reference": view.reference, "percent": percent, "log": False}
    if view.log or (low > 0 and high / low > DECADE and not percent):
        ends = [math.log10(low), math.log10(high)]
        pad = 0.04 * (ends[1] - ends[0]) or 0.02
        ticks = log_ticks(low, high)
        return axis | {"log": True, "range": numbers([ends[0] - pad, ends[1] + pad]),
                       "ticks": ticks, "tick_texts": [f"{tick:g}" for tick in ticks]}  # fmt: skip
    pad = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return axis | {"range": numbers([low - pad, high + pad])}


def _share_axis(panels: Sequence[Panel]) -> None:
    """One range for all tasks, where their sizes are to be compared."""
    ranges = [panel["range"] for panel in panels]
    low, high = min((low for low, _ in ranges), default=0), max((h for _, h in ranges), default=1)
    for panel in panels:
        panel["range"] = [low, high]
        if panel["log"]:
            ticks = log_ticks(10**low, 10**high)
            panel |= {"ticks": ticks, "tick_texts": [f"{tick:g}" for tick in ticks]}


def log_ticks(low: float, high: float) -> list[float]:
    """Three to about seven round numbers between ``low`` and ``high``.

    >>> log_ticks(0.9, 134)
    [1.0, 10.0, 100.0]
    >>> log_ticks(3, 40)
    [5.0, 10.0, 20.0]
    """
    decades = math.log10(high / low)
    steps = (1, 2, 5) if decades < 1.6 else (1, 3) if decades < 2.1 else (1,)
    every = 1 if decades < 6 else math.ceil(decades / 5)
    exponents: Iterable[int] = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [float(f"{s}e{e}") for e in exponents if e % every == 0 for s in steps]
    return [tick for tick in ticks if low <= tick <= high]
