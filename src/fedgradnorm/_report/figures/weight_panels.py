"""The weights of all tasks over the epochs: a panel per method, in rows where there are many."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedgradnorm._report.colours import TASKS
from fedgradnorm._report.figures.curves import STYLES, curve, log_scale
from fedgradnorm._report.record import Record

COLUMNS = 6
PANEL = 1.95  # inches that the name of a method needs
SMALL = 0.05  # weights below this are drawn on a logarithmic axis: near zero is not zero
FLOOR = 1e-3  # and there is no telling weights below this from none
BINS = 25  # in small panels a weight is averaged over this share of the run


def weights_size(methods: int) -> tuple[float, float]:
    """Inches that the panels of so many methods need."""
    rows, columns = _shape(methods)
    if rows <= 1:
        return PANEL * columns, 2.6 * rows
    return PANEL * columns + 1.2, 0.7 + 1.75 * rows


def draw_weights(part: Any, methods: Mapping[str, Sequence[Record]], tasks: Sequence[str]) -> None:
    """A panel per method, a colour per task, all on one scale.

    More panels than a row holds are small, and the weights in them averaged over stretches of the
    run: a weight that jumps from round to round would fill its panel.
    """
    rows, columns = _shape(len(methods))
    small = rows > 1
    panels = part.subplots(rows, columns, sharex=small, sharey=True, squeeze=False)
    used = list(panels.flat)[: len(methods)]
    for axes, (label, mine) in zip(used, methods.items(), strict=True):
        _panel(axes, mine, tasks, small=small)
        axes.set_title(label if small else f"weights: {label}", fontsize=10 if small else 11)
    for axes in list(panels.flat)[len(methods) :]:
        axes.set_visible(False)
    _scale(used)
    for number, axes in enumerate(used):
        if number + columns >= len(methods):  # nobody is below
            axes.set_xlabel("epoch")
            axes.tick_params(labelbottom=True)
    if small:
        part.suptitle(f"weights, averaged over {100 / BINS:g}% of the run at a time", fontsize=11)
        handles, names = used[0].get_legend_handles_labels()
        part.legend(handles, names, loc="outside right center", frameon=False)
        for axes in panels[:, 0]:
            axes.set_ylabel("weight")
    else:
        used[0].set_ylabel("weight")
        used[-1].legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)


def _shape(methods: int) -> tuple[int, int]:
    """As few rows as can be, and all of them as full."""
    rows = math.ceil(methods / COLUMNS)
    return rows, math.ceil(methods / rows) if rows else 0


def weights_move(records: Sequence[Record]) -> bool:
    """Whether there is anything to see."""
    weights = [row["weight"] for r in records for row in r.rows if row["split"] == "batch"]
    return bool(weights) and not np.allclose(weights, weights[0])


def _panel(axes: Any, records: Sequence[Record], tasks: Sequence[str], *, small: bool) -> None:
    for number, task in enumerate(tasks):
        again, colour = divmod(number, len(TASKS))
        look = TASKS[colour], STYLES[again % len(STYLES)]
        series = [record.series(task, "batch", "weight") for record in records]
        if small:
            shortest = min(len(epochs) for epochs, _ in series)
            series = [(_binned(e[:shortest]), _binned(v[:shortest])) for e, v in series]
        curve(axes, series, task, look, 1.5 if small else 2)
    axes.axhline(1.0, color="#999999", linewidth=0.8, zorder=0)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _binned(values: Sequence[float]) -> list[float]:
    """Means over neighbours, :data:`BINS` of them unless there are fewer values."""
    if not values:
        return []
    parts = np.array_split(np.asarray(values, dtype=float), min(BINS, len(values)))
    return [float(part.mean()) for part in parts]


def _scale(panels: Sequence[Any]) -> None:
    lines = [line.get_ydata() for axes in panels for line in axes.lines]
    lowest = min((float(np.min(values)) for values in lines), default=1.0)
    highest = max((float(np.max(values)) for values in lines), default=1.0)
    for axes in panels:  # once all are drawn: they share the axis
        if 0 < lowest < SMALL:
            axes.set_ylim(max(lowest / 1.3, FLOOR), highest * 1.3)
            log_scale(axes)
        else:
            axes.set_ylim(bottom=0)
