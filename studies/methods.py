"""``python -m studies.methods``: the published table and figures of every method."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from fedgradnorm._cli.output import Commands, say
from fedgradnorm._report.colours import COLOURS, TASKS
from fedgradnorm._report.figures import GREY, MARKERS, PAPER, dress, figure, legend, save
from fedgradnorm._report.frame import Report, read_report
from fedgradnorm._report.grid import BLANK, Cell, Grid, write_grids
from fedgradnorm._report.tables import (
    DELTA_NOTE,
    SIGHT_NOTE,
    SIGHTS,
    delta,
    delta_cell,
    interval_note,
    mean_cell,
    sight,
    worst_cells,
)
from fedgradnorm._runs.layout import FIGURES, TABLES
from fedgradnorm.experiments._config.shipped import SIDE_BY_SIDE

app = typer.Typer(cls=Commands, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def methods(
    folder: Annotated[Path, typer.Argument(help="What `reproduce methods` left.")] = Path(
        "runs/methods"
    ),
) -> None:
    """Write one table of both data sets in FOLDER, and a figure next to the runs of each."""
    found = side_by_side(folder, folder / TABLES)
    say(f"tables:  {folder / TABLES} (CSV, Markdown, LaTeX)")
    for name, one in found.items():
        for ending in ("png", "pdf"):
            path = methods_figure(one, folder / name / FIGURES / f"methods.{ending}")
        say(f"figures: {path}")


def side_by_side(folder: Path, tables: Path) -> dict[str, Report]:
    """Write the table of both experiments in ``folder``; their reports."""
    found = {name: read_report([folder / name]) for name in SIDE_BY_SIDE}
    grid = side_grid({name.rpartition("-")[2]: one for name, one in found.items()})
    write_grids([grid], tables)
    return found


def side_grid(reports: Mapping[str, Report]) -> Grid:
    """The same methods in several experiments: a row per method, some columns per experiment."""
    parts = ("Δm", "worst task", "its gain", "Δm held out", "seconds", "seeds")
    order = {name: one.groups[name].method for one in reports.values()
             for name in one.ranking["loss"]}  # fmt: skip
    rows = []
    for name, method in order.items():
        cells = [Cell(name, variant=name), Cell(sight(method) or "-")]
        for one in reports.values():
            if name not in one.groups:
                cells += [BLANK] * len(parts)
                continue
            ends = one.frame[one.frame.variant == name].drop_duplicates("seed")
            uneven = one.seeds[name] < max(one.seeds.values())
            cells += [
                delta_cell(one, name, "loss"), *worst_cells(one, name, "loss"),
                delta_cell(one, name, "score"), mean_cell(ends.seconds, lambda v: f"{v.mean:.1f}"),
                Cell(str(one.seeds[name]), {"": one.seeds[name]}) if uneven else BLANK,
            ]  # fmt: skip
        rows.append(tuple(cells))
    notes = [
        f"{name}: against {one.baseline}, {interval_note(one)}"
        + (f" ({one.synthetic})" if one.synthetic else "")
        for name, one in reports.items()
    ]
    notes += [f"{DELTA_NOTE}; on training losses unless it says held out", SIGHT_NOTE]
    columns = ("method", "server sees", *(f"{name}: {c}" for name in reports for c in parts))
    title = f"Every method on {' and '.join(reports)}"
    return Grid("side-by-side", title, columns, (tuple(rows),), tuple(notes)).without_blank()


def methods_figure(report: Report, path: str | Path) -> Path:
    """A row per variant: what its server sees, Delta_m on the training loss, every task's gain."""
    path = Path(path)
    names, ink = report.ranking["loss"], "C6"
    sights = [s for s in SIGHTS if any(sight(report.groups[name].method) == s for name in names)]
    gains = report.gains["loss", "base"].groupby(["variant", "task"]).gain.mean()
    deltas = {name: delta(report, name, "loss") for name in names}
    low, high = _limits([one.mean for one in deltas.values()])
    with figure(2.0 + 0.165 * len(names), path) as drawing:
        ratios = [max(0.17 * len(sights), 0.5), 2.0, 2.0]
        seen, total, tasks = drawing.subplots(1, 3, sharey=True, width_ratios=ratios)
        for row, name in enumerate(names):
            if (needs := sight(report.groups[name].method)) in sights:
                seen.plot(sights.index(needs), row, "o", color=ink, markersize=4)
            found = deltas[name]
            text = f"{found.mean:+.1f}" if math.isfinite(found.mean) else "diverged"
            text = text if found.count else "baseline"
            total.annotate(
                text, (1, row), (4, 0), ("axes fraction", "data"), "offset points", va="center"
            )
            if math.isfinite(found.mean):
                place, off = float(np.clip(found.mean, low, high)), not low <= found.mean <= high
                half = 0.0 if math.isnan(found.half) else found.half
                ends = np.clip([found.mean - half, found.mean + half], low, high)
                total.plot(ends, [row, row], color=GREY, linewidth=1.3)
                clear = abs(found.mean) > half
                total.plot(place, row, ("<" if place == low else ">") if off else "D", color=ink,
                           markersize=4, markerfacecolor=ink if clear else PAPER)  # fmt: skip
        _task_gains(tasks, names, gains, report.tasks)
        total.set_xlim(low, high)
        total.set_xlabel(f"Δm against {report.baseline}, % →")
        seen.set_title("server sees")
        seen.set_xlim(-0.6, max(len(sights), 1) - 0.4)
        seen.set_xticks(range(len(sights)), sights, rotation=90)
        seen.tick_params(
            axis="x", top=True, labeltop=True, bottom=False, labelbottom=False, length=0
        )
        for axes in (seen, total, tasks):
            dress(axes)
            axes.set_ylim(len(names) - 0.5, -0.5)
            if axes is not seen:
                axes.axvline(0, color=GREY, linewidth=0.8, zorder=1)
        seen.set_yticks(range(len(names)), names)
        legend(drawing, [tasks])
        note = (
            "training loss at the end, better to the right; bars: 95% intervals; "
            "filled: beyond its interval; arrows: off the scale"
        )
        return save(drawing, path, "; ".join(filter(None, (note, report.synthetic))))


def _task_gains(axes: Any, names: Sequence[str], gains: Any, tasks: Sequence[str]) -> None:
    """A marker per task, all gray if there are more tasks than colors."""
    low, high = _limits(list(gains), inner=0.94)
    plain = len(tasks) > len(TASKS)
    for number, task in enumerate(tasks):
        colour, shape = (GREY, "o") if plain else (f"C{len(COLOURS) + number}", MARKERS[number])
        for row, name in enumerate(names):
            value = gains.get((name, task), math.nan)
            if math.isfinite(value):
                mark = "<" if value < low else ">" if value > high else shape
                axes.plot(np.clip(value, low, high), row, mark, color=colour, markersize=4.5,
                          markeredgecolor=PAPER, markeredgewidth=0.5, clip_on=False)  # fmt: skip
        if not plain:
            axes.plot([], [], shape, color=colour, label=task)
    axes.set_xlim(low, high)
    axes.set_xlabel("gain on each task, % →")


def _limits(values: Sequence[float], inner: float = 1.0) -> tuple[float, float]:
    """A range around zero that holds at least the share ``inner`` of all finite values."""
    known = np.asarray([value for value in values if math.isfinite(value)] or [0.0])
    rest = 50 * (1 - inner)
    low, high = (
        min(0.0, *np.percentile(known, [rest])),
        max(0.0, *np.percentile(known, [100 - rest])),
    )
    room = 0.08 * max(high - low, 1e-9)
    return low - room, high + room


if __name__ == "__main__":
    app(prog_name="python -m studies.methods")
