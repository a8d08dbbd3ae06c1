"""A sweep on the page: who is best at each point, and every task's end against what was varied.

Points may be different problems. Arms are ranked within a point, never across points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fedgradnorm._report.arms import LOSS, SCORE, Arm, Measure
from fedgradnorm._report.comparison import Comparison
from fedgradnorm._report.figures.sweep_points import places_of
from fedgradnorm._report.page.curve_points import numbers
from fedgradnorm._report.page.panels import Panel, Section, View, axis_of
from fedgradnorm._report.page.sentences import Verdict
from fedgradnorm._stored.groups import Group
from fedgradnorm._stored.summary import estimate
from fedgradnorm.experiments._sweep import key_name, point_name, value_name

SWEEP = "sweep"
_VIEWS = {"Held-out metric": SCORE, "Training loss": LOSS}
_DECADES = 100  # a range wider than this is drawn on a logarithmic axis

Points = Mapping[str, frozenset[str]]
"""The labels that stand at each point of a sweep: those that feel no point stand at all."""


def points_of(comparison: Comparison | None) -> dict[str, frozenset[str]]:
    """Who may be ranked against whom; nothing where there is no sweep."""
    if comparison is None or not comparison.points:
        return {}
    along = [comparison.along(line) for line in comparison.lines]
    return {
        point_name(point): frozenset(arm.name for row in along if (arm := row[place]) is not None)
        for place, point in enumerate(comparison.points)
    }


def headline(judged: Sequence[Verdict], comparison: Comparison) -> str:
    """How often each method is best at a point and a task, and how often the best are level."""
    line_of = {arm.name: arm.group.line for arm in comparison.arms}
    won: dict[str, int] = {}
    for verdict in judged:
        if verdict.clear:
            line = line_of[verdict.leader]
            won[line] = won.get(line, 0) + 1
    points = len(comparison.points)
    start = f"Sweep over {key_name(comparison.points[0])}, {points} points by {_tasks(comparison)}"
    level = len(judged) - sum(won.values())
    parts = [f"{name} is best on {count}" for name, count in sorted(won.items(), key=_most)]
    parts += [f"the best are level on {level}"] if level else []
    return f"{start}: {', '.join(parts)}." if parts else f"{start}: nothing to compare."


def _most(item: tuple[str, int]) -> int:
    return -item[1]


def _tasks(comparison: Comparison) -> str:
    count = len(comparison.tasks)
    return f"{count} task{'s' * (count != 1)}"


def by_point(judged: Sequence[Verdict], comparison: Comparison) -> str:
    """The headline of every point, as a table: who is best, or level with the best."""
    line_of = {arm.name: arm.group.line for arm in comparison.arms}
    lines = []
    for point in comparison.points:
        mine = {v.task: v for v in judged if v.point == point_name(point)}
        cells = "".join(f"<td>{_ahead(mine.get(task), line_of)}</td>" for task in comparison.tasks)
        lines.append(f'<tr><th scope="row">{escape(value_name(point))}</th>{cells}</tr>')
    titles = (key_name(comparison.points[0]), *comparison.tasks)
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in titles)
    return (
        f'<div class="scroll"><table id="points"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
        '<p class="notes">At every point: who is ahead, or level with the one ahead. The others '
        "are behind by more than the seeds differ. Bold: best, also after Holm's correction over "
        "all points and tasks.</p>"
    )


def _ahead(verdict: Verdict | None, line_of: Mapping[str, str]) -> str:
    if verdict is None:
        return "-"
    if verdict.clear:
        return f"<strong>{escape(line_of[verdict.leader])}</strong>"
    names = [line_of[label] for label in (verdict.leader, *verdict.level)]
    return escape(", ".join(names)) if verdict.behind else "all level"


def sweep_section(
    comparison: Comparison, groups: Sequence[Group], tasks: Sequence[str], colours: Sequence[Any]
) -> Section:
    """A panel per task: the mean at every point with its 95% interval, a line per method."""
    lines = dict(zip(comparison.lines, colours, strict=True))
    arms = {
        line: [i for i, one in enumerate(groups) if one.line == line] for line in comparison.lines
    }
    panels = []
    for name, measure in _VIEWS.items():
        for number, task in enumerate(tasks):
            series = [
                {"method": arms[line][0], "arms": arms[line], "role": "sweep", "name": line}
                | {"colour": look.colour, "dash": look.stroke}
                | points
                for line, look in lines.items()
                if arms[line] and (points := _ends(comparison, line, task, measure))
            ]
            if series:
                panels.append(_panel(comparison, number, task, name, series))
    views = list(dict.fromkeys(panel["view"] for panel in panels))
    about = (
        "Each task at the end of training, against what was varied. Mean over seeds; bars: 95% "
        "interval. A method that feels no point has the same value at all."
    )
    return Section(SWEEP, "The sweep", about, {}, views, panels, [])


def _ends(comparison: Comparison, line: str, task: str, measure: Measure) -> dict[str, Any]:
    places, _ = places_of(comparison)
    found = [
        (place, estimate([measure.of(sample) for sample in arm.tasks(task).values()]))
        for place, arm in zip(places, comparison.along(line), strict=True)
        if arm is not None and arm.tasks(task) and _known(arm, task, measure)
    ]
    if not found:
        return {}
    halves = [0.0 if math.isnan(value.half) else value.half for _, value in found]
    means = [value.mean for _, value in found]
    return {
        "x": numbers([place for place, _ in found], 6),
        "y": numbers(means),
        "lo": numbers([mean - half for mean, half in zip(means, halves, strict=True)]),
        "hi": numbers([mean + half for mean, half in zip(means, halves, strict=True)]),
    }


def _known(arm: Arm, task: str, measure: Measure) -> bool:
    return all(measure.known(sample) for sample in arm.tasks(task).values())


def _panel(
    comparison: Comparison, number: int, task: str, view: str, series: list[dict[str, Any]]
) -> Panel:
    first = next(s for arm in comparison.arms for s in arm.tasks(task).values())
    unit = first.metric if view in _VIEWS and _VIEWS[view] is SCORE else "loss"
    places, plain = places_of(comparison)
    axis = axis_of(series, View(view, ()), percent=unit == "accuracy")
    wide = plain and min(places) > 0 and max(places) / min(places) >= _DECADES
    names = [value_name(point) for point in comparison.points]
    x = {"title": key_name(comparison.points[0]), "log": wide, "lines": plain}
    ticks = {"values": numbers(places, 6), "names": names}
    return {"task": number, "view": view, "unit": unit, "series": series, "x": x | ticks, **axis}
