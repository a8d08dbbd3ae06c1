"""Many methods at a glance: a row each, the best on top, beside it what its server must see."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedgradnorm._report.arms import LOSS
from fedgradnorm._report.colours import COLOURS, TASKS
from fedgradnorm._report.comparison import Comparison
from fedgradnorm._report.figures.curves import check_format, save
from fedgradnorm._report.ranking import SIGHTS, Rank, ranking, sight, uneven

ROW = 0.25  # inches a method
INK, FAINT = COLOURS[-1], "#8A8A8A"
MARKS = ("o", "s", "D", "P", "X", "p", "h", "*")  # they say again what the tasks' colours say


def methods_figure(comparison: Comparison, path: str | Path) -> Path:
    """Three panels with a row per arm: what the server sees, Delta_m, and every task's gain.

    All on the training loss at the end, against the baseline. What is off the scale is an arrow at
    its edge.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path = Path(path)
    check_format(path)
    ranks = ranking(comparison, LOSS)
    sights = [name for name in SIGHTS if any(sight(r.arm.method) == name for r in ranks)]
    columns = [*sights, "seeds"] if uneven(comparison) else sights
    narrow = max(0.3 * len(columns), 0.7)  # wide enough for its title
    size = (2.1 + narrow + 8.2, 1.9 + ROW * len(ranks))
    drawing = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(drawing)
    seen, delta, tasks = drawing.subplots(1, 3, sharey=True, width_ratios=[narrow, 3.4, 4.4])
    _draw_seen(seen, ranks, columns)
    _draw_delta(delta, ranks, comparison.baseline)
    _draw_gains(tasks, ranks, comparison.tasks)
    for axes in (seen, delta, tasks):
        _dress(axes, len(ranks))
    _name_rows(seen, ranks)
    _, names = tasks.get_legend_handles_labels()
    if names:
        beside = max(1, min(len(names), 62 // (max(map(len, names)) + 4)))
        tasks.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=beside, frameon=False,
                     borderaxespad=0.2, handletextpad=0.1, columnspacing=1.0)  # fmt: skip
    drawing.supxlabel(_reading(ranks, comparison), fontsize=8, color="#555555", x=0.995, ha="right")
    return save(drawing, path)


def _draw_seen(axes: Any, ranks: Sequence[Rank], columns: Sequence[str]) -> None:
    """A dot under what the server sees beside the sum of updates; "?" where that is not known."""
    for row, rank in enumerate(ranks):
        name = sight(rank.arm.method)
        if name:
            axes.plot(columns.index(name), row, "o", color=INK, markersize=5.5)
        elif columns:
            axes.text(0, row, "?", ha="center", va="center", fontsize=9, color=FAINT)
        if columns and columns[-1] == "seeds":
            count = str(len(rank.arm.samples))
            axes.text(len(columns) - 1, row, count, ha="center", va="center", fontsize=9)
    axes.set_xlim(-0.6, max(len(columns), 1) - 0.4)
    axes.set_xticks(range(len(columns)), columns, rotation=55, ha="left", rotation_mode="anchor")
    axes.tick_params(axis="x", top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    axes.set_title("server sees", fontsize=10)
    axes.grid(axis="x", alpha=0.25)


def _draw_delta(axes: Any, ranks: Sequence[Rank], baseline: str) -> None:
    """A diamond on its interval, full where that leaves zero out; beside it the number."""
    low, high = _limits(_spanned(ranks), inner=1.0)
    for row, rank in enumerate(ranks):
        mean, half = rank.delta.mean, rank.delta.half
        if rank.base:
            axes.text(0, row, "baseline", ha="center", va="center", fontsize=8, color=FAINT,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # fmt: skip
            continue
        text = _signed(mean, 1) if math.isfinite(mean) else "diverged"
        axes.annotate(text, (1, row), xycoords=("axes fraction", "data"), xytext=(7, 0),
                      textcoords="offset points", va="center", fontsize=8.5)  # fmt: skip
        if math.isnan(mean):
            continue
        if not math.isnan(half):
            ends = [float(np.clip(mean + sign * half, low, high)) for sign in (-1, 1)]
            axes.plot(ends, [row, row], color=FAINT, linewidth=1.6, zorder=2, clip_on=False)
            for end, mark, beyond in (
                (low, "<", mean - half < low),
                (high, ">", mean + half > high),
            ):
                if beyond:
                    axes.plot(end, row, mark, color=FAINT, markersize=5, clip_on=False)
        if low <= mean <= high:
            face = INK if abs(mean) > half else "white"
            axes.plot(mean, row, "D", markerfacecolor=face, markeredgecolor=INK, markersize=5.5,
                      zorder=4)  # fmt: skip
        else:
            end, mark = (low, "<") if mean < low else (high, ">")
            axes.plot(end, row, mark, color=INK, markersize=7, zorder=4, clip_on=False)
    axes.set_xlim(low, high)
    axes.set_xlabel(f"Δm against {baseline}, %")
    axes.grid(axis="x", alpha=0.25)


def _draw_gains(axes: Any, ranks: Sequence[Rank], tasks: Sequence[str]) -> None:
    """A dot per task; grey ones where there are more tasks than colours."""
    low, high = _limits([gain for rank in ranks for gain in rank.gains.values()], inner=0.94)
    step = 0.022 * (high - low)
    plain = len(tasks) > len(TASKS)
    looks: Mapping[str, tuple[str, str]] = {
        task: (FAINT, "o") if plain else (TASKS[number], MARKS[number])
        for number, task in enumerate(tasks)
    }
    for row, rank in enumerate(ranks):
        for mark, end, inward, beyond in (
            ("<", low, step, sorted((g, t) for t, g in rank.gains.items() if g < low)),
            (">", high, -step, sorted(((-g, t) for t, g in rank.gains.items() if g > high))),
        ):
            for place, (_, task) in enumerate(beyond):  # the farthest stands outermost
                axes.plot(end + place * inward, row, mark, color=looks[task][0], markersize=7,
                          markeredgecolor="white", markeredgewidth=0.5, clip_on=False,
                          zorder=4)  # fmt: skip
            if len(beyond) == 1:
                task = beyond[0][1]
                axes.text(end + 0.6 * inward, row, _signed(rank.gains[task], 0), fontsize=7,
                          color=looks[task][0], va="center",
                          ha="left" if inward > 0 else "right")  # fmt: skip
    for task, (colour, mark) in looks.items():
        found = [(rank.gains[task], row) for row, rank in enumerate(ranks)
                 if task in rank.gains and low <= rank.gains[task] <= high]  # fmt: skip
        x, y = zip(*found, strict=True) if found else ((), ())
        axes.plot(x, y, mark, color=colour, markersize=6.5, markeredgecolor="white",
                  markeredgewidth=0.6, alpha=0.9, zorder=3, linestyle="none",
                  label="_" if plain else task)  # fmt: skip
    axes.set_xlim(low, high)
    axes.set_xlabel("gain on each task, %")
    axes.grid(axis="x", alpha=0.25)


def _signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", "\N{MINUS SIGN}")


def _spanned(ranks: Sequence[Rank]) -> list[float]:
    """Every Delta_m, and the ends of intervals that are not wide beside the range of all."""
    deltas = [rank.delta for rank in ranks if math.isfinite(rank.delta.mean)]
    means = [delta.mean for delta in deltas]
    wide = 0.5 * (max(means, default=0.0) - min(means, default=0.0))
    narrow = [delta for delta in deltas if delta.half <= wide]
    return means + [d.mean + sign * d.half for d in narrow for sign in (-1, 1)]


def _limits(values: Sequence[float], inner: float) -> tuple[float, float]:
    """A range with zero in it that holds at least the share ``inner`` of all finite values.

    A value is left out only where it is far off: more than twice as far as what must be held.
    """
    known = np.asarray([value for value in values if math.isfinite(value)] or [0.0])
    rest = 50 * (1 - inner)
    ends = []
    for sign, percentile in ((-1, rest), (1, 100 - rest)):
        core = max(0.0, sign * float(np.percentile(known, percentile)))
        ends.append(max(core, max((v for v in sign * known if v <= 2 * core), default=0.0)))
    span = max(sum(ends), 1e-9)
    low, high = (end + 0.05 * span for end in ends)
    return -low, high


def _dress(axes: Any, rows: int) -> None:
    for row in range(1, rows, 2):
        axes.axhspan(row - 0.5, row + 0.5, color="#F4F4F4", zorder=0, linewidth=0)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    if axes.get_xlim()[0] < 0 < axes.get_xlim()[1] and axes.get_xlabel().endswith("%"):
        axes.axvline(0, color="#999999", linewidth=1, zorder=1)
    else:
        axes.spines["bottom"].set_visible(False)


def _name_rows(axes: Any, ranks: Sequence[Rank]) -> None:
    axes.set_yticks(range(len(ranks)), [rank.arm.label for rank in ranks])
    for text, rank in zip(axes.get_yticklabels(), ranks, strict=True):
        text.set_weight("bold" if rank.base else "normal")


def _reading(ranks: Sequence[Rank], comparison: Comparison) -> str:
    """How the figure is to be read, in a line or two."""
    words = ["training loss at the end, more is better; arrows: off the scale"]
    if any(not math.isnan(rank.delta.half) for rank in ranks):
        words.append("bars: 95% intervals over seeds; full diamonds: zero is outside")
    first = "; ".join(words)
    second = "beside the sum of updates, which every server sees"
    lines = [first, f"server sees: {second}"]
    return "\n".join([*lines, comparison.synthetic] if comparison.synthetic else lines)
