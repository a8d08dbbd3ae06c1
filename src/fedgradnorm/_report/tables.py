"""A report as tables: tasks, methods, a sweep; and clients before training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

import pandas as pd

from fedgradnorm._client import SPLITS, Client
from fedgradnorm._methods import LOCAL, METHODS
from fedgradnorm._report import words
from fedgradnorm._report.frame import MEASURES, Report, every_metric
from fedgradnorm._report.grid import BLANK, Cell, Grid, spreadsheet_text, write_grids
from fedgradnorm._runs.checkpoint import write_atomically
from fedgradnorm.experiments._statistics import LEVEL, Estimate, estimate
from fedgradnorm.experiments._variants import key_name, value_name
from fedgradnorm.models._input_rows import row_form
from fedgradnorm.models._streamed import some_targets
from fedgradnorm.tasks._named_metrics import higher_is_better
from fedgradnorm.weighting import Needs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PAPER: Mapping[str, Mapping[str, float]] = {
    method: dict(zip(("landmark", "gender", "smile", "glasses", "pose"), losses, strict=True))
    for method, losses in {
        "fedrep": (33.28, 0.66, 0.60, 0.44, 1.1),
        "fedgradnorm": (33.25, 0.56, 0.57, 0.43, 1.1),
    }.items()
}
"""Task losses after 100 epochs, imbalanced allocation, as the paper prints them.

Source: Mortaheb, Vahapoglu, Ulukus, "FedGradNorm: Personalized Federated Gradient-Normalized
Multi-Task Learning" (2022), Table II.
"""

SIGHTS = ("nothing", "sizes", "losses", "losses, norms", "Gram matrix", "gradients")
"""What a server may see of the clients in addition to the sum of their updates."""

CONSTANT_NOTE = "constant: the score of always predicting the majority class, or the mean"
SIGHT_NOTE = "server sees: of the clients, in addition to the sum of their updates"
DELTA_NOTE = "Δm: mean over tasks of the relative gain, in %; more is better"
SPLIT_TITLES = {"test": "held-out", "validation": "validation", "train": "training metric"}


def shown_grids(report: Report) -> list[Grid]:
    """The tables for a reader, the first of them for the terminal.

    A row per task and method; of many methods first a row per method; of a sweep its points next to
    each other, held-out results first.
    """
    if report.points:
        grids = [sweep_grid(report, "score"), sweep_grid(report, "loss")]
        return [grid for grid in grids if grid.rows]
    if len(report.variants) == 1:
        return [tasks_grid(report)]
    both = tasks_grid(report), methods_grid(report)
    return list(reversed(both) if report.many else both)


def all_grids(report: Report) -> list[Grid]:
    """The tables for a reader, and those that are only for files."""
    more = [tasks_grid(report), methods_grid(report)] if report.points else []
    return [*shown_grids(report), *more]


def write_tables(report: Report, folder: Path) -> None:
    """All tables in every form, and ``every-metric.csv``: the means over seeds of every metric."""
    write_grids(all_grids(report), folder)
    keys = ["task", "variant", "split", "metric"]
    found = every_metric(report.groups).groupby(keys, sort=False).value
    table = found.agg(["mean", "std", "count"]).reset_index()
    for name in keys:
        table[name] = table[name].map(spreadsheet_text)
    text = table.to_csv(index=False, float_format="%.12g")
    write_atomically(folder / "every-metric.csv", text.encode())


def interval_note(report: Report) -> str:
    counts = sorted(report.seeds.values())
    if counts[-1] == 1:
        return "one seed: no intervals and no tests"
    seeds = f"{counts[0]} to {counts[-1]}" if counts[0] < counts[-1] else str(counts[-1])
    return f"mean ± half width of the 95% interval (Student's t) over {seeds} seeds"


def tasks_grid(report: Report) -> Grid:
    """A row per task and variant: metric, constant baseline, effect and p-value, losses, weight."""
    frame, base = report.frame, report.baseline
    splits = set(frame.split)
    result = SPLIT_TITLES[splits.pop()] if len(splits) == 1 else "result"
    columns = (
        "task", "method", result, "constant", f"against {base}", "p", "training loss", "weight",
        "at start", "p (loss)", "held-out loss", f"epochs to {base}'s loss", "paper's loss",
    )  # fmt: skip
    found = {m: t.set_index(["variant", "task"]) for m, t in report.effects.items()}
    order = report.ranking["score"] if report.many else report.variants
    rows = dict(iter(frame.groupby(["variant", "task"], sort=False)))
    groups = []
    for task in report.tasks:
        mine = [rows[name, task] for name in order if (name, task) in rows]
        scale = _scale([estimate(list(part.score)) for part in mine])
        best = {m: _best(mine, m) for m in MEASURES}
        groups.append(
            tuple(_task_row(report, part, found, best, scale, result == "result") for part in mine)
        )
    notes = [interval_note(report)]
    if frame.constant.notna().any():
        notes.append(CONSTANT_NOTE)
    if len(report.effects["score"]):
        notes.append(
            f"against {base}: the difference, positive where better, ± half its 95% interval"
            if max(report.seeds.values()) > 1 else
            f"against {base}: the difference, positive where better"
        )  # fmt: skip
    if max(report.seeds.values()) > 1 and len(report.variants) > 1:
        notes.append("p: two-sided paired t-test over seeds, Holm-corrected over this table")
    minor = ("p (loss)", "at start", "held-out loss", columns[-2], columns[-1])
    title = "Every task at the end of training"
    return Grid("tasks", title, columns, tuple(groups), tuple(notes), minor).without_blank()


def _task_row(
    report: Report,
    part: pd.DataFrame,
    effects: Mapping[str, pd.DataFrame],
    best: Mapping[str, str],
    scale: tuple[float, float],
    mixed: bool,
) -> tuple[Cell, ...]:
    first = part.iloc[0]
    name, task, metric = first.variant, first.task, first.metric
    key = (name, task)
    score = score_cell(estimate(list(part.score)), metric, bold=name == best["score"])
    score = replace(score, scale=scale, text=score.text + (f" ({first.split})" if mixed else ""))
    effect, p = BLANK, dict.fromkeys(MEASURES, math.nan)
    for measure, table in effects.items():
        if key in table.index:
            p[measure] = table.loc[key].p
    if key in effects["score"].index:
        effect = effect_cell(effects["score"].loc[key])
    at_start = estimate(list(part.first_loss))
    weight = estimate(list(part.weight))
    run = next(iter(report.groups[name].seeds.values()))
    printed = PAPER.get(first.method, {}).get(task) if _is_papers(run.config) else None
    return (
        Cell(task, task=task), Cell(name, variant=name), score,
        mean_cell(part.constant, lambda value: words.metric(value, metric), higher=first.higher),
        effect, p_cell(p["score"]),
        number(estimate(list(part.loss)), words.loss, bold=name == best["loss"]),
        BLANK if math.isnan(weight.mean) else number(weight, words.weight),
        number(at_start, words.loss), p_cell(p["loss"]), mean_cell(part.held_loss, words.loss),
        _reached(part.reached) if first.base else BLANK,
        BLANK if printed is None or report.groups[name].own
        else Cell(f"{printed:g}", {"": printed}),
    )  # fmt: skip


def _is_papers(config: Mapping[str, object]) -> bool:
    """Whether a run is of the paper's table: its experiment, on its data."""
    data = config.get("data")
    return config.get("name") == "table2" and isinstance(data, dict) and data["source"] == "mtfl"


def methods_grid(report: Report) -> Grid:
    """Two rows per variant, for each measure: gains, worst task, cost.

    Many variants are sorted by their gain on each measure, with what their servers see.
    """
    base = report.baseline
    columns = ("method", "measured on", f"Δm against {base}", f"Δm against {LOCAL}", "worst task",
               "its gain", "server sees", "MB sent", "seconds", "seeds")  # fmt: skip
    notes = [
        interval_note(report), DELTA_NOTE,
        f"worst task: the smallest mean gain against {base}",
    ]  # fmt: skip
    if report.many:
        groups = tuple(
            tuple(_method_row(report, name, m) for name in report.ranking[m]) for m in MEASURES
        )
        notes += [f"sorted by Δm on each measure; {base} is at zero", SIGHT_NOTE]
    else:
        groups = tuple(
            tuple(_method_row(report, name, m) for m in MEASURES) for name in report.variants
        )
    notes += _beyond_note(groups)
    minor = ("server sees", "MB sent", "seeds")
    grid = Grid("methods", "Every method", columns, groups, tuple(notes), minor)
    return grid.without_blank()


def _method_row(report: Report, name: str, measure: str) -> tuple[Cell, ...]:
    ends = report.frame[report.frame.variant == name].drop_duplicates("seed")
    seeds = report.seeds[name]
    alone = BLANK if report.baseline == LOCAL else delta_cell(report, name, measure, "alone")
    return (
        Cell(name, variant=name), Cell(MEASURES[measure]), delta_cell(report, name, measure),
        alone, *worst_cells(report, name, measure),
        Cell(sight(report.groups[name].method) or "-") if report.many else BLANK,
        mean_cell(ends.megabytes, lambda v: f"{v.mean:.1f}"),
        mean_cell(ends.seconds, lambda v: f"{v.mean:.1f}"),
        Cell(str(seeds), {"": seeds}) if len(set(report.seeds.values())) > 1 else BLANK,
    )  # fmt: skip


def _gains(report: Report, name: str, measure: str, base: str = "base") -> pd.DataFrame:
    """Gains in percent, a row per seed and a column per task."""
    both = report.gains[measure, base]
    mine = both[(both.variant == name) & both.main]
    return mine.set_index(["seed", "task"]).sort_index()


def delta(report: Report, name: str, measure: str, base: str = "base") -> Estimate:
    """Delta_m: the mean over tasks of the relative gains, over seeds.

    Source: Maninis et al., "Attentive single-tasking of multiple tasks" (2019).
    """
    found = _gains(report, name, measure, base)
    groups = found.gain.groupby("seed")
    seeds = [fmean(values) for _, values in groups if not values.isna().all()]
    return estimate(seeds, found.overlap.max() if len(found) else 0.0)


def delta_cell(report: Report, name: str, measure: str, base: str = "base") -> Cell:
    found = delta(report, name, measure, base)
    return gain_cell(found) if found.count else BLANK


def worst_cells(report: Report, name: str, measure: str) -> tuple[Cell, Cell]:
    means = _gains(report, name, measure).gain.groupby("task", sort=False).mean().dropna()
    means = means[means.abs() < math.inf]
    if means.empty:
        return BLANK, BLANK
    least = Estimate(float(means.min()), math.nan, 1)
    return Cell(str(means.idxmin())), Cell(words.gain(least, "%"), {"": least.mean}, higher=True)


def sight(method: str) -> str:
    """Which of :data:`SIGHTS` the method's server needs; empty for a custom method.

    >>> sight("fedrep"), sight("fedgradnorm"), sight("mgda"), sight("my own")
    ('nothing', 'losses, norms', 'Gram matrix', '')
    """
    known = METHODS.get(method)
    if known is None:
        return ""
    by_need = {Needs.GRADIENT: 5, Needs.GRAM: 4, Needs.NORM: 3, Needs.LOSS: 2, Needs.SIZE: 1}
    return SIGHTS[next((place for need, place in by_need.items() if need in known.needs), 0)]


def sweep_grid(report: Report, measure: str) -> Grid:
    """A row per task and method, a column per point of the sweep."""
    rows = dict(iter(report.frame.groupby(["variant", "task"], sort=False)))
    groups = []
    for task in report.tasks:
        mine = report.frame[report.frame.task == task].iloc[0]
        unit = "%" if mine.metric == "accuracy" else mine.metric.upper()
        title = task if measure == "loss" else f"{task} ({unit})"
        group = []
        constant = report.frame[report.frame.task == task].constant
        if measure == "score" and constant.notna().any():
            cell = score_cell(Estimate(constant.mean(), math.nan, 1), mine.metric)
            group.append((Cell(title, task=task), Cell("constant"),
                          *[_bare(cell)] * len(report.points)))  # fmt: skip
        for line in report.lines:
            cells = [
                _point_cell(rows[name, task], measure) if (name, task) in rows else BLANK
                for name in report.along(line)
            ]
            group.append((Cell(title, task=task), Cell(line), *cells))
        groups.append(tuple(group))
    name, what = ("sweep-loss", "training loss") if measure == "loss" else (
        "sweep-held-out", "held-out metric")  # fmt: skip
    title = f"Sweep over {key_name(report.points[0])}: {what} at the end"
    columns = ("task", "method", *map(value_name, report.points))
    return Grid(name, title, columns, tuple(groups), (_means_note(report),), whole=True)


def _point_cell(part: pd.DataFrame, measure: str) -> Cell:
    first, value = part.iloc[0], estimate(list(part[measure]))
    if measure == "loss":
        return replace(_bare(number(value, words.loss)), variant=first.variant)
    if first.split == "train":
        return BLANK
    return replace(_bare(score_cell(value, first.metric)), variant=first.variant)


def _means_note(report: Report) -> str:
    note = interval_note(report)
    return note.replace("mean ± half width of the 95% interval (Student's t)", "means") + (
        "" if note.startswith("one") else "; the intervals are in the files"
    )


def _beyond_note(groups: Sequence[Sequence[Sequence[Cell]]]) -> list[str]:
    texts = [cell.text for group in groups for row in group for cell in row]
    if not any(text.startswith((f"> {words.BEYOND}", f"< -{words.BEYOND}")) for text in texts):
        return []
    return [f"beyond {words.BEYOND} %: the loss compared with is close to zero"]


def clients_grid(clients: Sequence[Client]) -> Grid:
    """Clients before training: task, examples per split, class shares or targets."""
    rows = []
    for client in clients:
        splits = [getattr(client, split) for split in SPLITS]
        sizes = [BLANK if s is None else Cell(f"{len(s[0]):,}", {"": len(s[0])}) for s in splits]
        form = row_form(client.train[0])
        shape = " x ".join(map(str, form)) if isinstance(form, list) else ", ".join(form)
        shares = client.task.shares(some_targets(client.train[1]), client.labels)
        words = map(Cell, (client.name, client.task.words(), shape))
        rows.append((*words, *sizes, Cell(shares)))
    columns = ("client", "task", "input", *SPLITS,
               "class shares, or mean ± deviation (training examples)")  # fmt: skip
    return Grid("clients", "Clients", columns, (tuple(rows),), whole=True)


def numbers_of(value: Estimate, factor: float = 1.0) -> dict[str, float]:
    """The numbers behind a cell: mean, both ends of the interval and the number of seeds."""
    ends = {"": value.mean, "_low": value.low, "_high": value.high}
    return {**{k: factor * v for k, v in ends.items()}, "_n": float(value.count)}


def number(value: Estimate, text: Callable[[Estimate], str], *, bold: bool = False) -> Cell:
    return Cell(text(value), numbers_of(value), bold)


def score_cell(value: Estimate, metric: str, *, bold: bool = False) -> Cell:
    """A metric; its numbers are in percent for an accuracy."""
    factor = 100.0 if metric == "accuracy" else 1.0
    text, higher = words.metric(value, metric), higher_is_better(metric)
    return Cell(text, numbers_of(value, factor), bold, higher=higher)


def effect_cell(row: pd.Series) -> Cell:
    """A difference from the baseline with its unit; bold if it is significant."""
    value = Estimate(row.effect, row.high - row.effect, int(row.seeds))
    told = bool(row.p < LEVEL)
    return Cell(words.gain(value, row.unit), numbers_of(value), told, higher=True)


def gain_cell(value: Estimate, unit: str = "%") -> Cell:
    return Cell(words.gain(value, unit), numbers_of(value), higher=True)


def p_cell(p: float) -> Cell:
    return BLANK if math.isnan(p) else Cell(words.p_value(p), {"": p})


def mean_cell(values: pd.Series, text: Callable[[Estimate], str], *, higher: bool = False) -> Cell:
    """The mean of what is known, without an interval."""
    known = values.dropna()
    if known.empty:
        return BLANK
    value = Estimate(float(known.mean()), math.nan, len(known))
    return Cell(text(value), {"": value.mean}, higher=higher)


def _reached(epochs: pd.Series) -> Cell:
    """Mean epochs over the seeds that reached the loss, and how many did unless all."""
    known = epochs.dropna()
    if known.empty:
        return Cell("never", {"": math.nan, "_reached": 0.0})
    share = "" if len(known) == len(epochs) else f" ({len(known)}/{len(epochs)})"
    return Cell(f"{known.mean():.1f}{share}", {"": known.mean(), "_reached": float(len(known))})


def _bare(cell: Cell) -> Cell:
    """The cell's mean without name, interval and unit, which are given elsewhere."""
    mean = cell.text.partition(" ±")[0].removesuffix(" %")
    return replace(cell, text=mean if mean.startswith(("<", ">")) else mean.rpartition(" ")[2])


def _best(parts: Sequence[pd.DataFrame], measure: str) -> str:
    """The variant with the best mean, among those on the same data, metric and split."""
    if len({(p.data.iloc[0], p.metric.iloc[0], p.split.iloc[0]) for p in parts}) > 1:
        return ""
    means = {p.variant.iloc[0]: p[measure].mean() for p in parts}
    known = {name: mean for name, mean in means.items() if math.isfinite(mean)}
    if len(known) < 2:
        return ""
    pick = max if measure == "score" and parts[0].higher.iloc[0] else min
    return str(pick(known, key=known.__getitem__))


def _scale(values: Sequence[Estimate]) -> tuple[float, float]:
    """The range of a task's means and intervals, limited where few seeds make these very wide."""
    means = [value.mean for value in values if math.isfinite(value.mean)]
    if not means:
        return 0.0, 1.0
    halves = sorted(value.half for value in values if math.isfinite(value.half))
    reach = max(means) - min(means) or 0.05 * abs(means[0]) or 1.0
    room = min(halves[-1], 1.5 * reach) if halves else 0.15 * reach
    return min(means) - room, max(means) + room
