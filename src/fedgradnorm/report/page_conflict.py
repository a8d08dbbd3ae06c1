"""Conflict between clients on the page: who pulls against whom, as curves and as a map."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from fedgradnorm.experiments.history import Row
from fedgradnorm.report.colours import Look, key
from fedgradnorm.report.page_groups import Group

MEAN = "cosine"
MOST = 8  # more tasks than this get no view for each, twice as many no map
_TITLE = "Mean over the rounds recorded and over seeds"

Points = dict[int, tuple[float, float]]


def with_task(task: str) -> str:
    """The column of a client's cosine with the client ``task``."""
    return f"{MEAN} with {task}"


def cosine_series(pairs: Sequence[Row]) -> dict[tuple[str, str, str], Points]:
    """(client, "batch", column) -> round -> (epoch, cosine): with each other, and their mean."""
    found: dict[tuple[str, str, str], Points] = {}
    together: dict[tuple[str, int], list[float]] = {}
    epochs: dict[int, float] = {}
    for row in pairs:
        number, cosine = row["round"], row["cosine"]
        epochs[number] = row["epoch"]
        for one, other in _both_ways(row):
            found.setdefault((one, "batch", with_task(other)), {})[number] = row["epoch"], cosine
            together.setdefault((one, number), []).append(cosine)
    for (client, number), values in together.items():
        mean = math.fsum(values) / len(values)
        found.setdefault((client, "batch", MEAN), {})[number] = epochs[number], mean
    return found


def _both_ways(row: Row) -> tuple[tuple[str, str], tuple[str, str]]:
    return (row["client"], row["other"]), (row["other"], row["client"])


def maps_html(groups: Sequence[Group], tasks: Sequence[str], looks: Sequence[Look]) -> str:
    """A map per method that has recorded anything: a line and a column per task."""
    if len(tasks) > 2 * MOST:
        return ""
    made = (
        _map(number, one.label, tasks, _means(one), looks[number])
        for number, one in enumerate(groups)
    )
    inside = "".join(made)
    return f'<div class="maps">{inside}</div>' if inside else ""


def _means(group: Group) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], list[float]] = {}
    for row in (row for run in group.whole for row in run.pairs):
        for pair in _both_ways(row):
            found.setdefault(pair, []).append(row["cosine"])
    return {pair: math.fsum(values) / len(values) for pair, values in found.items()}


def _map(
    method: int,
    label: str,
    tasks: Sequence[str],
    means: Mapping[tuple[str, str], float],
    look: Look,
) -> str:
    if not means:
        return ""
    there = [(i, task) for i, task in enumerate(tasks) if any(task == one for one, _ in means)]
    head = "".join(f'<th scope="col" data-tasks="{j}">{escape(task)}</th>' for j, task in there)
    body = "".join(
        f'<tr data-tasks="{i}"><th scope="row">{escape(one)}</th>{_cells(one, there, means)}</tr>'
        for i, one in there
    )
    return (
        f'<figure class="map" data-methods="{method}"><figcaption>{key(look)} {escape(label)}'
        f'</figcaption><div class="scroll"><table title="{_TITLE}"><thead><tr><td></td>{head}</tr>'
        f"</thead><tbody>{body}</tbody></table></div></figure>"
    )


def _cells(
    one: str, tasks: Iterable[tuple[int, str]], means: Mapping[tuple[str, str], float]
) -> str:
    return "".join(_cell(j, means.get((one, other))) for j, other in tasks)


def _cell(column: int, value: float | None) -> str:
    if value is None:
        return f'<td data-tasks="{column}" class="self"></td>'
    kind = "against" if value < 0 else "along"
    depth = min(1.0, abs(value)) ** 0.7  # cosines of many parameters are small: let them be seen
    return (
        f'<td data-tasks="{column}" class="{kind}" style="--depth: {depth:.2f}">{value:+.2f}</td>'
    )
