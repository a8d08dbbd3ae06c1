"""The page's figures as plain values: sections of small panels, one per task.

Axes are fixed here, from all variants at once, so that hiding a variant moves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from fedgradnorm._report.colours import looks
from fedgradnorm._report.curves import Curves, curves_of, numbers
from fedgradnorm._report.frame import HELD_OUT, Report
from fedgradnorm._round.reports import COLUMNS
from fedgradnorm._runs.history import NOT_PRIVATE_EPSILON, SPENT
from fedgradnorm.experiments._statistics import estimate
from fedgradnorm.experiments._variants import key_name, value_name

SWEEP = "sweep"
_NOT_DRAWN = {"loss", "weight", "active", "weight_frozen", "samples", "bytes"}
_NOT_DRAWN |= {SPENT, NOT_PRIVATE_EPSILON}
WIDE = 8.0  # a range wider than this factor is drawn on a logarithmic axis
DECADES = 100  # the same, for what a sweep varies

_FEW = "Line: mean over seeds. Band, of up to four methods: lowest to highest seed."
_MANY = "Line: median over clients. Band, of up to four methods: from the best to the worst tenth."

Panel = dict[str, Any]


@dataclass(frozen=True)
class View:
    """One way to look at a section: its lines (role, split, column) and how its axis behaves."""

    name: str
    lines: tuple[tuple[str, str, str], ...]
    reference: float | None = None
    log: bool = False
    shared: bool = False


@dataclass(frozen=True)
class Section:
    """A heading, a sentence on how to read it, and panels by view and task."""

    id: str
    title: str
    about: str
    roles: Mapping[str, str] = field(default_factory=dict)
    panels: Sequence[Panel] = ()
    missing: Sequence[str] = ()

    @property
    def views(self) -> list[str]:
        return list(dict.fromkeys(panel["view"] for panel in self.panels))

    @property
    def tasks(self) -> list[int]:
        return list(dict.fromkeys(panel["task"] for panel in self.panels))


def sections(report: Report) -> list[Section]:
    """Every section that has something to show, in the order of the page.

    Learning curves start with what the headline is about: the metric, or for one variant the loss.
    """
    curves = {name: curves_of(one) for name, one in report.groups.items()}
    evaluated = [_evaluated("Accuracy or error", "metric"), _evaluated("Loss", "loss")]
    pooled = any(one.around for one in curves.values())
    recorded = {column for one in curves.values() for column in one.columns("batch")}
    more = sorted(recorded - _NOT_DRAWN)
    meanings = [f"{name}: {COLUMNS[name].meaning}." for name in more if name in COLUMNS]
    plans = [
        ("curves", "Learning curves",
         f"{_MANY if pooled else _FEW} Markers alone: only the ends were evaluated.",
         {"heldout": "held-out", "train": "training"},
         evaluated if len(report.variants) > 1 else evaluated[::-1]),
        ("weights", "Weights",
         "What the server multiplies each task's update by. All equal is 1. A weight of 0 "
         "has no place on a logarithmic axis.", {},
         [View("Weight", (("main", "batch", "weight"),), 1.0, log=True, shared=True)]),
        ("more", "Other columns", " ".join(meanings), {},
         [View(name, (("main", "batch", name),)) for name in more]),
    ]  # fmt: skip
    made = (_section(report, curves, *plan) for plan in plans if plan[-1])
    return [section for section in made if section.panels]


def _evaluated(name: str, column: str) -> View:
    """Held-out and training lines of the loss, or of the task's own metric."""
    held_out = (("heldout", split, column) for split in HELD_OUT)
    return View(name, (*held_out, ("train", "train", column)))


def _section(
    report: Report, curves: Mapping[str, Curves],
    id_: str, title: str, about: str, roles: dict[str, str], views: list[View],
) -> Section:  # fmt: skip
    metrics = report.frame.drop_duplicates("task").set_index("task").metric
    panels = []
    for view in views:
        mine = [_panel(curves, task, number, view, metrics[task])
                for number, task in enumerate(report.tasks)]  # fmt: skip
        mine = [panel for panel in mine if panel["series"]]
        if view.shared and mine:
            _share_axis(mine)
        panels += mine
    first = [panel for panel in panels if panel["view"] == views[0].name] or panels
    drawn = {series["method"] for panel in first for series in panel["series"]}
    missing = [name for number, name in enumerate(curves) if number not in drawn]
    there = {series["role"] for panel in panels for series in panel["series"]}
    shown = {role: name for role, name in roles.items() if role in there}
    return Section(id_, title, about.strip(), shown, panels, missing)


def _panel(curves: Mapping[str, Curves], task: str, number: int, view: View, metric: str) -> Panel:
    series: list[dict[str, Any]] = []
    unit = metric if any(column == "metric" for *_, column in view.lines) else ""
    for method, one in enumerate(curves.values()):
        seen: set[str] = set()
        for role, split, column in view.lines:
            key = (task, split, metric if column == "metric" else column)
            points = None if role in seen else one.points(key)
            if points is not None:
                seen.add(role)  # validation is shown only if there is no test split
                series.append({"method": method, "role": role, **points})
    unit = unit or ("loss" if view.name == "Loss" else "")
    axis = axis_of(series, view.reference, view.log, unit == "accuracy")
    return {"task": number, "view": view.name, "unit": unit, "series": series, **axis}


def sweep_section(report: Report) -> Section:
    """A panel per task: the mean at every point with its 95% interval, a line per method."""
    members = {
        line: [i for i, one in enumerate(report.groups.values()) if one.line == line]
        for line in report.lines
    }
    x, panels = _axis_of_points(report.points), []
    for measure, title in (("score", "Held-out metric"), ("loss", "Training loss")):
        known = report.frame if measure == "loss" else report.frame[report.frame.split != "train"]
        for number, task in enumerate(report.tasks):
            part = known[known.task == task].assign(value=known[measure])
            series = [
                {"method": members[line][0], "arms": members[line], "role": "sweep", "name": line,
                 "colour": look.colour, "dash": look.stroke, **points}
                for line, look in looks(report.lines).items()
                if (points := _points(report, line, part, x["values"]))["x"]
            ]  # fmt: skip
            if series:
                unit = "loss" if measure == "loss" else part.metric.iloc[0]
                axis = axis_of(series, percent=unit == "accuracy")
                panels.append(
                    {"task": number, "view": title, "unit": unit, "series": series, "x": x} | axis
                )
    about = (
        "Each task at the end of training, against what was varied. Mean over seeds; bars: 95% "
        "interval. A method that the sweep does not change has the same value everywhere."
    )
    return Section(SWEEP, "The sweep", about, {}, panels)


def _axis_of_points(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Where the points of a sweep stand on an axis: at their value, if each is one number."""
    values = [list(point.values()) for point in points]
    real = all(len(v) == 1 and type(v[0]) in (int, float) for v in values)
    real = real and len({tuple(point) for point in points}) == 1
    places = [float(v[0]) if real else float(i) for i, v in enumerate(values)]
    return {
        "title": key_name(points[0]), "lines": real,
        "log": real and min(places) > 0 and max(places) / min(places) >= DECADES,
        "values": numbers(places, 6), "names": [value_name(point) for point in points],
    }  # fmt: skip


def _points(report: Report, line: str, part: pd.DataFrame, places: Sequence[Any]) -> dict[str, Any]:
    """The points of a sweep at which this line has values: their means and intervals."""
    values = {
        name: estimate(list(mine))
        for name, mine in part[part.line == line].groupby("variant").value
    }
    along = zip(places, report.along(line), strict=True)
    found = {place: values[name] for place, name in along if name in values}
    halves = [0.0 if math.isnan(one.half) else one.half for one in found.values()]
    means = [one.mean for one in found.values()]
    return {
        "x": list(found), "y": numbers(means),
        "lo": numbers(mean - half for mean, half in zip(means, halves, strict=True)),
        "hi": numbers(mean + half for mean, half in zip(means, halves, strict=True)),
    }  # fmt: skip


def axis_of(
    series: Sequence[dict[str, Any]],
    reference: float | None = None,
    log: bool = False,
    percent: bool = False,
) -> dict[str, Any]:
    """Range and ticks that fit every method; logarithmic if asked, or if the range is wide."""
    values = [v for one in series for key in ("y", "lo", "hi") for v in one.get(key, ())]
    there = [v for v in (*values, reference) if v is not None and (v > 0 or not log)]
    if not there or not values:
        return {}
    low, high = min(there), max(there)
    axis: dict[str, Any] = {"reference": reference, "percent": percent, "log": False}
    if log or (low > 0 and high / low > WIDE and not percent):
        ends = [math.log10(low), math.log10(high)]
        pad = 0.04 * (ends[1] - ends[0]) or 0.02
        return axis | {"log": True, "range": numbers([ends[0] - pad, ends[1] + pad]),
                       "ticks": log_ticks(low, high)}  # fmt: skip
    pad = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return axis | {"range": numbers([low - pad, high + pad])}


def _share_axis(panels: Sequence[Panel]) -> None:
    """One range for all tasks, where their sizes are to be compared."""
    ranges = [panel["range"] for panel in panels]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    for panel in panels:
        panel["range"] = [low, high]
        if panel["log"]:
            panel["ticks"] = log_ticks(10**low, 10**high)


def log_ticks(low: float, high: float) -> list[float]:
    """Three to about seven round numbers between ``low`` and ``high``.

    >>> log_ticks(0.9, 134)
    [1.0, 10.0, 100.0]
    >>> log_ticks(3, 40)
    [5.0, 10.0, 20.0]
    """
    decades = math.log10(high / low)
    if decades < 0.7:
        steps: tuple[float, ...] = (1, 1.5, 2, 3, 4, 5, 7)
    else:
        steps = (1, 2, 5) if decades < 1.6 else (1, 3) if decades < 2.1 else (1,)
    every = 1 if decades < 6 else math.ceil(decades / 5)
    exponents: Iterable[int] = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [float(f"{s}e{e}") for e in exponents if e % every == 0 for s in steps]
    return [tick for tick in ticks if low <= tick <= high]
