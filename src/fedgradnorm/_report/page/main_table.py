"""The comparison as an HTML table, sortable, with the intervals drawn in its rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from fedgradnorm._report.colours import Look, key
from fedgradnorm._report.page.sentences import Verdict
from fedgradnorm._report.record import Record
from fedgradnorm._report.tables.summaries import TaskRow, loss, metric, trivial_answer, weight
from fedgradnorm._stored.summary import Estimate, estimate
from fedgradnorm.tasks._named_metrics import higher_is_better

_CLEAR = '<span class="best" title="ahead of every other by more than the seeds differ">best</span>'
_LEVEL = '<span class="best" title="the best mean, but level with others">level</span>'
_WIDTH, _HEIGHT, _PAD = 132, 16, 7  # of the small plot in a row, in pixels


def comparison(
    rows: Sequence[TaskRow],
    records: Sequence[Record],
    judged: Sequence[Verdict],
    labels: Sequence[str],
    looks: Sequence[Look],
    points: Mapping[str, frozenset[str]],
) -> str:
    """A line per task and method; every column can be sorted by, within a task and a point."""
    places = [(task, point) for task in dict.fromkeys(r.task for r in rows) for point in points]
    within = {
        (task, label): number
        for number, (task, point) in enumerate(places)
        for label in points[point]
    }
    ahead = {(verdict.task, verdict.leader): verdict.clear for verdict in judged}
    tasks = list(dict.fromkeys(row.task for row in rows))
    held_out = _held_out_losses(records)
    scales = {task: _scale([row.value for row in rows if row.task == task]) for task in tasks}
    known = any(math.isfinite(row.trivial.mean) for row in rows)  # published archives lack it
    head = "".join(
        f'<th scope="col" aria-sort="none"{kind}><button type="button">{title}</button></th>'
        for title, kind in (
            ("Task", ""), ("Method", ""), ("Result", ' class="num"'),
            *([("Trivial answer", ' class="num"')] if known else []), ("95% interval", ""),
            ("Held-out loss", ' class="num"'), ("Training loss", ' class="num"'),
            ("At start", ' class="num"'), ("Weight", ' class="num"'), ("Seeds", ' class="num"'),
        )
    )  # fmt: skip
    body = "".join(
        _line(
            row, tasks.index(row.task), labels.index(row.method), looks[labels.index(row.method)],
            held_out, scales[row.task], None if points else ahead.get((row.task, row.method)),
            within.get((row.task, row.method), tasks.index(row.task)), known,
        )
        for row in rows
    )  # fmt: skip
    rest = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<table id="comparison" class="grouped">{rest}</table>'


def _line(
    row: TaskRow,
    task: int,
    method: int,
    look: Look,
    held_out: Mapping[tuple[str, str], Estimate],
    scale: tuple[float, float],
    clear: bool | None,
    within: int,
    known: bool,
) -> str:
    mark = "" if clear is None else _CLEAR if clear else _LEVEL
    beside = held_out.get((row.task, row.method))
    sign = -1 if higher_is_better(row.metric) else 1  # what sorts first is better
    cells = [
        f'<th scope="row" data-value="{task}">{escape(row.task)}</th>',
        f'<td data-value="{method}">{key(look)}{escape(row.method)}</td>',
        _number(sign * row.value.mean, mark + escape(metric(row))),
        _number(sign * row.trivial.mean, escape(trivial_answer(row))) if known else "",
        f'<td data-value="{_plain(sign * row.value.mean)}">{_interval(row, scale, look)}</td>',
        _number(beside.mean, loss(beside)) if beside else "<td class='num'>-</td>",
        _number(row.last_loss.mean, loss(row.last_loss)),
        _number(row.first_loss.mean, loss(row.first_loss)),
        _number(row.weight.mean, weight(row)),
        _number(row.seeds, str(row.seeds)),
    ]
    kind = ' class="leads"' if clear is not None else ""
    switches = (
        f'data-group="{task}" data-within="{within}" data-tasks="{task}" data-methods="{method}"'
    )
    return f"<tr {switches}{kind}>{''.join(cells)}</tr>"


def _number(value: float, text: str) -> str:
    return f'<td class="num" data-value="{_plain(value)}">{text}</td>'


def _plain(value: float) -> str:
    """A number to sort by; what is not finite sorts last."""
    return f"{value:.8g}" if math.isfinite(value) else ""


def _scale(values: Sequence[Estimate]) -> tuple[float, float]:
    """The range that the means of a task and their intervals span, tamed where few seeds blow up.

    With two seeds an interval can be many times wider than the methods differ; it is then cut off
    at the edge, so that the means can still be told apart.
    """
    means = [value.mean for value in values if math.isfinite(value.mean)]
    if not means:
        return 0.0, 1.0
    halves = sorted(value.half for value in values if math.isfinite(value.half))
    reach = max(means) - min(means) or 0.05 * abs(means[0]) or 1.0
    room = min(halves[-1], 1.5 * reach) if halves else 0.15 * reach
    return min(means) - room, max(means) + room


def _interval(row: TaskRow, scale: tuple[float, float], look: Look) -> str:
    """A dot for the mean and a bar for its interval, on the scale of the task."""
    value = row.value
    if not math.isfinite(value.mean):
        return ""
    span = (scale[1] - scale[0]) or 1.0

    def place(number: float) -> float:
        inside = min(max((number - scale[0]) / span, 0.0), 1.0)
        return round(_PAD + inside * (_WIDTH - 2 * _PAD), 1)

    middle = _HEIGHT / 2
    bar = ""
    if math.isfinite(value.half):
        left, right = place(value.mean - value.half), place(value.mean + value.half)
        bar = f'<line x1="{left}" x2="{right}" y1="{middle}" y2="{middle}"/>'
    return (
        f'<svg class="interval m{look.colour}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" aria-hidden="true">'
        f"<title>{escape(f'{row.task}, {row.method}: {metric(row)}')}</title>"
        f'<line class="axis" x1="{_PAD}" x2="{_WIDTH - _PAD}" y1="{middle}" y2="{middle}"/>'
        f'{bar}<circle cx="{place(value.mean)}" cy="{middle}" r="4"/></svg>'
    )


def _held_out_losses(records: Sequence[Record]) -> dict[tuple[str, str], Estimate]:
    last: dict[tuple[str, str], dict[int, float]] = {}
    for split in ("validation", "test"):  # the test split, where there is one, has the last word
        for number, record in enumerate(records):
            for row in record.rows:
                if row["split"] == split:
                    last.setdefault((row["client"], record.label), {})[number] = row["loss"]
    return {key: estimate(list(values.values())) for key, values in last.items()}
