"""Runs of many clients as runs of a few lines: for each task the median, both tenths, the worst.

Tables, tests and curves are made from a run's rows, one line for each client. Of many clients
nobody reads so many. A pooled run has the rows of quantiles in their place, so everything that is
made of runs is made of these, too. "The worst tenth" is the value that nine of ten clients reach:
the 90 % quantile of a loss, the 10 % quantile of an accuracy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from fedgradnorm._runs.csv_table import Row
from fedgradnorm._runs.history import metric_columns
from fedgradnorm._runs.reader import Judged, StoredRun
from fedgradnorm._runs.spread import MANY, spread_rows
from fedgradnorm.tasks._named_metrics import higher_is_better

MEDIAN, BEST, WORSE, WORST = "median", "best tenth", "worst tenth", "worst"
LINES = (MEDIAN, BEST, WORSE, WORST)
_LOWER = {MEDIAN: "median", BEST: "p10", WORSE: "p90", WORST: "max"}
_HIGHER = {MEDIAN: "median", BEST: "p90", WORSE: "p10", WORST: "min"}


def is_many(run: StoredRun) -> bool:
    """Whether a run has more clients than are shown one by one."""
    return len(run.names) > MANY


def pooled_runs(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """The same runs; those of many clients in the lines of their tasks."""
    return [pooled(run) if is_many(run) else run for run in runs]


def line_name(task: str, line: str) -> str:
    """What a line of a task is called where a client's name would stand.

    >>> line_name("age", MEDIAN)
    'age (median)'
    """
    return f"{task} ({line})"


def around(run: StoredRun) -> dict[str, tuple[str, str]]:
    """For each median of a pooled run the lines of the best and of the worst tenth."""
    if not run.pooled:
        return {}
    ends = {t: (line_name(t, BEST), line_name(t, WORSE)) for t in run.groups.values()}
    return {line_name(task, MEDIAN): both for task, both in ends.items()}


def pooled(run: StoredRun) -> StoredRun:
    """A run whose rows are quantiles over the clients of each task."""
    groups = run.groups
    found = run.spread or spread_rows(run.rows, groups, metric_columns(run.rows))
    judged = {
        line_name(task, line): by for task, by in _judged(run, groups).items() for line in LINES
    }
    rows = list(_lines(found))
    if rows and (sent := {row["client"]: row["bytes"] for row in run.rows if "bytes" in row}):
        rows[-1]["bytes"] = sum(sent.values())
    return replace(run, rows=rows, pooled=judged, spread=[])


def _lines(spread: Iterable[Row]) -> Iterable[Row]:
    """Rows of a history, a line of each task in the place of a client."""
    made: dict[tuple[int, float, str, str], dict[str, Row]] = {}
    for row in spread:
        place = (row["round"], row["epoch"], row["split"], row["task"])
        made.setdefault(place, {})[row["quantity"]] = row
    for (number, epoch, split, task), quantities in made.items():
        if split != "batch" and "loss" not in quantities:
            continue
        for line in LINES:
            values = {name: row[_column(name, line)] for name, row in quantities.items()}
            if split != "batch" and line != MEDIAN:
                values["weight"] = float("nan")  # who does worst has no special weight
            where = {"round": number, "epoch": epoch, "client": line_name(task, line)}
            yield {**where, "split": split, **values}


def _column(quantity: str, line: str) -> str:
    return (_HIGHER if higher_is_better(quantity) else _LOWER)[line]


def _judged(run: StoredRun, groups: Mapping[str, str]) -> dict[str, Judged]:
    """How a task is judged: as its first client is, against the mean constant baseline of all."""
    members: dict[str, list[Judged]] = {}
    for name, by in run.judged.items():
        members.setdefault(groups[name], []).append(by)
    found = {}
    for task, those in members.items():
        known = {name for by in those for name in by.constant}
        scores = {k: fmean(by.constant[k] for by in those if k in by.constant) for k in known}
        found[task] = Judged(those[0].metric, scores)
    return found or {task: Judged() for task in groups.values()}
