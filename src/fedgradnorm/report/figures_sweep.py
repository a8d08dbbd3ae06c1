"""A sweep as a figure: every task's loss at the end against what was varied."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedgradnorm.errors import DataError
from fedgradnorm.experiments.summary import estimate
from fedgradnorm.experiments.sweep import key_name, value_name
from fedgradnorm.report.arms import Arm, Measure
from fedgradnorm.report.comparison import Comparison
from fedgradnorm.report.figures import Style, check_format, log_scale, method_lines, save

PANEL = 2.7
_DECADES = 100  # a range wider than this is drawn on a logarithmic axis


def sweep_figure(comparison: Comparison, path: str | Path, measure: Measure) -> Path:
    """A panel per task; means over seeds with their 95% intervals, a method that feels none flat.

    One key of numbers is a real axis, logarithmic over two decades and more; anything else is one
    place after the other.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path = Path(path)
    check_format(path)
    if not comparison.points:
        raise DataError("nothing to draw: the runs are not of a sweep")
    tasks = comparison.tasks
    drawing = Figure(figsize=(PANEL * len(tasks) + 0.6, 3.4), layout="constrained")
    FigureCanvasAgg(drawing)
    panels = drawing.subplots(1, len(tasks), squeeze=False)[0]
    places, numbers = _places(comparison)
    for axes, task in zip(panels, tasks, strict=True):
        for method, look in method_lines(comparison.methods).items():
            _line(axes, places, comparison.along(method), task, measure, method, look)
        _dress(axes, places, list(map(value_name, comparison.points)), numbers=numbers)
        axes.set_title(task, fontsize=12, weight="bold")
        axes.set_xlabel(key_name(comparison.points[0]))
        if measure.name == "loss" and axes.lines:
            log_scale(axes)
    panels[0].set_ylabel(
        "training loss at the end" if measure.name == "loss" else "held-out metric"
    )
    handles, names = panels[0].get_legend_handles_labels()
    drawing.legend(
        handles, names, loc="outside upper center", ncols=max(2, len(tasks)), frameon=False
    )
    if comparison.synthetic:
        drawing.text(0.995, 0.003, comparison.synthetic, ha="right", va="bottom", fontsize=8)
    return save(drawing, path)


def _places(comparison: Comparison) -> tuple[list[float], bool]:
    """Where the points stand, and whether that is their own value."""
    values = [list(point.values()) for point in comparison.points]
    plain = all(len(v) == 1 and type(v[0]) in (int, float) for v in values)
    if plain and len({tuple(point) for point in comparison.points}) == 1:
        return [float(v[0]) for v in values], True
    return [float(i) for i in range(len(values))], False


def _line(
    axes: Any,
    places: Sequence[float],
    arms: Sequence[Arm | None],
    task: str,
    measure: Measure,
    label: str,
    look: tuple[str, Style],
) -> None:
    colour, style = look
    points = []
    for place, arm in zip(places, arms, strict=True):
        found = [measure.of(sample) for sample in arm.tasks(task).values()] if arm else []
        if found:
            value = estimate(found)
            points.append((place, value.mean, 0.0 if math.isnan(value.half) else value.half))
    if points:
        x, y, half = zip(*points, strict=True)
        axes.plot(x, y, color=colour, linestyle=style, marker="o", markersize=4, label=label)
        low, high = ([m + sign * h for m, h in zip(y, half, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)


def _dress(axes: Any, places: Sequence[float], names: Sequence[str], *, numbers: bool) -> None:
    low, high = min(places), max(places)
    if numbers and low > 0 and high / low >= _DECADES:
        axes.set_xscale("log")
    elif not numbers:
        axes.set_xticks(places, names, rotation=45, ha="right", fontsize=8)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
