"""A sweep as a figure: every task's loss at the end against what was varied."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedgradnorm._errors import DataError
from fedgradnorm._report.arms import Arm, Measure
from fedgradnorm._report.colours import Look, looks
from fedgradnorm._report.comparison import Comparison
from fedgradnorm._report.figures.curves import check_format, log_scale, noted, save, style_of
from fedgradnorm._stored.summary import estimate
from fedgradnorm.experiments._sweep import key_name, value_name

PANEL = 2.7
_DECADES = 100  # a range wider than this is drawn on a logarithmic axis
_SPREAD = 0.6  # of the room between two places is for the methods, side by side
_MARKERS = "osD^vP*X"

End = tuple[float, float, float]


def sweep_figure(comparison: Comparison, path: str | Path, measure: Measure) -> Path:
    """A panel per task; means over seeds with their 95% intervals, a method that feels none flat.

    One key of numbers is a real axis, logarithmic over two decades and more. Anything else is one
    place after the other, and nothing lies between two of them to draw a line through.
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
    places, numbers = places_of(comparison)
    for axes, task in zip(panels, tasks, strict=True):
        for i, (method, look) in enumerate(looks(comparison.lines).items()):
            ends = _ends(places, comparison.along(method), task, measure)
            if ends and numbers:
                _line(axes, ends, method, look)
            elif ends:
                aside = _SPREAD * ((i + 0.5) / len(comparison.lines) - 0.5)
                _bars(axes, [(x + aside, y, half) for x, y, half in ends], method, look)
        _dress(axes, places, list(map(value_name, comparison.points)), numbers=numbers)
        axes.set_title(task, fontsize=12, weight="bold")
        axes.set_xlabel(key_name(comparison.points[0]))
        if measure.name == "loss" and any((line.get_ydata() > 0).any() for line in axes.lines):
            log_scale(axes)
    panels[0].set_ylabel(
        "training loss at the end" if measure.name == "loss" else "held-out metric"
    )
    drawn = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in panels]
    handles = {name: handle for panel in drawn for handle, name in panel}
    drawing.legend(
        handles.values(), handles, loc="outside upper center", ncols=max(2, len(tasks)),
        frameon=False,
    )  # fmt: skip
    noted(drawing, comparison.synthetic)
    return save(drawing, path)


def places_of(comparison: Comparison) -> tuple[list[float], bool]:
    """Where the points stand, and whether that is their own value."""
    values = [list(point.values()) for point in comparison.points]
    plain = all(len(v) == 1 and type(v[0]) in (int, float) for v in values)
    if plain and len({tuple(point) for point in comparison.points}) == 1:
        return [float(v[0]) for v in values], True
    return [float(i) for i in range(len(values))], False


def _ends(
    places: Sequence[float], arms: Sequence[Arm | None], task: str, measure: Measure
) -> list[End]:
    """Where, and the mean there with half its interval: of the points that have runs."""
    ends = []
    for place, arm in zip(places, arms, strict=True):
        found = [measure.of(sample) for sample in arm.tasks(task).values()] if arm else []
        if found:
            value = estimate(found)
            ends.append((place, value.mean, 0.0 if math.isnan(value.half) else value.half))
    return ends


def _line(axes: Any, ends: Sequence[End], label: str, look: Look) -> None:
    x, y, half = map(np.array, zip(*ends, strict=True))
    axes.plot(x, y, color=look.hex, linestyle=style_of(look), marker="o", markersize=4, label=label)
    axes.fill_between(x, y - half, y + half, color=look.hex, alpha=0.18, linewidth=0)


def _bars(axes: Any, ends: Sequence[End], label: str, look: Look) -> None:
    x, y, half = map(np.array, zip(*ends, strict=True))
    marker = _MARKERS[(look.colour + look.stroke) % len(_MARKERS)]
    axes.errorbar(x, y, half, color=look.hex, fmt=marker, markersize=4, linewidth=1.2, label=label)


def _dress(axes: Any, places: Sequence[float], names: Sequence[str], *, numbers: bool) -> None:
    low, high = min(places), max(places)
    if numbers and low > 0 and high / low >= _DECADES:
        axes.set_xscale("log")
    elif not numbers:
        axes.set_xticks(places, names, rotation=45, ha="right", fontsize=8)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
