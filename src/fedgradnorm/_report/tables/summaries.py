"""Runs as tables: one run, methods side by side, and what clients hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich import box
from rich.table import Table
from rich.text import Text

from fedgradnorm._client import SPLITS, Client
from fedgradnorm._report.record import Record
from fedgradnorm._stored.summary import Estimate, TaskResult, estimate
from fedgradnorm.models._input_rows import row_form
from fedgradnorm.models._streamed.rows import some_targets
from fedgradnorm.tasks._named_metrics import higher_is_better

UNKNOWN = Estimate(math.nan, math.nan, 0)


@dataclass(frozen=True)
class TaskRow:
    """One task under one method: means over the seeds, with their 95% intervals.

    ``split`` is where the metric was measured, ``data`` the number of the set of data.
    """

    task: str
    method: str
    seeds: int
    first_loss: Estimate
    last_loss: Estimate
    metric: str
    value: Estimate
    split: str
    weight: Estimate
    data: int = 0
    trivial: Estimate = UNKNOWN


def task_rows(records: Sequence[Record]) -> list[TaskRow]:
    """Task by task, and in each the methods in the order given."""
    labels = list(dict.fromkeys(record.label for record in records))
    tasks = list(dict.fromkeys(name for record in records for name in record.clients))
    by_run = [(record.label, {r.client: r for r in record.results()}) for record in records]
    data = {record.label: record.data for record in records}
    rows = []
    for task in tasks:
        for label in labels:
            found = [r[task] for name, r in by_run if name == label and task in r]
            if found:
                rows.append(_row(label, found, data[label]))
    return rows


def _row(label: str, found: Sequence[TaskResult], data: int) -> TaskRow:
    def over_seeds(field: str) -> Estimate:
        return estimate([getattr(result, field) for result in found])

    return TaskRow(
        task=found[0].client,
        method=label,
        seeds=len(found),
        first_loss=over_seeds("first_loss"),
        last_loss=over_seeds("last_loss"),
        metric=found[0].metric,
        value=over_seeds("value"),
        split=found[0].split,
        weight=over_seeds("weight"),
        data=data,
        trivial=over_seeds("trivial"),
    )


def results_table(rows: Sequence[TaskRow], title: str = "") -> Table:
    """A section per task, a line per method; the best metric of a task is bold."""
    several, mixed = len({row.method for row in rows}) > 1, len({row.split for row in rows}) > 1
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("task")
    if several:
        table.add_column("method", no_wrap=True)
    trivial = any(math.isfinite(row.trivial.mean) for row in rows)
    beside = ("trivial\nanswer",) if trivial else ()
    for name in ("first loss", "last loss", _metric_title(rows), *beside, "weight"):
        table.add_column(name, justify="right")
    for number, row in enumerate(rows):
        first = number == 0 or rows[number - 1].task != row.task
        last = number + 1 == len(rows) or rows[number + 1].task != row.task
        best = several and row is _best(rows, row)
        where = f" ({row.split})" if mixed else ""
        # Text, not markup: a client's name may hold brackets.
        cells = [row.task if first else ""] + ([row.method] if several else [])
        cells += [loss(row.first_loss), loss(row.last_loss)]
        table.add_row(
            *map(Text, cells),
            Text(metric(row) + where, style="bold" if best else ""),
            *([Text(trivial_answer(row))] if trivial else []),
            Text(weight(row)),
            end_section=last and several,
        )
    return table


def clients_table(clients: Sequence[Client]) -> Table:
    """Who takes part: the task, the rows of each split, the shares of classes or the targets."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("client", "task", "input"):
        table.add_column(name)
    for name in SPLITS:
        table.add_column(name, justify="right")
    table.add_column("class shares, or mean ± deviation (training rows)")
    for client in clients:
        sizes = [
            f"{len(pair[0]):,}" if (pair := getattr(client, split)) is not None else "-"
            for split in SPLITS
        ]
        form = row_form(client.train[0])
        shape = " x ".join(map(str, form)) if isinstance(form, list) else ", ".join(form)
        cells = (client.name, client.task.words(), shape, *sizes, _targets(client))
        table.add_row(*map(Text, cells))
    return table


def loss(value: Estimate) -> str:
    """A loss with three or four digits, and its interval where there is one.

    >>> loss(Estimate(133.6318, float("nan"), 1)), loss(Estimate(0.2118, 0.01, 3))
    ('133.6', '0.212 ± 0.010')
    """
    digits = 1 if abs(value.mean) >= 100 else 2 if abs(value.mean) >= 10 else 3
    return fixed(value, digits)


def metric(row: TaskRow) -> str:
    """An accuracy in percent, or an error with its name."""
    if math.isnan(row.value.mean):
        return f"{row.metric.upper()} n/a"
    if row.metric == "accuracy":
        scaled = Estimate(100 * row.value.mean, 100 * row.value.half, row.value.count)
        return f"{fixed(scaled, 1)} %"
    return f"{row.metric.upper()} {loss(row.value)}"


def trivial_answer(row: TaskRow) -> str:
    """What the most frequent class, or the mean, scores by the same metric."""
    value = Estimate(row.trivial.mean, math.nan, row.trivial.count)
    return metric(replace(row, value=value)) if math.isfinite(value.mean) else "-"


def weight(row: TaskRow) -> str:
    """The last weight; the worst and the best of many clients have none."""
    return "-" if math.isnan(row.weight.mean) else fixed(row.weight, 3)


def fixed(value: Estimate, digits: int) -> str:
    """The mean with so many digits, and its interval where there is one."""
    text = f"{value.mean:.{digits}f}"
    return text if math.isnan(value.half) else f"{text} ± {value.half:.{digits}f}"


def _metric_title(rows: Sequence[TaskRow]) -> str:
    kinds = {row.metric for row in rows}
    name = "accuracy" if kinds == {"accuracy"} else "accuracy\nor error"
    splits = {row.split for row in rows}
    return f"{name}\n({splits.pop()})" if len(splits) == 1 else name


def _best(rows: Sequence[TaskRow], one: TaskRow) -> TaskRow:
    """The best of those that may be compared with ``one``: same task, data and split."""
    like = (one.task, one.data, one.split)
    mine = [row for row in rows if (row.task, row.data, row.split) == like]
    pick = max if higher_is_better(mine[0].metric) else min
    return pick(mine, key=lambda row: row.value.mean)


def _targets(client: Client) -> str:
    return client.task.shares(some_targets(client.train[1]), client.labels)
