"""``python -m studies.benefit``: the published table of what clients gain over training alone.

A client may end with the shared network, with a copy of it that it tuned, or with what does best on
its own validation examples: one of these two, or what it trained alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal, get_args

import pandas as pd
import typer

from fedgradnorm._cli.output import Commands, say, tell
from fedgradnorm._errors import DataError
from fedgradnorm._methods import LOCAL
from fedgradnorm._report.benefit import TITLE
from fedgradnorm._report.colours import looks
from fedgradnorm._report.figures import GREY, dress, figure, legend, save
from fedgradnorm._report.frame import Report, every_metric, frame_of, in_points, read_report
from fedgradnorm._report.grid import BLANK, Cell, Grid, write_grids
from fedgradnorm._report.tables import gain_cell, p_cell
from fedgradnorm._report.words import in_words
from fedgradnorm._runs.history import UNTUNED
from fedgradnorm._runs.layout import FIGURES, TABLES
from fedgradnorm.experiments._config.shipped import BENEFIT
from fedgradnorm.experiments._statistics import Estimate, estimate, gain, holm, paired_p
from fedgradnorm.tasks._named_metrics import MAIN_METRICS, higher_is_better

app = typer.Typer(cls=Commands, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def benefit(
    folder: Annotated[Path, typer.Argument(help="What `reproduce benefit` left.")] = Path(
        "runs/benefit"
    ),
) -> None:
    """Show the benefit on every data set in FOLDER, with tables and a figure next to the runs."""
    say(write_all(folder, folder / TABLES, folder / FIGURES))
    say(f"tables:  {folder / TABLES} (CSV, Markdown, LaTeX)")
    say(f"figures: {folder / FIGURES / 'benefit.png'}")


def write_all(
    folder: Path, tables: Path, figures: Path, ends: Sequence[str] = (".png", ".pdf")
) -> Grid:
    """Write the tables and the figure of the runs in ``folder``; the first table."""
    places = {name: folder / name for name in BENEFIT if (folder / name).is_dir()}
    read = {
        name.removeprefix("benefit-"): read_report([place], LOCAL)
        for name, place in (places or {folder.name: folder}).items()
    }
    found = all_gains(read)
    grids = [benefit_grid(found), by_task_grid(found)]
    tell(note for report in read.values() for note in report.notes)
    write_grids(grids, tables)
    for end in ends:
        benefit_figure(found, figures / f"benefit{end}")
    return grids[0]


End = Literal["shared", "tuned", "chosen"]
ENDS: tuple[End, ...] = get_args(End)
DRAWN: tuple[End, ...] = ("shared", "tuned")
MARKERS: Mapping[End, str] = {"shared": "o", "tuned": "s"}
COLUMNS = 4
"""Panels in a row of the figure."""

PREFERRED = ("auc", *MAIN_METRICS)
"""The metric by which a client's gain is taken: the first of these that it has."""


@dataclass(frozen=True)
class Gains:
    """One variant, ended in one way, against training alone, in one ``unit``.

    ``table`` has each client's gain, a row per seed; more is better. It is in points for scores
    between 0 and 1, such as accuracy and AUC, and in percent for errors, so a ratio to a score near
    zero cannot decide a mean. ``p`` is Holm-corrected over all gains that are shown together.
    """

    data: str
    variant: str
    method: str
    end: End
    unit: str
    table: pd.DataFrame
    about: Mapping[str, Mapping[str, Any]]
    overlap: float = 0.0
    p: float = math.nan

    @property
    def mean(self) -> Estimate:
        """The mean over clients and seeds, with its interval over seeds."""
        return self._estimate(self.table.mean(axis=1))

    @property
    def raw_p(self) -> float:
        """The p-value of the t-test over seeds that the mean gain is zero, uncorrected."""
        seeds = list(self.table.mean(axis=1))
        return paired_p(seeds, [0.0] * len(seeds), self.overlap)

    def share(self, sign: int) -> float:
        """The share of clients whose interval over seeds lies above (+1) or below (-1) zero."""
        found = [self._estimate(self.table[name]) for name in self.table]
        return fmean(one.half < sign * one.mean for one in found)

    def by_task(self) -> dict[str, Estimate]:
        """The mean gain of each task's clients, with its interval over seeds."""
        tasks = {name: self.about.get(name, {}).get("task", name) for name in self.table}
        means = self.table.T.groupby(tasks, sort=False).mean().T
        return {task: self._estimate(means[task]) for task in means}

    def _estimate(self, values: pd.Series) -> Estimate:
        return estimate(list(values.dropna()), self.overlap)


def all_gains(reports: Mapping[str, Report]) -> list[Gains]:
    """The gains of every variant that can be compared with training alone, by data set."""
    found = [one for data, report in reports.items() for one in _all_gains(data, report)]
    corrected = holm([one.raw_p for one in found])
    return [replace(one, p=p) for one, p in zip(found, corrected, strict=True)]


def _all_gains(data: str, report: Report) -> Iterator[Gains]:
    # Every client counts, also where the report shows quantiles over many.
    groups = dict(zip(report.groups, report.everybody, strict=True))
    frame = frame_of(groups, report.baseline)
    values: dict[tuple[str, int, str], dict[tuple[str, str], float]] = {}
    for row in every_metric(groups).itertuples():
        values.setdefault((row.variant, row.seed, row.task), {})[row.split, row.metric] = row.value
    for name, rows in frame[frame.alone != ""].groupby("variant", sort=False):
        base, group = rows.alone.iloc[0], groups[str(name)]
        pairs = [
            (row.seed, row.task, values[name, row.seed, row.task], values[base, row.seed, row.task])
            for row in rows.itertuples() if (base, row.seed, row.task) in values
        ]  # fmt: skip
        about = {k: v for k, v in group.whole[0].part("clients").items() if isinstance(v, dict)}
        for end in ENDS:
            found = pd.DataFrame(
                [(seed, task, *_gain(ours, alone, end)) for seed, task, ours, alone in pairs],
                columns=["seed", "task", "unit", "gain"],
            )
            for unit, mine in found.groupby("unit", sort=False):
                table = mine.pivot(index="seed", columns="task", values="gain")
                table = table[list(dict.fromkeys(mine.task))]
                if table.notna().any(axis=None):
                    yield Gains(
                        data, str(name), group.method, end, str(unit), table, about,
                        rows.overlap.iloc[0],
                    )  # fmt: skip


_Values = Mapping[tuple[str, str], float]


def _gain(ours: _Values, alone: _Values, end: End) -> tuple[str, float]:
    """The unit of a client's gain, and the gain."""
    metric = next((m for m in PREFERRED if ("test", m) in alone), "loss")
    base = alone.get(("test", metric), math.nan)
    value = _value(ours, alone, metric, end)
    if in_points(metric):
        return "points", 100 * (value - base)
    return "%", gain(value, base, higher=higher_is_better(metric)) if value != base else 0.0


def _value(ours: _Values, alone: _Values, metric: str, end: End) -> float:
    """The metric on test examples of what the client ends with; NaN where there is no such end."""
    tuned = (f"{UNTUNED}test", metric) in ours
    shared = UNTUNED if tuned else ""
    if end == "shared":
        return ours.get((f"{shared}test", metric), math.nan)
    if end == "tuned":
        return ours.get(("test", metric), math.nan) if tuned else math.nan
    candidates = [(ours, shared), (ours, ""), (alone, "")]
    losses = [one.get((f"{before}validation", "loss"), math.nan) for one, before in candidates]
    usable = [k for k, loss in enumerate(losses) if math.isfinite(loss)]
    if not usable:
        return math.nan
    one, before = candidates[min(usable, key=losses.__getitem__)]
    return one.get((f"{before}test", metric), math.nan)


_NOTES = (
    "benefit: gain over training alone in the held-out metric, more being better; mean over "
    "clients, ± half the width of its 95% interval over seeds; accuracy and AUC in points, NME and "
    "MAE in percent of the error alone",
    "intervals and tests are widened where every seed splits the same examples again (Nadeau and "
    "Bengio 2003)",
    "shared: the shared network; tuned: a copy of it that the client tuned; chosen: the best of "
    "shared, tuned and alone on the client's own validation examples",
    "p: of the t-test over seeds that the mean is zero, Holm-corrected over this table",
    "gain, lose: share of clients whose own interval over seeds lies above or below zero",
)


def benefit_grid(found: Sequence[Gains]) -> Grid:
    """A row per data set, variant, end and unit."""
    columns = ("data", "method", "ends with", "benefit", "p", "median client", "gain", "lose",
               "worst client", "its gain", "clients", "seeds")  # fmt: skip
    groups = _by_data(found, _benefit_row)
    return Grid("benefit", TITLE, columns, groups, _NOTES)


def _by_data(found: Sequence[Gains], row: Any) -> tuple[tuple[tuple[Cell, ...], ...], ...]:
    names = dict.fromkeys(one.data for one in found)
    return tuple(tuple(row(one) for one in found if one.data == name) for name in names)


def _benefit_row(one: Gains) -> tuple[Cell, ...]:
    means, seeds = one.table.mean(), len(one.table)
    known, of = int(means.notna().sum()), len(means)
    counted = str(of) if known == of else f"{known} of {of}"
    share = [Cell(f"{100 * s:.0f} %", {"": s}) for s in (one.share(+1), one.share(-1))]
    middle, least = (Estimate(float(v), math.nan, 1) for v in (means.median(), means.min()))
    return (
        Cell(one.data), Cell(one.variant, variant=one.variant), Cell(one.end),
        gain_cell(one.mean, one.unit), p_cell(one.p), gain_cell(middle, one.unit),
        *(share if seeds > 1 else (BLANK, BLANK)), Cell(str(means.idxmin())),
        gain_cell(least, one.unit), Cell(counted, {"": known}), Cell(str(seeds), {"": seeds}),
    )  # fmt: skip


def by_task_grid(found: Sequence[Gains]) -> Grid:
    """A row per data set, variant and end, a column per task, of data sets with several tasks."""
    lines: dict[tuple[str, str, End], dict[str, Cell]] = {}
    for one in found:
        cells = {task: gain_cell(mean, one.unit) for task, mean in one.by_task().items()}
        lines.setdefault((one.data, one.variant, one.end), {}).update(cells)
    several = {key: cells for key, cells in lines.items() if len(cells) > 1}
    tasks = list(dict.fromkeys(task for cells in several.values() for task in cells))
    groups = tuple(
        tuple(
            (Cell(data), Cell(name, variant=name), Cell(end), *(c.get(t, BLANK) for t in tasks))
            for (data, name, end), c in several.items() if data == each
        )
        for each in dict.fromkeys(data for data, _, _ in several)
    )  # fmt: skip
    columns = ("data", "method", "ends with", *tasks)
    return Grid("benefit-tasks", f"{TITLE}, by task", columns, groups, _NOTES[:3])


def benefit_figure(found: Sequence[Gains], path: str | Path) -> Path:
    """A panel per data set: every variant's mean gain, in the unit that most clients have."""
    path = Path(path)
    if not found:
        raise DataError("nothing to draw: no run can be compared with one of training alone")
    panels = {}
    for one in found:
        widest = max((o for o in found if o.data == one.data), key=lambda o: len(o.table.columns))
        panels[one.data] = widest.unit
    variants = list(dict.fromkeys(one.variant for one in found))
    colours, rows = looks(variants), -(-len(panels) // COLUMNS)
    with figure(0.7 + (0.7 + 0.29 * len(variants)) * rows, path) as drawing:
        grid = drawing.subplots(rows, min(COLUMNS, len(panels)), sharey=True, squeeze=False)
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        for axes, (name, unit) in zip(grid.flat, panels.items(), strict=False):
            for one in found:
                if (one.data, one.unit) == (name, unit) and one.end in DRAWN:
                    place = variants.index(one.variant) + 0.36 * DRAWN.index(one.end) - 0.18
                    half = None if math.isnan(one.mean.half) else one.mean.half
                    colour = colours[one.variant].name
                    axes.errorbar(one.mean.mean, place, xerr=half, linewidth=1, markersize=3.5,
                                  color=colour, fmt=MARKERS[one.end])  # fmt: skip
            axes.axvline(0, color=GREY, linewidth=0.8)
            axes.set_title(name)
            axes.set_xlabel(f"{unit} →")
            dress(axes)
        for axes in grid[:, 0]:
            names = [in_words(name).replace(", ", ",\n") for name in variants]
            axes.set_yticks(range(len(variants)), names)
        grid[0, 0].invert_yaxis()
        for end in DRAWN:
            grid[0, 0].plot([], [], MARKERS[end], color=GREY, label=f"{end} network")
        legend(drawing, grid.flat)
        note = "→ benefit over training alone: better to the right; bars: 95% intervals over seeds"
        return save(drawing, path, note)


if __name__ == "__main__":
    app(prog_name="python -m studies.benefit")
