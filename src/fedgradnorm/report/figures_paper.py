"""The paper's figures: losses of all tasks, accuracies where there are any, weights per epoch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedgradnorm.errors import DataError
from fedgradnorm.report.colours import TASKS
from fedgradnorm.report.figures import STYLES, check_format, curve, log_scale, method_lines, save
from fedgradnorm.report.record import Record

PANEL = 2.7  # inches a task
SMALL = 0.05  # weights below this are drawn on a logarithmic axis: near zero is not zero


def paper_figure(records: Sequence[Record], path: str | Path, note: str = "") -> Path:
    """A column per task: training loss, then test accuracy where every task has one.

    Below, one panel for each method whose weights move, with the weights of all tasks. Lines are
    means over seeds, bands the range they span. ``note`` is written under the figure.
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
    moving = [label for label, mine in by_label.items() if _weights_move(mine)]
    metric = _held_out_metric(records, tasks)
    upper = ["loss", metric] if metric else ["loss"]
    drawing = Figure(figsize=(PANEL * max(len(tasks), 3), 2.4 * (len(upper) + bool(moving)) + 0.6),
                     layout="constrained")  # fmt: skip
    FigureCanvasAgg(drawing)
    parts = drawing.subfigures(2 if moving else 1, 1, squeeze=False,
                               height_ratios=[len(upper), 1.1] if moving else [1])  # fmt: skip
    above = parts[0, 0].subplots(len(upper), len(tasks), sharex=True, squeeze=False)
    for row, column in enumerate(upper):
        for axes, task in zip(above[row], tasks, strict=True):
            _draw_task(axes, by_label, task, column, title=row == 0)
        above[row, 0].set_ylabel("training loss" if column == "loss" else f"test {column}")
    for axes in above[-1]:
        axes.set_xlabel("epoch")
    handles, names = above[0, 0].get_legend_handles_labels()
    parts[0, 0].legend(handles, names, loc="outside upper center", ncols=4, frameon=False)
    if moving:
        _draw_weights(parts[1, 0], {label: by_label[label] for label in moving}, tasks)
    if note:
        drawing.text(0.995, 0.003, note, ha="right", va="bottom", fontsize=8, color="#555555")
    return save(drawing, path)


def _draw_task(
    axes: Any, by_label: dict[str, list[Record]], task: str, column: str, *, title: bool
) -> None:
    split = "train" if column == "loss" else "test"
    for label, look in method_lines(list(by_label)).items():
        curve(axes, [r.series(task, split, column) for r in by_label[label]], label, look)
    if title:
        axes.set_title(task, fontsize=12, weight="bold")
    if column == "loss" and axes.lines and all((li.get_ydata() > 0).all() for li in axes.lines):
        log_scale(axes)
    _dress(axes)


def _draw_weights(part: Any, methods: dict[str, list[Record]], tasks: Sequence[str]) -> None:
    """A panel per method, a colour per task."""
    panels = part.subplots(1, len(methods), sharey=True, squeeze=False)[0]
    for axes, (label, mine) in zip(panels, methods.items(), strict=True):
        for number, task in enumerate(tasks):
            again, colour = divmod(number, len(TASKS))
            look = TASKS[colour], STYLES[again % len(STYLES)]
            curve(axes, [record.series(task, "batch", "weight") for record in mine], task, look)
        axes.axhline(1.0, color="#999999", linewidth=0.8, zorder=0)
        axes.set_title(f"weights: {label}", fontsize=11)
        axes.set_xlabel("epoch")
        _dress(axes)
    lowest = min((np.min(line.get_ydata()) for axes in panels for line in axes.lines), default=1.0)
    for axes in panels:  # once all are drawn: they share the axis
        if 0 < lowest < SMALL:
            log_scale(axes)
        else:
            axes.set_ylim(bottom=0)
    panels[0].set_ylabel("weight")
    panels[-1].legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)


def _weights_move(records: Sequence[Record]) -> bool:
    weights = [row["weight"] for r in records for row in r.rows if row["split"] == "batch"]
    return bool(weights) and not np.allclose(weights, weights[0])


def _held_out_metric(records: Sequence[Record], tasks: Sequence[str]) -> str:
    """Accuracy, if every task has one on the test split."""
    have = {
        row["client"]
        for record in records
        for row in record.rows
        if row["split"] == "test" and "accuracy" in row
    }
    return "accuracy" if have >= set(tasks) else ""


def _dress(axes: Any) -> None:
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
