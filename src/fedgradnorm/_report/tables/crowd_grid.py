"""Many clients as one table: for each task how they lie, and how many are better off."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from fedgradnorm._client import SPLITS
from fedgradnorm._report.cells import arm_cell, blank, task_cell
from fedgradnorm._report.grid import Cell, Grid
from fedgradnorm._report.group_benefit import GroupBenefit
from fedgradnorm._report.tables.comparison_grids import without_blank
from fedgradnorm._report.tables.summaries import fixed, loss
from fedgradnorm._runs.many.spread import quantiles
from fedgradnorm._stored.groups import Group
from fedgradnorm._stored.reader import StoredRun
from fedgradnorm._stored.summary import Estimate, TaskResult, estimate, results
from fedgradnorm._stored.task_lines import is_many
from fedgradnorm.tasks._named_metrics import higher_is_better

COLUMNS = ("task", "method", "clients", "evaluated", "training loss", "held-out", "10-90 %",
           "worst", "over trivial", "benefit", "weight, 10-90 %")  # fmt: skip
NOTES = (
    "training loss and held-out: the median over clients; 10-90 %: where eight of ten clients lie",
    "evaluated: at the run's end; over trivial, benefit: the share of these clients that are "
    "better than the trivial answer, and than what they reach alone",
)


@dataclass(frozen=True)
class Crowd:
    """The clients of one task at the end of one run."""

    clients: int
    results: Sequence[TaskResult]

    def of(self, value: Callable[[TaskResult], float]) -> dict[str, float]:
        """Quantiles of a number of the clients; all NaN where nobody has it."""
        found = [number for one in self.results if math.isfinite(number := value(one))]
        return quantiles(found or [math.nan])

    def over_trivial(self) -> float:
        """The share of clients that are better than their trivial answer; NaN where unknown."""
        known = [one for one in self.results if math.isfinite(one.trivial)]
        if not known:
            return math.nan
        signs = (1 if higher_is_better(one.metric) else -1 for one in known)
        pairs = zip(signs, known, strict=True)
        return fmean(sign * (one.value - one.trivial) > 0 for sign, one in pairs)


def crowd_grid(groups: Sequence[Group], benefits: Sequence[GroupBenefit] = ()) -> Grid | None:
    """A line per task and method of runs of many clients; None where there is no such run."""
    many = [one for one in groups if any(map(is_many, one.whole))]
    if not many:
        return None
    found = {one.label: [crowds_of(run) for run in one.whole] for one in many}
    alone = {one.arm.label: one for one in benefits}
    tasks = dict.fromkeys(t for crowds in found.values() for crowd in crowds for t in crowd)
    rows = []
    for task in tasks:
        mine = [
            _row(task, one, [crowd[task] for crowd in found[one.label] if task in crowd],
                 alone.get(one.label))
            for one in many if any(task in crowd for crowd in found[one.label])
        ]  # fmt: skip
        rows.append(tuple(mine))
    notes = (*NOTES, *_sampled(many, found))
    title = "Clients by task, at the end"
    return without_blank(Grid("clients", title, COLUMNS, tuple(rows), notes))


def _sampled(
    many: Sequence[Group], found: Mapping[str, Sequence[Mapping[str, Crowd]]]
) -> list[str]:
    """How many clients the numbers are of, where these are not all."""
    notes = []
    for one in many:
        crowd = found[one.label][0].values()
        there, every = sum(len(c.results) for c in crowd), len(one.whole[0].names)
        if there < every:
            notes.append(f"{one.label}: {there:,} of {every:,} clients evaluated at the end")
        settings = one.whole[0].part("settings")
        if (asked := settings.get("eval_clients")) is not None:
            share = f"{asked:,}" if isinstance(asked, int) else f"{100 * asked:g} %"
            notes.append(f"{one.label}: evaluations on the way are of {share} of the clients")
    return list(dict.fromkeys(notes))


def crowds_of(run: StoredRun) -> dict[str, Crowd]:
    """The clients of each task at the end of a run, as far as they were evaluated there."""
    evaluated = [row for row in run.rows if row["split"] in SPLITS]
    last = max((row["round"] for row in evaluated), default=-1)
    ends = results((row for row in evaluated if row["round"] == last), run.judged)
    groups, found = run.groups, dict[str, list[TaskResult]]()
    counts: dict[str, int] = {}
    for name in run.names:
        counts[groups[name]] = counts.get(groups[name], 0) + 1
    for one in (one for one in ends if one.client in groups):
        found.setdefault(groups[one.client], []).append(one)
    return {task: Crowd(counts[task], those) for task, those in found.items()}


def _row(
    task: str, one: Group, crowds: Sequence[Crowd], benefit: GroupBenefit | None
) -> tuple[Cell, ...]:
    metric = crowds[0].results[0].metric
    losses = [crowd.of(lambda r: r.last_loss) for crowd in crowds]
    values = [crowd.of(lambda r: r.value) for crowd in crowds]
    weights = [crowd.of(lambda r: r.weight) for crowd in crowds]
    worst = "min" if higher_is_better(metric) else "max"
    return (
        task_cell(task),
        arm_cell(one.label),
        _count([crowd.clients for crowd in crowds]),
        _count([len(crowd.results) for crowd in crowds]),
        _number(losses, "median"),
        _named(_number(values, "median", metric), metric),
        _range(values, metric),
        _number(values, worst, metric),
        _share([crowd.over_trivial() for crowd in crowds]),
        _share([_gaining(task, one, benefit)]),
        _range(weights),
    )


def _gaining(task: str, one: Group, benefit: GroupBenefit | None) -> float:
    """The share of a task's clients that gain over training alone; NaN where that is not known."""
    if benefit is None:
        return math.nan
    groups = one.whole[0].groups
    mine = [c for c in benefit.clients if groups.get(c.client) == task and not math.isnan(c.gain)]
    return fmean(c.gain > 0 for c in mine) if mine else math.nan


def _count(counts: Sequence[int]) -> Cell:
    return Cell(f"{max(counts):,}", {"": float(max(counts))})


def _number(found: Sequence[Mapping[str, float]], column: str, metric: str = "") -> Cell:
    value = estimate([one[column] for one in found])
    if math.isnan(value.mean):
        return blank()
    return Cell(_text(value, metric), {"": value.mean}, higher=higher_is_better(metric))


def _named(cell: Cell, metric: str) -> Cell:
    """The cell with the name of its metric; an accuracy is known by its unit."""
    if cell == blank() or metric == "accuracy":
        return cell
    return replace(cell, text=f"{metric.upper()} {cell.text}")


def _range(found: Sequence[Mapping[str, float]], metric: str = "") -> Cell:
    low, high = (fmean(one[column] for one in found) for column in ("p10", "p90"))
    if math.isnan(low):
        return blank()
    ends = (_text(Estimate(value, math.nan, 1), metric) for value in (low, high))
    return Cell(" to ".join(ends), {"_p10": low, "_p90": high})


def _text(value: Estimate, metric: str) -> str:
    if metric != "accuracy":
        return loss(value)
    return f"{fixed(Estimate(100 * value.mean, 100 * value.half, value.count), 1)} %"


def _share(shares: Sequence[float]) -> Cell:
    known = [share for share in shares if not math.isnan(share)]
    if not known:
        return blank()
    return Cell(f"{100 * fmean(known):.0f} %", {"": fmean(known)}, higher=True)
