"""The paper's figures: losses of all tasks, accuracies where there are any, weights per epoch."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgradnorm._errors import DataError
from fedgradnorm._report.figures.curves import (
    LEGEND,
    check_format,
    curve,
    legend_height,
    log_scale,
    method_lines,
    noted,
    save,
)
from fedgradnorm._report.figures.weight_panels import draw_weights, weights_move, weights_size
from fedgradnorm._report.record import Record

PANEL = 2.7  # inches a task
OTHERS = "#C4C4C4"


def paper_figure(
    records: Sequence[Record],
    path: str | Path,
    note: str = "",
    coloured: Collection[str] | None = None,
) -> Path:
    """A column per task: training loss, then test accuracy where every task has one.

    Below, one panel for each method whose weights move, with the weights of all tasks. Lines are
    means over seeds, bands the range they span. ``note`` is written under the figure. Methods that
    are not ``coloured`` (all, unless told) are thin grey lines without a name.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path = Path(path)
    check_format(path)
    if not any(record.rows for record in records):
        raise DataError("nothing to draw: the runs hold no rounds yet")
    tasks = list(dict.fromkeys(name for record in records for name in record.clients))
    by_label: dict[str, list[Record]] = {}
    for record in records:
        by_label.setdefault(record.label, []).append(record)
    named = [label for label in by_label if coloured is None or label in coloured]
    moving = [label for label, mine in by_label.items() if weights_move(mine)]
    metric = _held_out_metric(records, tasks)
    upper = ["loss", metric] if metric else ["loss"]
    width, below = weights_size(len(moving))
    top = 2.4 * len(upper) + 0.4 + legend_height(len(named) + 1)
    drawing = Figure(figsize=(max(PANEL * max(len(tasks), 3), width), top + below),
                     layout="constrained")  # fmt: skip
    FigureCanvasAgg(drawing)
    parts = drawing.subfigures(2 if moving else 1, 1, squeeze=False,
                               height_ratios=[top, below] if moving else [1])  # fmt: skip
    above = parts[0, 0].subplots(len(upper), len(tasks), sharex=True, squeeze=False)
    for row, column in enumerate(upper):
        for axes, task in zip(above[row], tasks, strict=True):
            _draw_task(axes, by_label, named, task, column, title=row == 0)
        above[row, 0].set_ylabel("training loss" if column == "loss" else f"test {column}")
    for axes in above[-1]:
        axes.set_xlabel("epoch")
    handles, names = above[0, 0].get_legend_handles_labels()
    parts[0, 0].legend(handles, names, loc="outside upper center", ncols=LEGEND, frameon=False,
                       handlelength=3)  # fmt: skip
    if moving:
        draw_weights(parts[1, 0], {label: by_label[label] for label in moving}, tasks)
    noted(drawing, note)
    return save(drawing, path)


def _draw_task(
    axes: Any,
    by_label: Mapping[str, Sequence[Record]],
    named: Sequence[str],
    task: str,
    column: str,
    *,
    title: bool,
) -> None:
    split = "train" if column == "loss" else "test"
    for label, look in method_lines(named).items():
        curve(axes, [r.series(task, split, column) for r in by_label[label]], label, look)
    others = [label for label in by_label if label not in named]
    for number, label in enumerate(others):
        mine = [r.series(task, split, column) for r in by_label[label]]
        name = f"{len(others)} other{'s' if len(others) > 1 else ''}" if number == 0 else "_"
        curve(axes, mine, name, (OTHERS, "-"), 0.9, behind=True)
    if others and column == "loss":
        _keep_in_view(axes, len(named))
    if title:
        axes.set_title(task, fontsize=12, weight="bold")
    if column == "loss" and axes.lines and all((li.get_ydata() > 0).all() for li in axes.lines):
        log_scale(axes)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _keep_in_view(axes: Any, named: int) -> None:
    """All of the named curves, and where the others end: one that shot up may leave."""
    lines = [line.get_ydata() for line in axes.lines]
    seen = [value for data in lines[:named] for value in data] + [data[-1] for data in lines]
    known = [float(value) for value in seen if math.isfinite(value)]
    if not known:
        return
    low, high = min(known), max(known)
    if low > 0:
        room = (high / low) ** 0.06
        axes.set_ylim(low / room, high * room)
    else:
        room = 0.06 * (high - low)
        axes.set_ylim(low - room, high + room)


def _held_out_metric(records: Sequence[Record], tasks: Sequence[str]) -> str:
    """Accuracy, if every task has one on the test split."""
    have = {
        row["client"]
        for record in records
        for row in record.rows
        if row["split"] == "test" and "accuracy" in row
    }
    return "accuracy" if have >= set(tasks) else ""
